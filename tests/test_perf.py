# SPDX-License-Identifier: Apache-2.0
"""The measurements: a short one from end to end, a wrong engine refused, and the pieces of the harness."""

import copy
import json
import os
import shutil
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
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
    def attention(self, qkv, future, cache=None, past=0):
        return super().attention(qkv, np.zeros_like(future), cache, past)  # sees what is to come
"""


@pytest.fixture(scope="module")
def script():
    """Import a module of perf/, which is a folder of scripts, not a package."""
    sys.path.insert(0, str(PERF))
    try:
        yield import_module
    finally:
        sys.path.remove(str(PERF))


@pytest.fixture(scope="module")
def harness(script):
    return script("harness")


def run(name, *arguments, python_path=()):
    """Run a script of perf/ with the package that is being tested."""
    path = os.pathsep.join([str(Path(gpt2cy.__file__).parents[1]), *map(str, python_path)])
    return subprocess.run(
        [sys.executable, PERF / f"{name}.py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def forward(*arguments, python_path=()):
    return run("forward", *arguments, python_path=python_path)


HAS_COMPILER = shutil.which(os.environ.get("CC", "cc").split()[0]) is not None


def check_figures(figures):
    assert 0 < figures["low"] <= figures["q1"] <= figures["median"] <= figures["q3"] <= figures["high"]


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
        if HAS_COMPILER and name not in ("overhead", "threads"):
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


linux = pytest.mark.skipif(sys.platform != "linux", reason="a worker's state is in /proc; its end is prctl's")


@linux
def test_a_worker_is_stopped_while_nobody_asks(harness, tmp_path):
    """Its threads may be spinning, as those of OMP_WAIT_POLICY=active do for minutes."""
    worker = harness.Worker("numpy", 1)
    try:
        with pytest.raises(harness.EngineError):
            worker.ask("load", weights=str(tmp_path / "none.npz"), config={})
        waits_until_stopped(worker.process.pid)
    finally:
        worker.close()
    assert worker.process.returncode is not None


@linux
def test_a_stopped_worker_ends_with_its_bench(tmp_path):
    code = """
import sys, time, harness
worker = harness.Worker("numpy", 1)
try: worker.ask("load", weights="none.npz", config={})
except harness.EngineError: print(worker.process.pid, flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PERF), *filter(None, sys.path)])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as bench:
        pid = int(bench.stdout.readline())
        waits_until_stopped(pid)
        bench.kill()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and state_of(pid) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def waits_until_stopped(pid):
    deadline = time.monotonic() + 60
    while state_of(pid) != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def test_interleave_measures_around_every_round(harness):
    order = []
    workers = [SimpleNamespace(name=name) for name in "ab"]
    harness.interleave(
        workers, lambda worker: order.append(worker.name), 2, rest=0, around=lambda: order.append("|")
    )
    assert "".join(order) == "|ab|ba|"


def test_summarize(harness):
    figures = harness.summarize({"a": [1.0, 2.0, 10.0], "b": [3.0, 4.0, 10.0]})
    a = {
        "median": 2.0,
        "q1": 1.5,
        "q3": 6.0,
        "low": 1.0,
        "high": 10.0,
        "ratio": 1.0,
        "rounds": [1.0, 2.0, 10.0],
    }
    assert figures["a"] == a
    assert figures["b"]["ratio"] == 2.0
    assert harness.summarize({}) == {}
    assert harness.figures([3.0]) == {
        **dict.fromkeys(("median", "q1", "q3", "low", "high"), 3.0),
        "rounds": [3.0],
    }


def test_time_ms(harness):
    calls = []
    assert 1 < harness.time_ms(lambda: calls.append(time.sleep(2e-3)), 0.01) < 100
    assert len(calls) >= 3


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
    ("machine", "name", "slug"),
    [
        ({"cpu": "AMD EPYC", "cpu family": 25, "model": 1}, "AMD EPYC (family 25, model 1)", "amd-epyc-25-1"),
        (
            {"cpu": "Intel(R) Xeon(R) Platinum 8369B CPU @ 2.70GHz", "cpu family": 6, "model": 106},
            "Intel(R) Xeon(R) Platinum 8369B CPU @ 2.70GHz (family 6, model 106)",
            "intel-xeon-platinum-8369b-6-106",
        ),
        ({"cpu": "aarch64"}, "aarch64", "aarch64"),
        ({"cpu": ""}, "", "cpu"),
    ],
)
def test_a_processor_has_a_name_and_files_of_its_own(harness, machine, name, slug):
    assert (harness.processor(machine), harness.slug(machine)) == (name, slug)


