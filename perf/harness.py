# SPDX-License-Identifier: Apache-2.0
"""Side-by-side measurement: engines in processes of their own, asked in turn, compared round by round.

    Worker      one engine in one process (worker.py), which may be another interpreter's
    interleave  rounds of questions: A B C, then B C A, ..., so that a slow spell of the machine meets all
    time_ms     one function in this process: the median of its calls
    figures     median of the rounds, quartiles, lowest and highest round
    summarize   the same of several engines, and the ratio to the first one in the same round
    parser, arguments, finish    the command line that all benches share, and perf/results/BENCH-CPU.json

An engine's answer is judged before it is timed (`relative_error`): the time of a wrong answer says nothing.
"""

import argparse
import json
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
REST_SECONDS = 0.25  # idle OpenMP threads of some engines spin for 0.2 s, unless they are stopped
IN_PROCESS_REST = 0.005  # GNU OpenMP's threads, the only ones in a process of ours, sleep sooner
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class EngineError(Exception):
    """An engine could not do what it was asked."""


class Worker:
    """An engine in a process of its own, which is stopped while nobody asks: its threads may be spinning.

    Parameters
    ----------
    engine : str
        NAME of a module NAME_engine, in perf/engines or on PYTHONPATH.
    threads : int
        How many it computes with; 0 leaves the choice to the engine.
    python : str, optional
        The interpreter it runs in; None means this one. It needs NumPy and the engine's own packages.
    name : str, optional
        What it is called in tables and results; None means the engine's.
    processors : iterable of int, optional
        Those that it may use, where the system can say so.
    **environment
        Variables on top of this process's.
    """

    def __init__(self, engine, threads, python=None, name=None, processors=None, **environment):
        self.name = name or engine
        self.process = subprocess.Popen(
            [python or sys.executable, HERE / "worker.py", engine, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**worker_environment(os.environ, threads), **environment},
            preexec_fn=processors and (lambda: os.sched_setaffinity(0, processors)),
        )

    def ask(self, do, **request):
        """Send one request and return the answer, or raise EngineError with the engine's own message."""
        self.signal("SIGCONT")
        try:
            print(json.dumps({"do": do, **request}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        self.signal("SIGSTOP")
        answer = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def signal(self, name):
        """Send a signal, where the system has it and the process is there."""
        if hasattr(signal, name):
            self.process.send_signal(getattr(signal, name))

    def close(self):
        """End the process: it leaves when its input ends."""
        self.signal("SIGCONT")
        self.process.communicate()


def worker_environment(environment, threads):
    """A copy for a worker: the number of threads set, and no OPENBLAS_* that would hobble a peer."""
    kept = {name: value for name, value in environment.items() if not name.startswith("OPENBLAS_")}
    return {**kept, **dict.fromkeys(THREAD_VARIABLES, str(threads))} if threads else kept


def relative_error(got, want):
    """The largest difference in standard deviations of what is wanted; inf for a wrong shape or a NaN."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - want).max() / want.std())


def interleave(workers, ask, rounds, rest=REST_SECONDS, around=None):
    """Ask every worker once a round, each round starting one worker later.

    Parameters
    ----------
    workers : list of Worker
        Or of anything that has a name.
    ask : function of a Worker
        Its result is kept. When it raises EngineError, the worker is not asked again.
    rounds : int
    rest : float
        Seconds of silence after each answer.
    around : function, optional
        Called before the first round and after each: `limits.Meter.take`.

    Returns
    -------
    answers : dict of str to list
        Of the workers that never failed.
    failures : dict of str to str
        What the others said.
    """
    answers = {worker.name: [] for worker in workers}
    failures = {}
    if around:
        around()
    for turn in range(rounds):
        first = turn % len(workers)
        for worker in workers[first:] + workers[:first]:
            if worker.name not in failures:
                try:
                    answers[worker.name].append(ask(worker))
                except EngineError as error:
                    failures[worker.name] = str(error)
                time.sleep(rest)
        if around:
            around()
    return {name: kept for name, kept in answers.items() if name not in failures}, failures


def time_ms(call, seconds, least=1e-4):
    """The median milliseconds of a function without arguments, called for so many seconds after a warm-up.

    Calls shorter than `least` seconds are timed several together, so that the clock does not count.
    """
    call()
    start = time.perf_counter()
    call()
    together = max(1, int(least / max(time.perf_counter() - start, 1e-9)))
    samples = []
    begin = time.perf_counter()
    while not samples or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(together):
            call()
        samples.append(1e3 * (time.perf_counter() - start) / together)
    return statistics.median(samples)


def figures(rounds):
    """[figure of each round] -> {median, q1, q3, low, high, rounds}; q1 and q3 are the quartiles."""
    q1, _, q3 = statistics.quantiles(rounds, n=4, method="inclusive") if len(rounds) > 1 else rounds * 3
    median = statistics.median(rounds)
    return {"median": median, "q1": q1, "q3": q3, "low": min(rounds), "high": max(rounds), "rounds": rounds}


def summarize(rounds):
    """Turn {engine: [figure of each round]} into {engine: {figures, ratio}}.

    ratio is the median over the rounds of this engine's figure over the first engine's in the same round: for
    times, above 1 says that the first engine is faster.
    """
    base = next(iter(rounds.values()), None)
    return {
        name: {
            **figures(own),
            "ratio": statistics.median(mine / other for mine, other in zip(own, base, strict=True)),
        }
        for name, own in rounds.items()
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


def processor(machine):
    """Its name and, where known, its generation, which some makers' names leave out."""
    generation = [f"{key.split()[-1]} {machine[key]}" for key in ("cpu family", "model") if key in machine]
    return f"{machine['cpu']} ({', '.join(generation)})" if generation else machine["cpu"]


def slug(machine):
    """For a file name: "Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz" may give intel-xeon-gold-6330-6-106."""
    name = re.sub(r"\((R|TM)\)|\bCPU\b|@.*", " ", machine["cpu"], flags=re.IGNORECASE)
    words = [name.lower(), *(str(machine[key]) for key in ("cpu family", "model") if key in machine)]
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words)).strip("-") or "cpu"


