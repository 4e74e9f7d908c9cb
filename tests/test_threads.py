# SPDX-License-Identifier: Apache-2.0
"""How many threads compute: the default, what overrides it, forks, and a limit set from outside."""

import os
import sys

import numpy as np
import pytest

import gpt2cy
from gpt2cy.kernels import threads

REPORT = "import gpt2cy; print(gpt2cy.get_num_threads())"
serial = pytest.mark.skipif(threads.openmp_version() == 0, reason="a serial build has one thread")
linux = pytest.mark.skipif(sys.platform != "linux", reason="cgroups and affinity as Linux has them")


@serial
@pytest.mark.parametrize("n", [1, 2, 256, np.int8(3)])
def test_a_chosen_number_is_kept(n):
    gpt2cy.set_num_threads(n)
    assert gpt2cy.get_num_threads() == n
    gpt2cy.set_num_threads(None)
    assert gpt2cy.get_num_threads() <= (os.cpu_count() or 1)


@serial
def test_a_refused_number_changes_nothing():
    gpt2cy.set_num_threads(3)
    for n in (0, 257, "2", 2.0):
        with pytest.raises((TypeError, ValueError)):
            gpt2cy.set_num_threads(n)
    assert gpt2cy.get_num_threads() == 3


@serial
@pytest.mark.parametrize("text, n", [("1", "1"), ("2", "2"), ("256", "256"), (" 3 ", "3")])
def test_the_environment_chooses(python, text, n):
    assert python(REPORT, GPT2CY_NUM_THREADS=text).split() == [n]


@pytest.mark.parametrize("text", ["0", "-1", "257", "abc", "2,1", "1.0", " "])
def test_the_environment_may_be_wrong(python, text):
    failed = python(REPORT, check=False, GPT2CY_NUM_THREADS=text)
    assert failed.returncode == 1
    assert f"ValueError: GPT2CY_NUM_THREADS: expected an integer from 1 to 256, got {text!r}" in failed.stderr


@serial
def test_openmps_own_limit_counts(python):
    assert python(REPORT, OMP_NUM_THREADS="1").split() == ["1"]
    assert python(REPORT, OMP_NUM_THREADS="abc").split() == python(REPORT).split()


@serial
@linux
def test_affinity_before_and_after_import(python):
    code = """
import os, sys
cpus = sorted(os.sched_getaffinity(0))
if sys.argv[1] == "before": os.sched_setaffinity(0, cpus[:1])
import gpt2cy
print(gpt2cy.get_num_threads(), len(cpus))
os.sched_setaffinity(0, cpus[:1]); print(gpt2cy.get_num_threads())
os.sched_setaffinity(0, cpus); print(gpt2cy.get_num_threads())
"""
    before = python(code, "before").split()
    assert [before[0], before[2]] == ["1", "1"]
    after = python(code, "after").split()
    assert after[2] == "1"
    assert after[0] == after[3]


def test_no_thread_starts_at_import(python):
    code = """
import threading, os, numpy
def count():
    tasks = "/proc/self/task"
    return len(os.listdir(tasks)) if os.path.isdir(tasks) else threading.active_count()
before = count()
import gpt2cy
model = gpt2cy.GPT(gpt2cy.GPTConfig(61, 12, 2, 1, 8), seed=0)
print(count() - before)
"""
    assert python(code).split() == ["0"]


@serial
@linux
@pytest.mark.parametrize("callers", [1, 2, 4])
def test_the_threads_of_the_process_are_bounded(python, callers):
    """THR-02: each Python thread that has called has a team of its own, and no call makes more of them."""
    code = """
import sys, threading, gpt2cy, numpy as np
def threads():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Threads:"))
callers = int(sys.argv[1])
before = threads()
gpt2cy.set_num_threads(4)
model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("small"), seed=0)
ids = np.zeros((2, 200), int)
def work():
    for _ in range(20): model(ids)
workers = [threading.Thread(target=work) for _ in range(callers)]
for worker in workers: worker.start()
most = 0
while any(worker.is_alive() for worker in workers):
    most = max(most, threads() - before)
print(most)
"""
    most = int(python(code, callers))
    assert 1 + 3 <= most <= callers * (1 + 3)  # one team at the least