def test_results_are_kept_for_each_machine(harness, tmp_path):
    for name, when in (("forward-a", "2026-01-01"), ("forward-b", "2026-01-03"), ("gemm-a", "2026-01-04")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"when": when}))
    assert [path.stem for path, _ in harness.kept("forward", tmp_path)] == ["forward-b", "forward-a"]
    assert harness.kept("rows", tmp_path) == []


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


# ---- the roofline -----------------------------------------------------------------------------------

CONFIG = gpt2cy.GPTConfig(50, 12, 3, 2, 40, n_inner=20)


def counted_forward(config, lengths, past):
    """Flops of a forward pass, counted one by one: each matrix of the model, each key that a query sees."""
    shapes = config.parameter_shapes()
    matrices = [shape for name, shape in shapes.items() if name.startswith("h.") and len(shape) == 2]
    matrices.append((config.n_embd, config.vocab_size))
    flops = sum(2 * sum(lengths) * k * n for k, n in matrices)
    for length in lengths:
        for position in range(past, past + length):
            flops += config.n_layers * (position + 1) * 2 * 2 * config.n_embd
    return flops


@pytest.mark.parametrize("tied", [False, True])
def test_the_roofline_counts_every_product(script, tied):
    roofline = script("roofline")
    config = gpt2cy.GPTConfig(50, 12, 3, 2, 40, n_inner=20, tie_weights=tied)
    for lengths, past in (([7], 0), ([3, 1, 9], 0), ([1, 1], 30)):
        assert roofline.forward(config, lengths, past).flops == counted_forward(config, lengths, past)
    weights = sum(int(np.prod(shape)) for shape in config.parameter_shapes().values())
    looked_up = (50 + 40) * 12 if not tied else 40 * 12
    assert roofline.weight_bytes(config) == 4 * (weights - looked_up)


def test_the_roofline_of_the_released_model(script):
    roofline, config = script("roofline"), gpt2cy.GPTConfig.preset("gpt2")
    assert [round(roofline.forward(config, [t]).flops / 1e9, 1) for t in (16, 64, 256)] == [4.0, 15.9, 64.5]
    assert round(roofline.weight_bytes(config) / 1e6) == 495
    assert (
        roofline.decode(config, 1, 900).bytes - roofline.decode(config, 1, 0).bytes == 2 * 12 * 900 * 768 * 4
    )


def test_the_roofline_of_a_prompt(script):
    """One token: the same as forward. More: what the last block and the head leave out."""
    roofline = script("roofline")
    assert roofline.next_logits(CONFIG, [1]) == roofline.forward(CONFIG, [1])
    whole, last = roofline.forward(CONFIG, [9]), roofline.next_logits(CONFIG, [9])
    width, inner = CONFIG.n_embd, CONFIG.inner
    left_out = 2 * 8 * (width * width + width * width + 2 * width * inner + width * CONFIG.vocab_size)
    assert whole.flops - last.flops == left_out + 4 * width * sum(range(1, 9))
    assert whole.bytes == last.bytes


def test_work(script):
    work = script("roofline").Work(flops=6e9, bytes=1e9)
    assert work.seconds(peak=2, bandwidth=10) == 3 and work.bound(2, 10) == "compute"
    assert work.seconds(peak=100, bandwidth=10) == 0.1 and work.bound(100, 10) == "memory"


# ---- the machine's limits ---------------------------------------------------------------------------


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_limits(tmp_path):
    output = tmp_path / "limits.json"
    done = run("limits", "--quick", "--threads", "1,2", "--output", output)
    assert done.returncode == 0, done.stderr
    found = {row["limit"]: row for row in json.loads(output.read_text())["rows"]}
    isa = next(name for name in found if name.startswith("fma/")).split("/")[1]
    for name in (f"fma/{isa}/1", f"fma/{isa}/2", "read/l2/1", "read/dram-4k/2", "read/dram-2m/2"):
        check_figures(found[name])
    assert found["read/l2/1"]["high"] > found["read/dram-4k/1"]["low"]


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_limits_refuse_nonsense(script):
    limits = script("limits").Limits()
    try:
        for request, message in (
            ("", "empty request"),
            ("rob bank", "no such request"),
            ("fma", "wrong number of words"),
            ("fma mmx 1 0.01", "ISA"),
            (f"fma {limits.isas[-1]} 0 0.01", "THREADS"),
            (f"read {limits.isas[-1]} 3k 1024 1 0.01", "PAGES"),
            (f"read {limits.isas[-1]} 4k 1000 1 0.01", "BYTES"),
        ):
            with pytest.raises(script("limits").NoLimits, match=message):
                limits.ask(request)
        assert limits.ask(f"divide {limits.isas[0]} 1 0.001")["rate"] > 0
        assert limits.level_of(1, 1) == "l2" and limits.level_of(1 << 50, 1) == "dram-2m"
        sizes = [limits.working_set(level, 2) for level in ("l2", "l3", "dram-4k")]
        assert sizes == sorted(sizes) and sizes[2] > limits.caches["l3"]
    finally:
        limits.close()
    with pytest.raises(script("limits").NoLimits, match="its process has ended"):
        script("limits").Limits.ask(
            SimpleNamespace(
                process=subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ),
            "isas",
        )


