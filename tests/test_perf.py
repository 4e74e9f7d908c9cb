# SPDX-License-Identifier: Apache-2.0
"""The measurements: a short one from end to end, a wrong engine refused, and the pieces of the harness."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gpt2cy

PERF = Path(__file__).parents[1] / "perf"
WRONG_ENGINE = """
import numpy as np
import numpy_engine

class Engine(numpy_engine.Engine):
    def attention(self, qkv, future):
        return super().attention(qkv, np.zeros_like(future))  # sees what is to come
"""


@pytest.fixture(scope="module")
def harness():
    """perf/ is a folder of scripts, not a package."""
    sys.path.insert(0, str(PERF))
    try:
        import harness

        yield harness
    finally:
        sys.path.remove(str(PERF))


def forward(*arguments, python_path=()):
    path = os.pathsep.join([str(Path(gpt2cy.__file__).parents[1]), *map(str, python_path)])
    return subprocess.run(
        [sys.executable, PERF / "forward.py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_forward(tmp_path):
    output = tmp_path / "forward.json"
    done = forward(
        "--quick", "--models", "tiny", "--engines", "gpt2cy,numpy", "--threads", 1, "--output", output
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "| batch | tokens | gpt2cy" in done.stdout

    result = json.loads(output.read_text())
    assert (result["bench"], result["threads"], result["dtype"]) == ("forward", 1, "float32")
    assert result["machine"]["cpu"] and result["machine"]["processors"] >= 1
    assert result["versions"]["gpt2cy"]["version"] == gpt2cy.__version__
    assert result["versions"]["numpy"]["numpy"] == np.__version__
    assert result["models"]["tiny"]["block_size"] == 256
    checks = {check["engine"]: check for check in result["checks"]}
    assert list(checks) == ["gpt2cy", "numpy"]
    for check in checks.values():
        assert 0 < check["relative_error"] < 1e-4 and check["refused"] is None
    cases = [(row["batch"], row["length"], row["engine"]) for row in result["rows"]]
    assert cases == [(b, t, e) for b, t in [(1, 16), (1, 64), (2, 64)] for e in ("gpt2cy", "numpy")]
    for row in result["rows"]:
        assert 0 < row["low"] <= row["median"] <= row["high"]
        assert row["ratio"] == 1 or row["engine"] == "numpy"
        assert len(row["rounds"]) == result["rounds"] == 3


def test_a_length_beyond_the_positions_is_left_out_aloud():
    done = forward("--quick", "--models", "tiny", "--lengths", "16,512", "--engines", "gpt2cy")
    assert done.returncode == 0
    assert "tiny has 256 positions, not timed: [512] tokens" in done.stderr


def test_a_wrong_engine_is_not_timed(tmp_path):
    (tmp_path / "wrong_engine.py").write_text(WRONG_ENGINE)
    output = tmp_path / "forward.json"
    command = ["--quick", "--models", "tiny", "--lengths", 16, "--engines", "wrong,numpy", "--output", output]
    done = forward(*command, python_path=[tmp_path])
    assert done.returncode == 1
    assert "wrong is not timed on tiny: its logits differ from the reference" in done.stderr
    result = json.loads(output.read_text())
    assert [bool(check["refused"]) for check in result["checks"]] == [True, False]
    assert {row["engine"] for row in result["rows"]} == {"numpy"}


def test_an_engine_that_cannot_start_is_left_out(tmp_path):
    (tmp_path / "absent_engine.py").write_text("import a_package_that_is_not_there")
    command = ["--quick", "--models", "tiny", "--lengths", 16, "--engines", "gpt2cy,absent"]
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


def test_relative_error(harness):
    want = np.array([[0.0, 2.0], [4.0, 6.0]])
    assert harness.relative_error(want.astype(np.float32), want) == 0
    assert harness.relative_error(want + np.eye(2), want) == pytest.approx(1 / want.std())
    assert harness.relative_error(want[:1], want) == float("inf")
    assert harness.relative_error(want * np.nan, want) == float("inf")


def test_interleave_turns_the_order_and_drops_what_fails(harness):
    asked = []

    def ask(worker):
        asked.append(worker.name)
        if worker.name == "b" and len(asked) > 3:
            raise harness.EngineError("gone")
        return len(asked)

    workers = [SimpleNamespace(name=name) for name in "abc"]
    answers, failures = harness.interleave(workers, ask, rounds=3, rest=0)
    assert "".join(asked) == "abc" + "bca" + "ca"
    assert answers == {"a": [1, 6, 8], "c": [3, 5, 7]}
    assert failures == {"b": "gone"}


def test_summarize(harness):
    figures = harness.summarize({"a": [1.0, 2.0, 10.0], "b": [3.0, 4.0, 10.0]})
    assert figures["a"] == {"median": 2.0, "low": 1.0, "high": 10.0, "ratio": 1.0, "rounds": [1.0, 2.0, 10.0]}
    assert figures["b"]["ratio"] == 2.0
    assert harness.summarize({}) == {}


def test_worker_environment(harness):
    environment = {
        "OPENBLAS_CORETYPE": "Prescott",
        "OPENBLAS_L2_SIZE": "64",
        "OMP_NUM_THREADS": "7",
        "HOME": "/",
    }
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
    assert harness.worker_environment(environment, 2) == {"HOME": "/", **counts}


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        ("AMD EPYC", "amd-epyc"),
        ("Intel(R) Xeon(R) Platinum 8369B CPU @ 2.70GHz", "intel-xeon-platinum-8369b"),
        ("", "cpu"),
    ],
)
def test_slug(harness, cpu, expected):
    assert harness.slug(cpu) == expected


def test_machine(harness):
    described = harness.machine()
    assert described["cpu"] and described["processors"] >= 1
    json.dumps(described)


def test_table(harness):
    assert (
        harness.table(["a", "bb"], [[1, 2], [10, "x"]])
        == "| a  | bb |\n| -- | -- |\n| 1  | 2  |\n| 10 | x  |"
    )


def test_readme_shows_the_newest_results(harness):
    done = subprocess.run([sys.executable, PERF / "readme.py", "--check"])
    assert done.returncode == 0, "run python perf/readme.py"
