# SPDX-License-Identifier: Apache-2.0
"""What do threads bring, and what disturbs them? One forward pass under different conditions.

    python perf/threads.py --quick
    python perf/threads.py --serial /path/to/a/tree/built/with/GPT2CY_OPENMP=0

Every condition is a process of its own, all take turns, and every one must give the same bits:

    team              all threads, nothing else running; the others are compared with it
    one               set_num_threads(1)
    OMP_NUM_THREADS=1 the variable, nothing set
    one processor     may use one processor alone, nothing set
    serial            the build without OpenMP that --serial names (a folder that holds the package gpt2cy)
    busy              as team, while another program computes on the second processor

Whether waiting threads spin or sleep is waiting.py's question; docs/threads.md says what follows from both.
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import bench
import harness
import numpy as np
import shapes

import gpt2cy

HOG = "import os\nos.sched_setaffinity(0, [{}])\nprint(flush=True)\nwhile True: pass"


class Hog:
    """Another program that keeps one processor busy."""

    def __init__(self, processor):
        code = HOG.format(processor)
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        self.process.stdout.readline()  # it runs

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def conditions(threads, serial):
    """{name: arguments of a Worker}."""
    found = {
        "team": {"threads": threads},
        "one": {"threads": 1},
        "OMP_NUM_THREADS=1": {"threads": 0, "OMP_NUM_THREADS": "1"},
    }
    if hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        found["one processor"] = {"threads": 0, "processors": processors[:1]}
        if len(processors) > 1:
            found["busy"] = {"threads": threads}
    if serial:
        found["serial"] = {"threads": 0, "PYTHONPATH": str(Path(serial).resolve())}
    return found


def start(config, found, folder):
    """{name: worker}, each with the model loaded and its logits compared."""
    weights, tokens = shapes.weights(config), np.load(folder / "tokens.npy")
    np.savez(folder / "weights.npz", **weights)
    model = gpt2cy.GPT(config)
    model.load_state_dict(weights)
    want = model(tokens)
    workers = []
    for name, options in found.items():
        worker = harness.Worker("gpt2cy", name=name, **options)
        workers.append(worker)
        versions = worker.ask("load", weights=str(folder / "weights.npz"), config=dataclasses.asdict(config))
        if name == "serial" and versions["versions"]["openmp"]:
            sys.exit("--serial: that build has OpenMP")
        worker.ask(
            "answer", call="forward", tokens=str(folder / "tokens.npy"), output=str(folder / "out.npy")
        )
        if not np.array_equal(np.load(folder / "out.npy"), want):
            sys.exit(f"{name}: other logits; not timed")
    return workers


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--model", choices=shapes.MODELS, help="default: gpt2")
    parser.add_argument("--length", type=harness.positive, default=64, help="tokens (default: %(default)s)")
    parser.add_argument(
        "--serial", metavar="FOLDER", help="holds a gpt2cy that was built with GPT2CY_OPENMP=0"
    )
    args = harness.arguments(parser, argv, "threads")
    threads = max(args.threads)
    config = shapes.MODELS[args.model or ("small" if args.quick else "gpt2")]
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (1, args.length))
    workers = []
    with tempfile.TemporaryDirectory() as folder:
        files = {"call": "forward", "tokens": f"{folder}/tokens.npy", "seconds": 2 * args.seconds}
        np.save(f"{folder}/tokens.npy", tokens)

        def ask(worker):
            if worker.name == "busy":
                with Hog(sorted(os.sched_getaffinity(0))[1]):
                    return worker.ask("time", **files)["ms"]
            return worker.ask("time", **files)["ms"]

        try:
            workers = start(config, conditions(threads, args.serial), Path(folder))
            rounds, failures = harness.interleave(workers, ask, args.rounds, 2 * harness.IN_PROCESS_REST)
        finally:
            for worker in workers:
                worker.close()
    if failures:
        sys.exit(f"failed: {failures}")
    figures = harness.summarize(rounds)
    run = bench.Bench(args, None)
    run.rows = [{"condition": name, "threads": threads, **found} for name, found in figures.items()]
    lines = [[row["condition"], harness.spread(row), f"x{row['ratio']:.2f}"] for row in run.rows]
    print(f"{args.length} tokens, {threads} threads\n")
    print(harness.table(["condition", "ms", "of the team's time"], lines))
    run.finish(model=dataclasses.asdict(config), length=args.length)
    return 0


if __name__ == "__main__":
    sys.exit(main())
