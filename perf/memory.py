# SPDX-License-Identifier: Apache-2.0
"""What do huge pages bring, and is the memory plan right?

    python perf/memory.py --quick

Decoding reads every weight for one token, so it shows the bandwidth of memory: two processes, one with
GPT2CY_HUGE_PAGES=1 and one with 0 (the variable is read at import), take turns. Each is compared with what
reading in pages of its own kind reaches, and says how much of it lies in huge pages.

The plan (`GPTConfig.memory_plan`) is compared with the growth of this process's resident memory: weights when
the model is made, cache and workspace and logits at the peak of a call.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path

import bench
import harness
import numpy as np
import resident
import roofline
import shapes

import gpt2cy
from gpt2cy.kernels import dispatch

PAST = 16
PAGES = {"1": "dram-2m", "0": "dram-4k"}
TOKENS = 64


def plan_against_use(config):
    """[[purpose, planned, used]] in bytes; the cache holds what the call has written."""
    plan = config.memory_plan(1, TOKENS)
    tokens = np.arange(TOKENS) % config.vocab_size
    gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)([0])  # what is loaded once is nobody's memory
    model, weights = resident.growth(lambda: gpt2cy.GPT(config, seed=0))
    call = resident.peak(lambda: (cache := model.new_cache(), model(tokens, cache)))
    rest = sum(plan[purpose] for purpose in ("cache", "workspace", "logits"))
    return [["weights", plan["weights"], weights], ["cache, workspace, logits", rest, call]]


def decode(run, config, threads):
    """The rows of decoding with and without huge pages."""
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, (1, PAST + 1))
    weights = shapes.weights(config)
    workers = []
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "weights.npz", **weights)
        np.save(Path(folder) / "tokens.npy", tokens)
        files = {"call": "decode", "tokens": f"{folder}/tokens.npy"}
        try:
            answers = []
            for setting in PAGES:
                worker = harness.Worker("gpt2cy", threads, name=setting, GPT2CY_HUGE_PAGES=setting)
                workers.append(worker)
                worker.ask("load", weights=f"{folder}/weights.npz", config=dataclasses.asdict(config))
                worker.ask("answer", **files, output=f"{folder}/answer.npy")
                answers.append(np.load(f"{folder}/answer.npy"))
            model = gpt2cy.GPT(config)
            model.load_state_dict(weights)
            want = model.next_logits(tokens)
            if not all(np.array_equal(answer, want) for answer in answers):
                sys.exit("huge pages change the logits: not timed")
            rows = run.measure([case_of(worker, config, threads, files) for worker in workers])
            for row, worker in zip(rows, workers, strict=True):
                row["in_huge_pages"] = worker.ask("huge_pages")["bytes"]
                row["ratio"] = row["median"] / rows[0]["median"]
        finally:
            for worker in workers:
                worker.close()
    return rows


def case_of(worker, config, threads, files):
    return bench.Case(
        {"huge_pages": worker.name, "past": PAST, "threads": threads},
        None,
        roofline.decode(config, 1, PAST),
        bench.peak(dispatch.isa(), threads),
        f"read/{PAGES[worker.name]}/{threads}",
        timer=lambda seconds: worker.ask("time", **files, seconds=seconds)["ms"],
    )


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--model", choices=shapes.MODELS, help="default: gpt2")
    args = harness.arguments(parser, argv, "memory")
    config = shapes.MODELS[args.model or ("medium" if args.quick else "gpt2")]
    plan = plan_against_use(config) if resident.AVAILABLE else []
    if plan:
        lines = [[purpose, *(harness.number(n / 2**20) for n in sizes)] for purpose, *sizes in plan]
        print(harness.table(["MiB", "planned", "used"], lines), end="\n\n")
    lines = []
    with bench.limits_or_none() as machine:
        run = bench.Bench(args, machine)
        for threads in args.threads:
            for row in decode(run, config, threads):
                rate = f"{harness.number(row['bytes'] / row['median'] / 1e6)} GB/s"
                huge = "-" if row["in_huge_pages"] is None else f"{row['in_huge_pages'] / 2**20:.0f} MiB"
                shown = [harness.spread(row), rate, bench.share(row), huge]
                lines.append([row["huge_pages"], threads, *shown])
    head = ["GPT2CY_HUGE_PAGES", "threads", "ms a token", "speed", "of the roofline", "in huge pages"]
    print(harness.table(head, lines))
    plan = [{"purpose": purpose, "planned": planned, "used": used} for purpose, planned, used in plan]
    run.finish(model=dataclasses.asdict(config), plan=plan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
