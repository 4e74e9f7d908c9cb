# SPDX-License-Identifier: Apache-2.0
"""What the scripts of perf/ share: workers, turns, figures, results, tables."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from running import PERF

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


def test_pages_show_the_newest_results(harness):
    done = subprocess.run([sys.executable, PERF / "tables.py", "--check"])
    assert done.returncode == 0, "run python perf/tables.py"
