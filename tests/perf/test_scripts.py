# SPDX-License-Identifier: Apache-2.0
"""Each script of perf/ from end to end, as small as it gets; a wrong engine refused; the pictures."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from running import HAS_COMPILER, check_figures, forward, run

import gpt2cy

WRONG_ENGINE = """
import numpy as np
import numpy_engine

class Engine(numpy_engine.Engine):
    def attention(self, qkv, future, cache=None, past=0):
        return super().attention(qkv, np.zeros_like(future), cache, past)  # sees what is to come
"""


def test_forward(tmp_path):
    output = tmp_path / "forward.json"
    done = forward(
        "--quick", "--models", "tiny", "--engines", "gpt2cy,numpy", "--threads", 1, "--output", output
    )
    assert done.returncode == 0, done.stderr
    assert "| call        | batch | tokens | gpt2cy" in done.stdout

    result = json.loads(output.read_text())
    assert (result["bench"], result["threads"], result["dtype"]) == ("forward", [1], "float32")
    assert result["command"].startswith("python perf/forward.py --quick")
    assert result["machine"]["cpu"] and result["machine"]["processors"] >= 1
    assert result["versions"]["gpt2cy"]["version"] == gpt2cy.__version__
    assert result["versions"]["numpy"]["numpy"] == np.__version__
    assert result["models"]["tiny"]["block_size"] == 256
    checks = {check["engine"]: check for check in result["checks"]}
    assert list(checks) == ["gpt2cy", "numpy"]
    for check in checks.values():
        assert 0 < check["relative_error"] < 1e-4 and check["refused"] is None
    cases = [(row["call"], row["batch"], row["length"]) for row in result["rows"] if row["engine"] == "numpy"]
    forwards = [("forward", 1, 16), ("forward", 1, 64), ("forward", 2, 64)]
    assert cases == [*forwards, ("next_logits", 1, 16), ("next_logits", 1, 64), ("decode", 1, 16)]
    for row in result["rows"]:
        check_figures(row)
        assert row["ratio"] == 1 or row["engine"] == "numpy"
        assert len(row["rounds"]) == result["rounds"] == 3
        if HAS_COMPILER:
            check_figures(row["share"])
            assert row["roofline"] > 0


# Each script, as small as it gets; what identifies its rows, and how many there are for each instruction set.
@pytest.mark.parametrize(
    ("name", "arguments", "keys"),
    [
        ("gemm", ["--rows", "1,16"], ["layer", "m", "isa", "threads"]),
        (
            "attention",
            ["--lengths", "64,130", "--torch", sys.executable],
            ["length", "engine", "isa", "threads"],
        ),
        ("rows", ["--rows", "16"], ["kernel", "rows", "isa", "threads"]),
        ("overhead", [], ["call", "threads"]),
        ("sampling", [], ["way", "logits", "rows", "threads"]),
        ("ragged", ["--models", "tiny"], ["model", "batch", "threads"]),
        ("generate", ["--models", "tiny"], ["call", "batch", "past", "settings", "threads"]),
        ("score", ["--models", "tiny", "--lengths", "20"], ["model", "length", "threads", "call"]),
        ("memory", ["--model", "tiny"], ["huge_pages", "threads"]),
        ("threads", ["--model", "tiny"], ["condition"]),
        ("waiting", [], ["setting", "way"]),
        ("load", ["--model", "tiny", "--repetitions", 2], ["engine", "threads"]),
    ],
)
def test_a_script(tmp_path, name, arguments, keys):
    output = tmp_path / f"{name}.json"
    done = run(name, "--quick", "--rounds", 2, "--threads", 2, *arguments, "--output", output)
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    assert (result["bench"], result["unit"], result["better"]) == (name, "ms", "less")
    assert len({tuple(row[key] for key in keys) for row in result["rows"]}) == len(result["rows"]) >= 2
    for row in result["rows"]:
        check_figures(row)
        assert len(row["rounds"]) == 2
        if HAS_COMPILER and name not in ("overhead", "threads", "waiting", "load"):
            check_figures(row["share"])
    assert all(limit["median"] > 0 for limit in result.get("limits", {}).values())


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_attention_needs_memory_in_proportion_to_the_length(tmp_path):
    output = tmp_path / "attention.json"
    options = [
        "--lengths",
        "1024,2048,4096",
        "--rounds",
        1,
        "--isas",
        gpt2cy.show_config()["isa"],
        "--threads",
        2,
    ]
    done = run("attention", "--quick", *options, "--output", output)
    assert done.returncode == 0, done.stderr
    used = [row["bytes"] for row in json.loads(output.read_text())["workspace"]]
    assert 1.5 < (used[2] - used[1]) / (used[1] - used[0]) < 2.5  # 4 if it grew with the square


def test_a_length_beyond_the_positions_is_left_out_aloud():
    done = forward(
        "--quick", "--models", "tiny", "--lengths", "16,512", "--engines", "gpt2cy", "--threads", 1
    )
    assert done.returncode == 0
    assert "tiny has 256 positions, not timed: [512] tokens" in done.stderr


def test_a_wrong_engine_is_not_timed(tmp_path):
    (tmp_path / "wrong_engine.py").write_text(WRONG_ENGINE)
    output = tmp_path / "forward.json"
    command = ["--quick", "--models", "tiny", "--lengths", 16, "--threads", 1, "--engines", "wrong,numpy"]
    done = forward(*command, "--output", output, python_path=[tmp_path])
    assert done.returncode == 1
    assert "wrong is not timed on tiny: its logits of forward differ from the reference" in done.stderr
    result = json.loads(output.read_text())
    assert [bool(check["refused"]) for check in result["checks"]] == [True, False]
    assert {row["engine"] for row in result["rows"]} == {"numpy"}


def test_an_engine_that_cannot_start_is_left_out(tmp_path):
    (tmp_path / "absent_engine.py").write_text("import a_package_that_is_not_there")
    command = ["--quick", "--models", "tiny", "--lengths", 16, "--threads", 1, "--engines", "gpt2cy,absent"]
    done = forward(*command, python_path=[tmp_path])
    assert done.returncode == 1
    assert "absent is left out: ModuleNotFoundError" in done.stderr
    assert "| batch | tokens | gpt2cy" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "huge"], "'huge' is none of tiny, small"),
        (["--rounds", "0"], "expected a whole number from 1 on, got '0'"),
        (["--lengths", "16,x"], "got 'x'"),
        (["--python", "torch=/no/such/python"], "expected ENGINE=PATH of an executable"),
    ],
)
def test_bad_arguments(arguments, message):
    done = forward(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="no matplotlib")
def test_the_pictures(tmp_path):
    done = run("plot", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("forward.png", "roofline.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="no matplotlib")
def test_no_results_no_pictures(tmp_path):
    done = run("plot", "--output", tmp_path, "--results", tmp_path)
    assert done.returncode == 0
