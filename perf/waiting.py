# SPDX-License-Identifier: Apache-2.0
"""What do waiting threads cost, and what do the settings of OpenMP do to it? See docs/threads.md.

    python perf/waiting.py --quick

A small model on 16 tokens, in three ways: one call after the other; a call each 10 ms, as a server between
requests, with the processors that it keeps busy meanwhile; beside a program that keeps one processor busy
(the mean there, since few calls are slow, but very). Every setting is a process of its own, once a round, and
must give the same bits.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import bench
import harness
import numpy as np
import shapes

import gpt2cy

MODEL = shapes.MODELS["small"]
TOKENS = np.arange(16)
SETTINGS = {
    "default": {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "OMP_WAIT_POLICY=active": {"OMP_WAIT_POLICY": "active"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "OMP_PROC_BIND=true": {"OMP_PROC_BIND": "true"},
    "GPT2CY_NUM_THREADS=1": {"GPT2CY_NUM_THREADS": "1"},
    "twice the processors": {"GPT2CY_NUM_THREADS": str(2 * (os.cpu_count() or 1))},
}
IN_A_ROW, PAUSED, BESIDE = WAYS = "in a row", "each 10 ms", "beside a busy program"
PAUSE = 0.01
OURS = ("OMP_", "GOMP_", "GPT2CY_NUM_THREADS")  # variables of this process that a setting must not inherit


def calls(model, seconds, pause=0.0):
    """([milliseconds of each call], processor seconds a second) over some time."""
    times, cpu, start = [], time.process_time(), time.perf_counter()
    while not times or time.perf_counter() - start < seconds:
        time.sleep(pause)
        before = time.perf_counter()
        model(TOKENS)
        times.append(1e3 * (time.perf_counter() - before))
    return times, (time.process_time() - cpu) / (time.perf_counter() - start)


def measure(seconds, wanted):
    """What one process finds out about the setting that it was started with, once its answer is right."""
    model = gpt2cy.GPT(MODEL, seed=0)
    if not np.array_equal(model(TOKENS), np.load(wanted)):
        sys.exit("other logits; not timed")
    calls(model, seconds / 4)
    in_a_row, _ = calls(model, seconds)
    paused, processors = calls(model, seconds, PAUSE)
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        calls(model, seconds / 4)
        beside, _ = calls(model, seconds)
    finally:
        neighbour.kill()
        neighbour.wait()
    return {
        IN_A_ROW: statistics.median(in_a_row),
        PAUSED: statistics.median(paused),
        BESIDE: statistics.mean(beside),
        "processors": processors,
        "threads": gpt2cy.get_num_threads(),
    }


def rounds(args):
    """{setting: [what `measure` found, a round each]}."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    found = {name: [] for name in SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        wanted = f"{folder}/logits.npy"
        np.save(wanted, gpt2cy.GPT(MODEL, seed=0)(TOKENS))
        command = [sys.executable, __file__, "--one", wanted, "--seconds", str(args.seconds)]
        for _ in range(args.rounds):
            for name, setting in SETTINGS.items():
                done = subprocess.run(command, env=clean | setting, stdout=subprocess.PIPE, text=True)
                if done.returncode:
                    sys.exit(f"{name}: failed")
                found[name].append(json.loads(done.stdout))
    return found


def rows(found):
    """The result's rows: one for each setting and way of calling."""
    made = []
    for way in WAYS:
        figures = harness.summarize({name: [one[way] for one in taken] for name, taken in found.items()})
        for name, row in figures.items():
            fields = {"setting": name, "way": way, "threads": found[name][0]["threads"]}
            if way == PAUSED:
                fields["processors"] = statistics.median(one["processors"] for one in found[name])
            made.append({**fields, **row})
    return made


def table(result_rows):
    """A line for each setting, for this script and for docs/threads.md."""
    by_case = {(row["setting"], row["way"]): row for row in result_rows}
    lines = []
    for setting in dict.fromkeys(row["setting"] for row in result_rows):
        of = {way: by_case[setting, way] for way in WAYS}
        times = {way: harness.number(row["median"]) for way, row in of.items()}
        used = harness.number(of[PAUSED]["processors"])
        lines.append([setting, of[PAUSED]["threads"], times[IN_A_ROW], times[PAUSED], used, times[BESIDE]])
    return harness.table(["setting", "threads", IN_A_ROW, PAUSED, "processors used then", BESIDE], lines)


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--seconds", type=float, help="of each measurement (default: 0.4; 0.05 if quick)")
    parser.add_argument("--one", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    if chosen.one:
        print(json.dumps(measure(chosen.seconds, chosen.one)))
        return 0
    args = harness.arguments(parser, argv, "waiting")
    args.seconds = chosen.seconds or (0.05 if args.quick else 0.4)
    run = bench.Bench(args, None)
    run.rows = rows(rounds(args))
    print("milliseconds a call\n")
    print(table(run.rows))
    run.finish(model=asdict(MODEL), length=TOKENS.size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
