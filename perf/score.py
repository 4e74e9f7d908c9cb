# SPDX-License-Identifier: Apache-2.0
"""What do log probabilities of a text cost, beside its logits, and beside transformers' loss?

    python perf/score.py --quick
    python perf/score.py --python /path/to/a/python/that/has/transformers

`forward` makes the logits of every position, `score` their log probabilities without keeping them
(`GPT.token_logprobs`); `transformers` computes its loss from logits and labels. Ratios are to `forward` in
the same round. Each is compared with gpt2cy.reference first.
"""

import dataclasses
import itertools
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import bench
import harness
import numpy as np
import roofline
import shapes

from gpt2cy import reference
from gpt2cy.kernels import dispatch

CHECKED = 80  # tokens
TOLERANCE = 1e-5  # of the loss; logits: bench.TOLERANCE


@dataclasses.dataclass
class Question:
    """What one engine is asked for, again and again."""

    name: str
    worker: harness.Worker
    call: str


def questions(args, threads):
    """Start the engines."""
    ours = harness.Worker("gpt2cy", threads)
    found = [Question("forward", ours, "forward"), Question("score", ours, "score")]
    if args.python or find_spec("transformers"):
        theirs = harness.Worker("transformers", threads, args.python)
        found.append(Question("transformers", theirs, "score"))
    return found


def load(asked, config, folder, versions):
    """Give each engine the weights and refuse one whose loss, or whose logits, are wrong."""
    weights = shapes.weights(config)
    np.savez(folder / "weights.npz", **weights)
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (1, CHECKED))
    np.save(folder / "tokens.npy", tokens)
    exact = reference.forward(config, weights, tokens)
    logits = exact[0, :-1]
    highest = logits.max(-1)
    total = highest + np.log(np.exp(logits - highest[:, None]).sum(-1))
    want = float(np.mean(total - logits[np.arange(CHECKED - 1), tokens[0, 1:]]))
    for worker in dict.fromkeys(question.worker for question in asked):
        loaded = worker.ask("load", weights=str(folder / "weights.npz"), config=dataclasses.asdict(config))
        versions[worker.name] = loaded["versions"]
    for question in asked:
        output = folder / "output.npy"
        question.worker.ask(
            "answer", call=question.call, tokens=str(folder / "tokens.npy"), output=str(output)
        )
        got = np.load(output)
        if question.call == "forward":
            bench.require_close("forward", got, exact)
            continue
        error = abs(float(got) / want - 1)
        if not error <= TOLERANCE:
            sys.exit(f"{question.name}: its loss is wrong by {error:.1e} of it: not timed")


def measure(run, name, threads, versions):
    """Every length of a model; return lines of the table."""
    config, lines = shapes.MODELS[name], []
    asked = questions(run.args, threads)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        try:
            load(asked, config, folder, versions)
            for length in run.args.lengths or [n for n in (16, 128, 1024) if n <= config.block_size]:
                tokens = np.random.default_rng(length).integers(0, config.vocab_size, (1, length))
                np.save(folder / "timed.npy", tokens)
                lines += timed(run, asked, {"model": name, "length": length, "threads": threads}, folder)
        finally:
            for worker in {id(question.worker): question.worker for question in asked}.values():
                worker.close()
    return lines


def timed(run, asked, case, folder):
    """Time one length; keep its rows and return their lines."""

    def ask(question):
        return question.worker.ask(
            "time", call=question.call, tokens=str(folder / "timed.npy"), seconds=run.args.seconds
        )["ms"]

    config = shapes.MODELS[case["model"]]
    work = roofline.forward(config, [case["length"]])
    peak = bench.peak(dispatch.isa(), case["threads"])
    bandwidth = run.read(roofline.weight_bytes(config), case["threads"])
    meter = run.meter([peak, bandwidth])
    rest = harness.REST_SECONDS if not run.args.quick else 0.0
    rounds, failures = harness.interleave(asked, ask, run.args.rounds, rest, meter and meter.take)
    if failures:
        sys.exit(f"failed: {failures}")
    lines = []
    for name, figures in harness.summarize(rounds).items():
        row = {**case, "call": name, **figures}
        row |= bench.against_roofline(work, rounds[name], meter, peak, bandwidth)
        run.rows.append(row)
        shown = [harness.spread(row), f"x{row['ratio']:.2f}", bench.share(row)]
        lines.append([*case.values(), name, *shown])
    return lines


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--models", type=harness.one_of(shapes.MODELS), help="default: gpt2")
    parser.add_argument("--lengths", type=harness.numbers, metavar="T,T", help="default: 16,128,1024")
    parser.add_argument("--python", metavar="PATH", help="the interpreter that has transformers")
    args = harness.arguments(parser, argv, "score")
    args.models = args.models or (["small"] if args.quick else ["gpt2"])
    versions, lines = {}, []
    with bench.limits_or_none() as machine:
        run = bench.Bench(args, machine)
        for name, threads in itertools.product(args.models, args.threads):
            lines += measure(run, name, threads, versions)
    head = ["model", "tokens", "threads", "call", "ms", "ratio", "of the roofline"]
    print(harness.table(head, lines))
    run.finish(versions=versions)
    return 0


if __name__ == "__main__":
    sys.exit(main())
