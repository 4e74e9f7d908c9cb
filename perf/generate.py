# SPDX-License-Identifier: Apache-2.0
"""How long does a user wait for a generated token, and for the first one? Sampling and all included.

    python perf/generate.py --quick
    python perf/generate.py --models gpt2 --threads 2

A `token` is one step of the loop that `generate` runs, for each row of a batch after so many tokens; it is
timed greedy, and drawn with top_k and top_p. `first` is a call of `generate` for one token of a long prompt.
Each has its share of the roofline of the forward pass alone: choosing has no share in that, so it counts as
loss. Before anything is timed, greedy tokens are compared with the largest logits of a forward pass over the
whole text; then, for each batch and each way to choose, the rows of the batch with each row alone.
"""

import argparse
import itertools
import pickle
import sys
import time

import bench
import harness
import numpy as np
import roofline
import shapes

import gpt2cy
from gpt2cy.generation.batch import Batch
from gpt2cy.generation.generate import make_rows
from gpt2cy.generation.sampling import Sampling
from gpt2cy.kernels import dispatch, host

SETTINGS = {"greedy": {"temperature": 0.0}, "top_k, top_p": {"top_k": 50, "top_p": 0.95}}
TOKENS = tuple((batch, past) for past in (16, 900) for batch in (1, 8, 32))
PROMPT = 1000


class Steps:
    """A batch in the middle of generating, which can be asked how long a step takes.

    Every row has keys and values of its own, as rows with different prompts have.
    """

    def __init__(self, model, batch, past, settings):
        ids = np.random.default_rng(past).integers(0, model.config.vocab_size, past)
        chosen = [Sampling(**settings)] * batch
        self.rows = make_rows(model, [ids] * batch, chosen, [(0, i) for i in range(batch)], None)
        self.batch, self.past = Batch(model, self.rows), past
        self.batch.step()
        for row in self.rows:
            row.cache = pickle.loads(pickle.dumps(row.cache))
        self.batch.enlist()

    def milliseconds(self, seconds):
        """The mean of some steps, the first of them after `past` tokens."""
        for row in self.rows:
            row.cache.truncate(self.past)
            row.held = self.past
        self.batch.step()
        steps, start = 0, time.perf_counter()
        while steps < 3 or time.perf_counter() - start < seconds:
            self.batch.step()
            steps += 1
            if self.rows[0].held + 1 >= self.rows[0].limit:
                break
        return 1e3 * (time.perf_counter() - start) / steps


def require_right(model, batches):
    """Leave unless greedy tokens are the largest logits of forward, and a batch's rows those of each row."""
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, 20)
    new = model.generate([ids], max_new_tokens=8, temperature=0)[0]
    want = model.forward([*ids, *new])[len(ids) - 1 : -1].argmax(axis=1)
    if not np.array_equal(new, want):
        sys.exit("generate does not give the largest logits of forward: not timed")
    for kind, settings in SETTINGS.items():
        chosen = Sampling(max_new_tokens=4, **settings)
        alone = [drawn(model, [i], chosen) for i in range(max(batches))]
        for batch in batches:
            if drawn(model, range(batch), chosen) != [row for rows in alone[:batch] for row in rows]:
                sys.exit(f"{kind}: {batch} rows give other tokens than each alone: not timed")


def drawn(model, rows, chosen):
    """What the loop that is timed gives for some rows, whose prompts differ in ids and in length."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, model.config.vocab_size, 5 + i % 3) for i in range(max(rows) + 1)]
    keys = [(0, i) for i in rows]
    batch = Batch(model, make_rows(model, [prompts[i] for i in rows], [chosen] * len(keys), keys, None))
    while batch.running:
        batch.step()
    return [row.tokens for row in batch.rows]


def cases(run, name, threads):
    """All that is timed of one model with one number of threads."""
    config = shapes.MODELS[name]
    model = gpt2cy.GPT(config)
    model.load_state_dict(shapes.weights(config))
    require_right(model, sorted({batch for batch, _ in run.args.tokens}))
    limits = bench.peak(dispatch.isa(), threads), run.read(roofline.weight_bytes(config), threads)
    prompt = min(PROMPT, config.block_size - 24)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, prompt)
    for kind, settings in SETTINGS.items():
        for batch, past in run.args.tokens:
            fields = {
                "model": name,
                "call": "token",
                "batch": batch,
                "past": past,
                "settings": kind,
                "threads": threads,
            }
            if past + 50 > config.block_size:
                continue
            needed = batch * config.memory_plan(1, past + 50)["cache"] * 2
            if needed > (host.available_memory() or needed):
                print(f"not enough memory, not timed: {fields}", file=sys.stderr)
                continue
            steps = Steps(model, batch, past, settings)
            yield bench.Case(
                fields, None, roofline.decode(config, batch, past), *limits, timer=steps.milliseconds
            )
        fields = {
            "model": name,
            "call": "first",
            "batch": 1,
            "past": prompt,
            "settings": kind,
            "threads": threads,
        }

        def first(settings=settings):
            model.generate([ids], max_new_tokens=1, seed=0, **settings)

        yield bench.Case(fields, first, roofline.next_logits(config, [prompt]), *limits)


def arguments(argv):
    parser = harness.parser(__doc__)
    parser.add_argument("--models", type=harness.one_of(shapes.MODELS), help="default: gpt2")
    parser.add_argument(
        "--tokens",
        type=pairs,
        metavar="BxP,BxP",
        help="batches and the tokens before (default: 1, 8, 32 after 16 and after 900)",
    )
    args = harness.arguments(parser, argv, "generate")
    args.models = args.models or (["small"] if args.quick else ["gpt2"])
    args.tokens = args.tokens or (((1, 16), (8, 16)) if args.quick else TOKENS)
    return args


def pairs(text):
    try:
        return tuple(tuple(harness.positive(part) for part in pair.split("x", 1)) for pair in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected pairs such as 1x16,8x900, got {text!r}") from None


def main(argv=None):
    args = arguments(argv)
    lines = []
    with bench.limits_or_none() as machine:
        run = bench.Bench(args, machine)
        for name, threads in itertools.product(args.models, args.threads):
            gpt2cy.set_num_threads(threads)
            for row in run.measure(list(cases(run, name, threads))):
                shown = [row[key] for key in ("model", "call", "batch", "past", "settings", "threads")]
                lines.append([*shown, harness.spread(row), bench.share(row)])
    gpt2cy.set_num_threads(None)
    head = ["model", "call", "batch", "after", "settings", "threads", "ms", "of the roofline"]
    print(harness.table(head, lines))
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
