# SPDX-License-Identifier: Apache-2.0
"""Side-by-side measurement: engines in processes of their own, asked in turn, compared round by round.

    Worker      one engine in one process (worker.py), which may be another interpreter's
    interleave  rounds of questions: A B C, then B C A, ..., so that a slow spell of the machine meets all
    summarize   median of the rounds, lowest and highest round, ratio to the first engine in the same round
    machine     what it was measured on
    write       perf/results/BENCH-CPU.json

An engine's answer is judged before it is timed (`relative_error`): the time of a wrong answer says nothing.
"""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
REST_SECONDS = 0.25  # idle OpenMP threads of some engines spin for 0.2 s before they sleep
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class EngineError(Exception):
    """An engine could not do what it was asked."""


class Worker:
    """An engine in a process of its own.

    Parameters
    ----------
    engine : str
        NAME of a module NAME_engine, in perf/engines or on PYTHONPATH.
    threads : int
        How many it computes with.
    python : str, optional
        The interpreter it runs in; None means this one. It needs NumPy and the engine's own packages.
    """

    def __init__(self, engine, threads, python=None):
        self.name = engine
        self.process = subprocess.Popen(
            [python or sys.executable, HERE / "worker.py", engine, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=worker_environment(os.environ, threads),
        )

    def ask(self, do, **request):
        """Send one request and return the answer, or raise EngineError with the engine's own message."""
        try:
            print(json.dumps({"do": do, **request}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def close(self):
        """End the process: it leaves when its input ends."""
        self.process.communicate()


def worker_environment(environment, threads):
    """A copy for a worker: the number of threads set, and no OPENBLAS_* that would hobble a peer."""
    kept = {name: value for name, value in environment.items() if not name.startswith("OPENBLAS_")}
    return {**kept, **dict.fromkeys(THREAD_VARIABLES, str(threads))}


def relative_error(got, want):
    """The largest difference in standard deviations of what is wanted; inf for a wrong shape or a NaN."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - want).max() / want.std())


def interleave(workers, ask, rounds, rest=REST_SECONDS):
    """Ask every worker once a round, each round starting one worker later.

    Parameters
    ----------
    workers : list of Worker
    ask : function of a Worker
        Its result is kept. When it raises EngineError, the worker is not asked again.
    rounds : int
    rest : float
        Seconds of silence after each answer.

    Returns
    -------
    answers : dict of str to list
        Of the workers that never failed.
    failures : dict of str to str
        What the others said.
    """
    answers = {worker.name: [] for worker in workers}
    failures = {}
    for turn in range(rounds):
        first = turn % len(workers)
        for worker in workers[first:] + workers[:first]:
            if worker.name not in failures:
                try:
                    answers[worker.name].append(ask(worker))
                except EngineError as error:
                    failures[worker.name] = str(error)
                time.sleep(rest)
    return {name: kept for name, kept in answers.items() if name not in failures}, failures


def summarize(rounds):
    """Turn {engine: [figure of each round]} into {engine: {median, low, high, ratio, rounds}}.

    ratio is the median over the rounds of this engine's figure over the first engine's in the same round: for
    times, above 1 says that the first engine is faster.
    """
    base = next(iter(rounds.values()), None)
    return {
        name: {
            "median": statistics.median(figures),
            "low": min(figures),
            "high": max(figures),
            "ratio": statistics.median(own / other for own, other in zip(figures, base, strict=True)),
            "rounds": figures,
        }
        for name, figures in rounds.items()
    }


def machine():
    """Describe this machine: CPU (of /proc/cpuinfo), processors allowed, system, load of the last minute."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    info = dict(re.findall(r"^([^\t:]+?)\s*: (.*)$", text.partition("\n\n")[0], re.MULTILINE))
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        **{key: int(info[key]) for key in ("cpu family", "model", "stepping") if info.get(key, "").isdigit()},
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def slug(cpu):
    """A CPU's name for a file name: "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz" gives intel-xeon-gold-6330."""
    name = re.sub(r"\((R|TM)\)|\bCPU\b|@.*", " ", cpu, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "cpu"


def write(path, bench, result):
    """Write a result as JSON, with the bench's name and the time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    path.write_text(json.dumps({"bench": bench, "when": when, **result}, indent=1) + "\n")


def table(head, rows):
    """A Markdown table, padded so that it reads well as it is."""
    lines = [list(map(str, line)) for line in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def number(value):
    """A figure with three digits."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