@pytest.mark.skipif(not HAS_COMPILER or os.uname().machine != "x86_64", reason="reads x86-64 assembler")
def test_the_loops_of_the_limits_are_what_they_say(script, tmp_path):
    """Fused multiply-adds of each width, chains in registers: as many as CHAINS says."""
    limits = script("limits")
    listing = tmp_path / "limits.s"
    subprocess.run(["cc", *limits.FLAGS, "-S", limits.SOURCE, "-o", listing], check=True)
    text = listing.read_text()
    for isa, register, chains in (("avx2", "ymm", 14), ("avx512", "zmm", 24)):
        body = text.split(f"\n{isa}_fma:", 1)[1].split(".size", 1)[0]
        fused = [
            line for line in body.splitlines() if "vfmadd" in line and register in line and "(" not in line
        ]
        assert len(fused) == chains


def test_without_a_compiler_there_are_no_limits(script):
    with pytest.raises(script("limits").NoLimits, match="no C compiler 'no-such-cc'"):
        script("limits").Limits("no-such-cc")


def test_cache_sizes(script, tmp_path):
    sizes = script("limits").cache_sizes
    assert sizes(tmp_path) == {"l2": 1 << 20, "l3": 32 << 20}
    for index, level, size in (("index0", "1", "32K"), ("index2", "2", "1280K"), ("index3", "3", "48M")):
        (tmp_path / index).mkdir()
        (tmp_path / index / "level").write_text(level + "\n")
        (tmp_path / index / "size").write_text(size + "\n")
    (tmp_path / "index4").mkdir()
    assert sizes(tmp_path) == {"l2": 1280 << 10, "l3": 48 << 20}


def test_a_meter_takes_the_mean_around_each_round(script):
    values = iter([10.0, 20.0, 40.0])
    meter = script("limits").Meter(SimpleNamespace(measure=lambda *_: next(values)), ["fma/x/1", "fma/x/1"])
    for _ in range(3):
        meter.take()
    assert meter.during("fma/x/1") == [15.0, 30.0]
    assert meter.summary()["fma/x/1"]["median"] == 20.0
    work = script("roofline").Work(flops=30e6, bytes=0)
    row = script("bench").against_roofline(work, [4.0, 2.0], meter, "fma/x/1", None)
    assert row["share"]["rounds"] == [0.5, 0.5] and row["roofline"] == 1.5 and row["bound"] == "compute"


# ---- instructions ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_instructions_of_a_function(script):
    rows = script("rows")
    for isa in script("bench").isas():
        gelu, exp = rows.instructions(isa, "v_gelu_tanh"), rows.instructions(isa, "v_exp")
        assert gelu[1] == 1 and exp[1] == 0
        assert 10 < exp[0] < gelu[0] < 100


def test_no_kernel_needs_more_instructions(script, capsys):
    instructions = script("instructions")
    code = instructions.main([])
    said = capsys.readouterr()
    if code == 2:
        pytest.skip(said.err.strip())
    assert code == 0, said.err + said.out


def test_compare_instructions(script):
    compare = script("instructions").compare
    recorded = {"avx2": {"exp": 1000, "softmax": 1000}}
    lines, worse = compare(recorded, {"avx2": {"exp": 1020, "softmax": 1021, "new": 5}}, 0.02)
    assert [line[-1] for line in lines] == ["+2.0 %", "+2.1 %", "+0.0 %"]
    assert worse == ["avx2 softmax: 1021 instructions, 1000 were recorded"]
    assert compare(recorded, {"avx2": {"exp": 1099}}, 0.10)[1] == []