# ---- cgroups


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def quota(tmp_path, membership):
    write(tmp_path / "membership", membership)
    return threads.cgroup_quota(str(tmp_path / "root"), str(tmp_path / "membership"))


@pytest.mark.parametrize(
    "text, expected",
    [
        ("100000 100000\n", 1),
        ("150000 100000\n", 2),
        ("50000 100000\n", 1),
        ("400000 100000\n", 4),
        ("max 100000\n", None),
        ("", None),
        ("nonsense\n", None),
        ("1000 100000\n", 1),
    ],
)
def test_version_2(tmp_path, text, expected):
    write(tmp_path / "root" / "pod" / "box" / "cpu.max", text)
    assert quota(tmp_path, "0::/pod/box\n") == expected


def test_version_2_takes_the_least_of_the_groups_above(tmp_path):
    write(tmp_path / "root" / "pod" / "cpu.max", "200000 100000\n")
    write(tmp_path / "root" / "pod" / "box" / "cpu.max", "max 100000\n")
    write(tmp_path / "root" / "other" / "cpu.max", "100000 100000\n")
    assert quota(tmp_path, "0::/pod/box\n") == 2
    assert quota(tmp_path, "0::/\n") is None
    write(tmp_path / "root" / "cpu.max", "300000 100000\n")  # what a container sees of itself
    assert quota(tmp_path, "0::/\n") == 3


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("limit, expected", [("250000\n", 3), ("100000\n", 1), ("-1\n", None), ("", None)])
def test_version_1(tmp_path, mount, limit, expected):
    write(tmp_path / "root" / mount / "box" / "cpu.cfs_quota_us", limit)
    write(tmp_path / "root" / mount / "box" / "cpu.cfs_period_us", "100000\n")
    write(tmp_path / "root" / "memory" / "box" / "cpu.max", "1000 100000\n")  # of another controller
    assert quota(tmp_path, f"5:memory:/elsewhere\n4:{mount}:/box\n1:name=systemd:/box\n") == expected


@pytest.mark.parametrize("membership", ["", "garbage", "0:", "\n\n", "0::/gone/away\n"])
def test_without_a_quota(tmp_path, membership):
    assert quota(tmp_path, membership) is None
    assert threads.cgroup_quota(str(tmp_path / "none"), str(tmp_path / "neither")) is None


# ---- processes


FORK = """
import hashlib, multiprocessing, sys
import numpy as np, gpt2cy
def run(_):
    return hashlib.sha256(model(ids).tobytes()).hexdigest(), gpt2cy.get_num_threads()
gpt2cy.set_num_threads(2)
model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("small"), seed=0)
ids = np.arange(256)[None] % 512
used = sys.argv[1] == "used"
if used: own = run(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    children = pool.map(run, range(4))
if not used: own = run(0)
print(*{digest == own[0] for digest, _ in children}, *{n for _, n in children}, own[1])
"""


@serial
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("used, child", [("used", "1"), ("unused", "2")])
def test_after_a_fork(python, used, child):
    """THR-01: a child of a process that had other threads computes alone; nobody hangs, bits are the same."""
    assert python(FORK, used, timeout=60, OPENBLAS_NUM_THREADS="1").split() == ["True", child, "2"]


@serial
def test_a_limit_from_outside(python):
    code = """
import threadpoolctl, gpt2cy, numpy as np
default = gpt2cy.get_num_threads()
with threadpoolctl.threadpool_limits(1):
    print(gpt2cy.get_num_threads())
    gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)(np.zeros((4, 128), int))
print(gpt2cy.get_num_threads() == default)
before = threadpoolctl.threadpool_info()
gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)(np.zeros((4, 128), int))
print(threadpoolctl.threadpool_info() == before)
"""
    pytest.importorskip("threadpoolctl")
    assert python(code).split() == ["1", "True", "True"]


@serial
@linux
@pytest.mark.parametrize("setting", [{"OMP_PROC_BIND": "close"}, {"OMP_PLACES": "cores"}])
def test_bound_threads_are_counted(python, setting):
    """OpenMP then binds the thread that loads it to one processor: that is not all there is."""
    assert python(REPORT, **setting).split() == python(REPORT).split()
