# SPDX-License-Identifier: Apache-2.0
"""What waiting threads cost, and what the settings of OpenMP do to it: python perf/waiting.py

Each setting runs in a process of its own, and calls a small model on 16 tokens: one call after the other; a
call each 10 ms, as a server between requests; and beside a program that keeps one processor busy. See
docs/threads.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import gpt2cy
from gpt2cy.kernels import threads

sys.path.append(str(Path(__file__).resolve().parent))
import harness

SETTINGS = {
    "default": {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "OMP_WAIT_POLICY=active": {"OMP_WAIT_POLICY": "active"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "OMP_PROC_BIND=true": {"OMP_PROC_BIND": "true"},
    "GPT2CY_NUM_THREADS=1": {"GPT2CY_NUM_THREADS": "1"},
    "twice the processors": {"GPT2CY_NUM_THREADS": str(2 * (os.cpu_count() or 1))},
}
BUSY = "while True: pass"


def calls(model, tokens, seconds, pause=0.0):
    """(median and mean milliseconds of a call, processor seconds a second) over some time."""
    times, cpu, start = [], time.process_time(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        time.sleep(pause)
        before = time.perf_counter()
        model(tokens)
        times.append(time.perf_counter() - before)
    passed = time.perf_counter() - start
    return statistics.median(times) * 1e3, statistics.mean(times) * 1e3, (time.process_time() - cpu) / passed


def measure(seconds):
    """What one process finds out about the setting that it was started with."""
    model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("small"), seed=0)
    tokens = np.arange(16)
    calls(model, tokens, seconds / 4)
    found = {"threads": threads.get_num_threads()}
    found["in a row"], _, _ = calls(model, tokens, seconds)
    found["each 10 ms"], _, found["processors"] = calls(model, tokens, seconds, 0.01)
    neighbour = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        calls(model, tokens, seconds / 4)
        _, found["beside a busy program"], _ = calls(model, tokens, seconds)
    finally:
        neighbour.kill()
        neighbour.wait()
    return found


def main():
    """Run every setting, once a round, and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.4, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.seconds)))
        return
    ours = ("OMP_", "GOMP_", "GPT2CY_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, __file__, "--one", "--seconds", str(options.seconds)]
    found = {name: [] for name in SETTINGS}
    for _ in range(options.rounds):
        for name, setting in SETTINGS.items():
            done = subprocess.run(command, env=clean | setting, stdout=subprocess.PIPE, text=True, check=True)
            found[name].append(json.loads(done.stdout))
    head = ["setting", "threads", "in a row", "each 10 ms", "processors used then", "beside a busy program"]
    rows = []
    for name, rounds in found.items():
        medians = [statistics.median(figures[key] for figures in rounds) for key in rounds[0]]
        rows.append([name, medians[0], *map(harness.number, medians[1:])])
    print(f"milliseconds a call, medians of {options.rounds} rounds\n")
    print(harness.table(head, rows))


if __name__ == "__main__":
    main()