def kept(bench, folder=RESULTS):
    """[(path, result)] of a bench, one for each machine that it was run on, the newest first."""
    found = [(path, json.loads(path.read_text())) for path in folder.glob(f"{bench}-*.json")]
    return sorted(found, key=lambda pair: pair[1]["when"], reverse=True)


def commit():
    """The commit that is checked out, "+" if files differ from it; None where git does not know."""
    try:
        found = [
            subprocess.run(["git", "-C", HERE, *question], capture_output=True, text=True, check=True).stdout
            for question in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "-uno"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return None
    return found[0].strip() + ("+" if found[1].strip() else "")


def write(path, bench, result):
    """Write a result as JSON, with the bench's name, the time, and the commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    head = {"bench": bench, "when": when, "commit": commit(), "machine": machine()}
    path.write_text(json.dumps({**head, **result}, indent=1) + "\n")


def paragraph(text):
    """Text in lines as wide as those of our pages; no file's name is broken."""
    return textwrap.fill(text, 120, break_on_hyphens=False)


def table(head, rows):
    """A Markdown table, padded so that it reads well as it is."""
    lines = [list(map(str, line)) for line in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def number(value):
    """A figure with three digits."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def spread(row):
    """Median, lowest and highest round, for a table."""
    low, median, high = (number(row[key]) for key in ("low", "median", "high"))
    return f"{median} ({low}-{high})"


def parser(doc):
    """A command line with the options that every bench has."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--threads",
        type=numbers,
        metavar="N,N",
        help="how many compute (default: 1 and the default of gpt2cy)",
    )
    made.add_argument("--rounds", type=positive, help="turns that each case has (default: 11)")
    made.add_argument("--quick", action="store_true", help="a glance: 3 rounds, few cases, no file")
    made.add_argument(
        "--output", type=Path, metavar="FILE", help="write the JSON here instead, also if quick"
    )
    return made


def arguments(made, argv, bench):
    """Read the command line, and fill in what --quick and the machine decide."""
    import gpt2cy

    args = made.parse_args(argv)
    args.bench = bench
    given = [re.sub(r"/\S*/", "", argument) for argument in (sys.argv[1:] if argv is None else argv)]
    args.command = shlex.join(["python", f"perf/{bench}.py", *given])  # whose folders are nobody's business
    args.threads = args.threads or sorted({1, gpt2cy.get_num_threads()})
    args.rounds = args.rounds or (3 if args.quick else 11)
    args.seconds = 0.02 if args.quick else 0.1
    if args.output is None and not args.quick:
        args.output = RESULTS / f"{bench}-{slug(machine())}.json"
    return args


def finish(args, result):
    """Write what was measured, if it is to be written: what was asked first, then the rest."""
    if args.output:
        asked = {"command": args.command, "threads": args.threads, "dtype": "float32", "rounds": args.rounds}
        write(args.output, args.bench, {**asked, **result})
        print(f"\nwrote {args.output}")


def names(text):
    """Words of a list with commas, each once."""
    chosen = [name for name in text.split(",") if name]
    if not chosen:
        raise argparse.ArgumentTypeError("expected at least one name")
    return list(dict.fromkeys(chosen))


def one_of(known):
    """The same, each of them one of `known`."""

    def parse(text):
        chosen = names(text)
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return chosen

    return parse


def positive(text):
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def numbers(text):
    """Such numbers with commas."""
    return [positive(part) for part in text.split(",")]
