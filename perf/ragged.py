# SPDX-License-Identifier: Apache-2.0
"""What does it cost that prompts have different lengths? Beside a rectangle of as many tokens.

    python perf/ragged.py --quick

8 prompts of 3 to 200 tokens through `forward_many`, and as many tokens as a [8, T] array through `forward`.
The ragged batch has more pairs of a query and a key; both are given their share of their own roofline too.
The answers of the ragged batch are compared, to the bit, with those of each prompt alone.
"""

import itertools
import sys

import bench
import harness
import numpy as np
import roofline
import shapes

import gpt2cy
from gpt2cy.kernels import dispatch

LENGTHS = (3, 17, 45, 80, 104, 147, 180, 200)  # 776 tokens: 8 times 97


def batches(config):
    """The ragged batch and the rectangle."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, config.vocab_size, length) for length in LENGTHS]
    return prompts, rng.integers(0, config.vocab_size, (len(LENGTHS), sum(LENGTHS) // len(LENGTHS)))


def cases(run, name, threads):
    """The ragged batch and the rectangle on one model; checked."""
    config = shapes.MODELS[name]
    model = gpt2cy.GPT(config)
    model.load_state_dict(shapes.weights(config))
    prompts, rectangle = batches(config)
    for prompt, logits in zip(prompts, model.forward_many(prompts), strict=True):
        if not np.array_equal(logits, model(prompt)):
            sys.exit(f"{name}: a prompt of {len(prompt)} tokens has other logits in the ragged batch")
    peak = bench.peak(dispatch.isa(), threads)
    bandwidth = run.read(roofline.weight_bytes(config), threads)
    same = [rectangle.shape[1]] * len(rectangle)
    for kind, call, lengths in (
        ("ragged", lambda: model.forward_many(prompts), LENGTHS),
        ("rectangle", lambda: model(rectangle), same),
    ):
        fields = {"model": name, "batch": kind, "threads": threads}
        yield bench.Case(fields, call, roofline.forward(config, lengths), peak, bandwidth)


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--models", type=harness.one_of(shapes.MODELS), help="default: gpt2")
    args = harness.arguments(parser, argv, "ragged")
    args.models = args.models or (["small"] if args.quick else ["gpt2"])
    lines = []
    with bench.limits_or_none() as machine:
        run = bench.Bench(args, machine)
        for name, threads in itertools.product(args.models, args.threads):
            gpt2cy.set_num_threads(threads)
            rows = run.measure(list(cases(run, name, threads)))
            for row in rows:
                row["ratio"] = row["median"] / rows[1]["median"]
                shown = [harness.spread(row), f"x{row['ratio']:.2f}", bench.share(row)]
                lines.append([name, row["batch"], threads, *shown])
    gpt2cy.set_num_threads(None)
    print(harness.table(["model", "batch", "threads", "ms", "ratio", "of the roofline"], lines))
    run.finish(lengths=list(LENGTHS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