# ---- comparing two results ------------------------------------------------------------------------------


def a_result(*rows, better="less"):
    return {"bench": "gemm", "better": better, "rows": list(rows)}


def a_row(name, median, spread=0.01, **more):
    return {"layer": name, "median": median, "q1": median * (1 - spread), "q3": median * (1 + spread), **more}


@pytest.fixture
def compared(tmp_path):
    """compare.py on two results, or on text: exit code and what it said."""

    def run_it(a, b, *options):
        for name, content in (("a.json", a), ("b.json", b)):
            (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
        done = run("compare", tmp_path / "a.json", tmp_path / "b.json", *options)
        return done.returncode, done.stdout + done.stderr

    return run_it


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (a_row("x", 1.0), a_row("x", 1.0), 0),
        (a_row("x", 1.0), a_row("x", 1.04), 0),  # within the tolerance
        (a_row("x", 1.0), a_row("x", 1.2), 1),
        (a_row("x", 1.0), a_row("x", 0.5), 0),  # faster
        (a_row("x", 1.0, 0.2), a_row("x", 1.2, 0.2), 0),  # within the spread
        (a_row("x", 1.0), {"layer": "x", "error": "gone"}, 1),
        ({"layer": "x", "error": "gone"}, a_row("x", 1.0), 0),
        # The machine was slower, the share of what it gave is the same; and the other way round.
        (a_row("x", 1.0, share=a_row("", 0.8)), a_row("x", 2.0, share=a_row("", 0.8)), 0),
        (a_row("x", 1.0, share=a_row("", 0.8)), a_row("x", 1.0, share=a_row("", 0.6)), 1),
    ],
)
def test_compare(compared, before, after, code):
    got, said = compared(a_result(before, a_row("same", 2.0)), a_result(after, a_row("same", 2.0)))
    assert got == code, said
    assert ("WORSE" in said) == bool(code)
    assert f"2 rows compared, {code} worse" in said


def test_compare_options(compared):
    slower = a_result(a_row("x", 1.0)), a_result(a_row("x", 1.2))
    assert compared(*slower, "--tolerance", "0.3")[0] == 0
    assert compared(*slower, "--tolerance", "2")[0] == 2
    more = a_result(a_row("x", 1.0), better="more"), a_result(a_row("x", 1.2), better="more")
    assert compared(*more)[0] == 0 and compared(*reversed(more))[0] == 1


def test_compare_counts_what_only_one_has(compared):
    code, said = compared(a_result(a_row("x", 1.0), a_row("y", 1.0)), a_result(a_row("x", 1.0)))
    assert code == 0
    assert "1 rows compared, 0 worse; only in A: 1, only in B: 0" in said


def broken(**changes):
    result = copy.deepcopy(a_result(a_row("x", 1.0)))
    for name, value in changes.items():
        (result if name in result else result["rows"][0])[name] = value
    return result


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("", "Expecting value"),
        ("[1]", "expected an object with a list of rows"),
        ("{}", "expected an object with a list of rows"),
        (broken(rows=3), "expected an object with a list of rows"),
        (broken(rows=[3]), "expected an object with a list of rows"),
        (broken(better="bigger"), 'expected "less" or "more", got \'bigger\''),
        (broken(median=None), "row 0: median: expected a number above 0, got None"),
        (broken(median="fast"), "got 'fast'"),
        (broken(median=-1.0), "got -1.0"),
        (broken(median=float("nan")), "got nan"),
        (broken(q1=5.0), "the median is not between the quartiles"),
        (broken(share=3), "median: expected a number above 0, got None"),
        (a_result(a_row("x", 1.0), a_row("x", 2.0)), "row 1 is there twice: layer x"),
        (a_result(a_row("other", 1.0)), "has no row in common"),
        (broken(bench="rows"), "expected a result of gemm, got one of rows"),
    ],
)
def test_compare_refuses(compared, wrong, message):
    code, said = compared(a_result(a_row("x", 1.0)), wrong)
    assert code == 2
    assert message in said
    assert "b.json" in said


def test_compare_needs_its_files(compared, tmp_path):
    done = run("compare", tmp_path / "none.json", tmp_path / "none.json")
    assert done.returncode == 2
    assert "No such file" in done.stderr


# ---- pictures ------------------------------------------------------------------------------------------


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
    assert "no forward.png" in done.stderr and "no roofline.png" in done.stderr
    assert not list(tmp_path.iterdir())
