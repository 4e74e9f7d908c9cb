# SPDX-License-Identifier: Apache-2.0
"""What does it cost to choose a token from 50,257 logits? Microseconds a row, for each way of choosing.

    python perf/sampling.py --quick

Two kinds of logits: "model" falls with the logarithm of the rank as those of a language model do (Zipf's law,
with some noise, in random order; 90 % of the probability lies on 35 ids), "flat" is a bell, of which
top_p = 0.9 keeps 30,657. All calls are `choose` of one step, `--rows` rows at once: rows are shared
out to threads, one row is one thread's.

The bound is the larger of what has to be read and what has to be computed: each logit once, from the level
of memory where the rows lie; and, where probabilities of all ids are needed (all but greedy and top_k), one
exp of each. Its instructions are counted in the assembler, as `rows.py` does. Finding where top_k or top_p
ends counts as nothing.
"""

import sys

import bench
import harness
import numpy as np
import roofline
import rows

import gpt2cy
from gpt2cy import reference
from gpt2cy.generation.sampler import Sampler, choose, uniform
from gpt2cy.generation.sampling import Sampling
from gpt2cy.kernels import dispatch

VOCABULARY = 50257
SEED = 1
WAYS = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9},
    "top_k, top_p": {"top_k": 50, "top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.9},
    "greedy, logprobs": {"temperature": 0, "logprobs": 5},
}
OF_FEW = ("greedy", "top_k", "top_k, top_p")  # need no exp of all ids


def logits(kind, n_rows):
    """Random ones [n_rows, VOCABULARY]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n_rows, VOCABULARY))
    if kind == "model":
        rank = np.argsort(rng.random((n_rows, VOCABULARY)), axis=1)
        x = 0.5 * x - 1.5 * np.log1p(rank) - 30.0
    return x.astype(np.float32)


def right(x, settings):
    """The ids that float64 arithmetic chooses."""
    if settings.get("temperature") == 0:
        return x.argmax(-1)
    filters = {name: value for name, value in settings.items() if name != "logprobs"}
    ends = np.array([np.cumsum(reference.token_probabilities(row, **filters)) for row in x])
    shares = [uniform(SEED, row, 0, 0) * end[-1] for row, end in enumerate(ends)]
    return np.array([np.searchsorted(end, u, side="right") for end, u in zip(ends, shares, strict=True)])


def cases(kind, n_rows, instructions, run, args):
    """Every way of choosing; checked."""
    x = bench.aligned(logits(kind, n_rows))
    isa = dispatch.isa()
    for threads in args.threads:
        for way, settings in WAYS.items():
            samplers = [Sampler(Sampling(**settings), VOCABULARY, SEED, i, 0, []) for i in range(n_rows)]

            def call(samplers=samplers, threads=threads):
                gpt2cy.set_num_threads(threads)
                return choose(samplers, x)[0]

            if call().tolist() != right(x, settings).tolist():
                sys.exit(f"{way} of {kind} logits chooses wrong ids: not timed")
            flops = 0 if way in OF_FEW else instructions * x.size * rows.FLOPS.get(isa, 2)
            yield bench.Case(
                {"way": way, "logits": kind, "rows": n_rows, "threads": threads},
                call,
                roofline.Work(flops, x.nbytes),
                bench.peak(isa, min(threads, n_rows)),
                run.read(x.nbytes, min(threads, n_rows)),
            )


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--rows", type=harness.numbers, metavar="N,N", help="rows of a step (default: 1, 8)")
    args = harness.arguments(parser, argv, "sampling")
    args.rows = args.rows or ([1] if args.quick else [1, 8])
    lines = []
    with bench.limits_or_none() as machine:
        run = bench.Bench(args, machine)
        known = machine and dispatch.isa() in rows.FLOPS
        instructions = rows.instructions(dispatch.isa(), "v_exp_down")[0] if known else 0
        for n_rows in args.rows:
            for kind in ("model", "flat"):
                for row in run.measure(list(cases(kind, n_rows, instructions, run, args))):
                    times = [harness.number(1e3 * row[key] / n_rows) for key in ("median", "low", "high")]
                    taken = f"{times[0]} ({times[1]}-{times[2]})"
                    lines.append([row["way"], kind, n_rows, row["threads"], taken, bench.share(row)])
    gpt2cy.set_num_threads(None)
    print(harness.table(["way", "logits", "rows", "threads", "microseconds a row", "of the bound"], lines))
    run.finish(instructions={"exp": instructions})
    return 0


if __name__ == "__main__":
    sys.exit(main())
