# SPDX-License-Identifier: Apache-2.0
"""What can this machine do at most? Multiply-adds a second, and bytes from each level of memory.

    python perf/limits.py --quick
    python perf/limits.py --threads 1,2

The loops are in limits.c, compiled by this machine's cc (or CC) when asked for, and run in a process of their
own. Other benches measure what they need before and after each of their rounds (`Meter`), since a shared
machine is not equally fast at all times: a share of the limit is a share of what the machine gave just then.

A limit's name is KIND/WHAT/THREADS:

    fma/avx512/2     GFLOP/s of that instruction set's multiply-adds (base: a product and a sum)
    divide/avx512/2  1e9 quotients a second
    read/dram-2m/2   GB/s read from l2, l3, dram-4k or dram-2m (pages of 4 KiB or 2 MiB), best instruction set
    copy/l2/2        GB/s read and written together; WHAT may also be the bytes of source and target together
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import harness

SOURCE = harness.HERE / "limits.c"
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=fast", "-pthread"]
LEVELS = ("l2", "l3", "dram-4k", "dram-2m")
MIB = 1 << 20
SECONDS, QUICK_SECONDS = 0.05, 0.01


class NoLimits(Exception):
    """They cannot be measured here; says why."""


class Limits:
    """limits.c in a process. `isas` are the instruction sets of this machine, best last.

    Parameters
    ----------
    compiler : str, optional
        None means the environment's CC, or cc.

    Raises
    ------
    NoLimits
        Where there is no C compiler, or it fails.
    """

    def __init__(self, compiler=None):
        compiler = compiler or os.environ.get("CC", "cc")
        if shutil.which(compiler.split()[0]) is None:
            raise NoLimits(f"no C compiler {compiler!r} here")
        self.folder = tempfile.TemporaryDirectory()
        program = Path(self.folder.name) / "limits"
        command = [*compiler.split(), *FLAGS, SOURCE, "-o", program]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            self.folder.cleanup()
            raise NoLimits(f"{compiler} cannot build limits.c: {built.stderr.strip()[-500:]}")
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.isas = self.ask("isas")["isas"]
        self.caches = cache_sizes()

    def ask(self, request):
        """Send one line, return the answer; NoLimits with its error."""
        try:
            print(request, file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": "its process has ended"}
        if "error" in answer:
            raise NoLimits(f"limits.c, asked {request!r}: {answer['error']}")
        return answer

    def measure(self, name, seconds=SECONDS):
        """One limit by its name."""
        kind, what, threads = name.split("/")
        if kind in ("fma", "divide"):
            return self.ask(f"{kind} {what} {threads} {seconds}")["rate"]
        total = int(what) if what.isdecimal() else self.working_set(what, int(threads))
        each = total // int(threads) // (2 if kind == "copy" else 1)
        pages = "4k" if what == "dram-4k" else "2m"
        each = max(1024, each // 1024 * 1024)
        return self.ask(f"{kind} {self.isas[-1]} {pages} {each} {threads} {seconds}")["rate"]

    def working_set(self, level, threads):
        """Bytes of all threads together that live in a level and in none above it.

        Half of each thread's second-level cache; a quarter of the third, which others may share, but four
        times the second; eight times the third, but at least 512 MiB.
        """
        l2, l3 = self.caches["l2"] * threads, self.caches["l3"]
        return {"l2": l2 // 2, "l3": max(4 * l2, l3 // 4)}.get(level, max(512 * MIB, 8 * l3))

    def level_of(self, nbytes, threads):
        """The level in which a working set of so many bytes stays from one call to the next."""
        if nbytes <= self.caches["l2"] * threads:
            return "l2"
        return "l3" if nbytes <= self.caches["l3"] else "dram-2m"

    def close(self):
        """End the process and remove the program."""
        self.process.communicate()
        self.folder.cleanup()


def cache_sizes(folder="/sys/devices/system/cpu/cpu0/cache"):
    """Bytes of the second- and third-level cache of the first processor; 1 and 32 MiB where not known."""
    sizes = {"l2": 1 * MIB, "l3": 32 * MIB}
    for index in sorted(Path(folder).glob("index*")):
        try:
            level = "l" + (index / "level").read_text().strip()
            text = (index / "size").read_text().strip()
            if level in sizes:
                sizes[level] = int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)
        except (OSError, ValueError, IndexError):
            continue
    return sizes


class Meter:
    """Some limits, measured whenever `take` is called: once before the first round and after each.

    Parameters
    ----------
    limits : Limits
    names : iterable of str
    seconds : float
        Of each measurement.
    """

    def __init__(self, limits, names, seconds=SECONDS):
        self.limits, self.names, self.seconds = limits, list(dict.fromkeys(names)), seconds
        self.taken = {name: [] for name in self.names}

    def take(self):
        for name in self.names:
            self.taken[name].append(self.limits.measure(name, self.seconds))

    def during(self, name):
        """The limit in each round: the mean of what was found before and after it."""
        taken = self.taken[name]
        return [(before + after) / 2 for before, after in itertools.pairwise(taken)]

    def summary(self):
        """{name: figures}."""
        return {name: harness.figures(taken) for name, taken in self.taken.items() if taken}


def main(argv=None):
    """Measure every limit for each number of threads; print them and write perf/results/limits-CPU.json."""
    parser = harness.parser(__doc__)
    args = harness.arguments(parser, argv, "limits")
    limits = Limits()
    names = [f"fma/{isa}/{n}" for isa in limits.isas for n in args.threads]
    names += [f"read/{level}/{n}" for level in LEVELS for n in args.threads]
    meter = Meter(limits, names, QUICK_SECONDS if args.quick else 4 * SECONDS)
    for _ in range(args.rounds):
        meter.take()
    limits.close()
    rows = [{"limit": name, **figures} for name, figures in meter.summary().items()]
    shown = [[row["limit"], harness.spread(row)] for row in rows]
    print(harness.table(["limit", "GFLOP/s or GB/s: median (low-high)"], shown))
    harness.finish(args, {"better": "more", "caches": limits.caches, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
