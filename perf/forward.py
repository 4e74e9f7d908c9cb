# SPDX-License-Identifier: Apache-2.0
"""How long a forward pass takes, beside PyTorch and NumPy, and how near to what the machine can do: float32.

    python perf/forward.py --quick
    python perf/forward.py --python torch=/path/to/a/python/that/has/torch --threads 1,2

Calls: `forward` (logits of every position), `next_logits` (a prompt, the last position's logits) and `decode`
(one token after some that are cached; its length is theirs). Each engine gets the same weights. Its answers
are first compared with gpt2cy.reference (float64), and an engine that is wrong is not timed. The machine's
limits are measured before and after every round; each figure gets its share of the roofline (roofline.py).
Prints tables and writes perf/results/forward-CPU.json.
"""

import argparse
import dataclasses
import shutil
import sys
import tempfile
from pathlib import Path

import bench
import harness
import numpy as np
import roofline
import shapes

from gpt2cy import reference

ENGINES = ("gpt2cy", "torch", "numpy")
CALLS = ("forward", "next_logits", "decode")
TOLERANCE = 1e-4  # in standard deviations of the logits; float32 engines reach 1e-6 to 1e-5
CHECKED = (2, 80)  # batch, tokens: more than one block of 64 positions, no multiple of a tile


class WrongAnswer(Exception):
    """An engine's logits are not those of the reference."""


def main(argv=None):
    """Measure; return 1 if an engine was wrong, or one asked for by name cannot run."""
    args = arguments(argv)
    result = {"versions": {}, "left_out": {}, "models": {}, "checks": []}
    print(f"{harness.machine()['cpu']}; float32; ms: median (low-high round)")
    with bench.limits_or_none() as machine:
        run = bench.Bench(args, machine)
        for model in args.models:
            with tempfile.TemporaryDirectory() as folder:
                want = write_question(shapes.MODELS[model], Path(folder))
                for threads in args.threads:
                    compare(model, threads, Path(folder), want, run, result)
            if args.output:
                run.finish(**result)
    wrong = any(check["refused"] for check in result["checks"])
    return 1 if wrong or set(result["left_out"]) & set(args.required) else 0


def compare(model, threads, folder, want, run, result):
    """Every case of one model with one number of threads."""
    workers = start(model, threads, folder, want, run.args, result)
    try:
        if workers:
            measure(model, threads, workers, folder, run, result)
    finally:
        for worker in workers:
            worker.close()


def start(model, threads, folder, want, args, result):
    """Start the engines with the model's weights; note how each did; return those that answer correctly."""
    config = shapes.MODELS[model]
    result["models"][model] = {**dataclasses.asdict(config), "n_params": config.n_params}
    question = {"weights": str(folder / "weights.npz"), "config": dataclasses.asdict(config)}
    workers = []
    for engine in args.engines:
        if engine in result["left_out"]:
            continue
        worker = harness.Worker(engine, threads, args.python.get(engine))
        check = {
            "model": model,
            "threads": threads,
            "engine": engine,
            "relative_error": None,
            "refused": None,
        }
        try:
            result["versions"][engine] = worker.ask("load", **question)["versions"]
            check["relative_error"] = judge(worker, args.calls, folder, want)
            workers.append(worker)
        except harness.EngineError as error:
            result["left_out"][engine] = str(error)
            print(f"{engine} is left out: {error}", file=sys.stderr)
            worker.close()
            continue
        except WrongAnswer as error:
            check["refused"] = str(error)
            print(f"{engine} is not timed on {model}: {error}", file=sys.stderr)
            worker.close()
        result["checks"].append(check)
    return workers


def write_question(config, folder):
    """Write weights.npz and tokens.npy into the folder; return the logits that are right."""
    batch, length = CHECKED
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (batch, length))
    weights = shapes.weights(config)
    np.savez(folder / "weights.npz", **weights)
    np.save(folder / "tokens.npy", tokens)
    return reference.forward(config, weights, tokens)


def judge(worker, calls, folder, want):
    """Return the largest relative error of an engine's logits over the calls, or raise WrongAnswer."""
    tokens, output = folder / "tokens.npy", folder / "output.npy"
    errors = []
    for call in calls:
        try:
            worker.ask("answer", call=call, tokens=str(tokens), output=str(output))
        except harness.EngineError as error:
            raise WrongAnswer(f"no logits of {call}: {error}") from None
        right = want if call == "forward" else want[:, -1]
        errors.append(harness.relative_error(np.load(output), right))
        if not errors[-1] <= TOLERANCE:
            by = f"{errors[-1]:.1e} standard deviations"
            raise WrongAnswer(f"its logits of {call} differ from the reference by {by}")
    return max(errors)


def measure(model, threads, workers, folder, run, result):
    """Time every case of a model, print its table, keep the rows."""
    config, args = shapes.MODELS[model], run.args
    lines = []
    for call, batch, length in cases(model, args):
        tokens = np.random.default_rng(length).integers(
            0, config.vocab_size, (batch, length + (call == "decode"))
        )
        np.save(folder / "timed.npy", tokens)

        def ask(worker, call=call):
            return worker.ask("time", call=call, tokens=str(folder / "timed.npy"), seconds=args.seconds)["ms"]

        work = work_of(config, call, batch, length)
        peak = bench.peak(result["versions"].get("gpt2cy", {}).get("isa", bench.isas()[-1]), threads)
        bandwidth = run.read(roofline.weight_bytes(config), threads)
        meter = run.meter([peak, bandwidth])
        rounds, failures = harness.interleave(workers, ask, args.rounds, args.rest, meter and meter.take)
        figures = harness.summarize(rounds) | {name: {"error": why} for name, why in failures.items()}
        case = {"model": model, "call": call, "batch": batch, "length": length, "threads": threads}
        for name, own in rounds.items():
            figures[name] |= bench.against_roofline(work, own, meter, peak, bandwidth)
        run.rows += [{**case, "engine": worker.name, **figures[worker.name]} for worker in workers]
        lines.append([call, batch, length, *(cell(figures[worker.name]) for worker in workers)])
    first = workers[0].name
    print(f"\n{model}, {config.n_params:,} parameters, {threads} threads; xR: R times the time of {first}\n")
    head = ["call", "batch", "tokens", *(worker.name for worker in workers)]
    print(harness.table(head, lines), flush=True)


def cases(model, args):
    """(call, batch, length) of everything that is timed; too long ones are left out aloud."""
    config = shapes.MODELS[model]
    lengths = args.lengths or shapes.lengths(config)
    found = [("forward", 1, length) for length in lengths]
    found += [("forward", batch, shapes.BATCH_LENGTH) for batch in args.batches]
    found += [("next_logits", 1, length) for length in args.lengths or shapes.PROMPTS]
    found += [("decode", batch, past) for batch, past in args.decodes]
    asked = args.lengths is not None
    too_long = sorted({n for call, _, n in found if n + (call == "decode") > config.block_size})
    if too_long and asked:
        print(f"{model} has {config.block_size} positions, not timed: {too_long} tokens", file=sys.stderr)
    return [case for case in found if case[0] in args.calls and case[2] not in too_long]


def work_of(config, call, batch, length):
    """What a case has to do (roofline.py)."""
    if call == "decode":
        return roofline.decode(config, batch, length)
    return getattr(roofline, call)(config, [length] * batch)


def cell(figures):
    """One engine's figures for a table."""
    if "error" in figures:
        return "failed"
    return f"{harness.spread(figures)} x{figures['ratio']:.2f} {bench.share(figures)}"


def arguments(argv):
    """Read the command line, and fill in what --quick decides."""
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--models",
        type=harness.one_of(shapes.MODELS),
        default=list(shapes.PUBLISHED),
        metavar="M,M",
        help=f"of {', '.join(shapes.MODELS)} (default: the first {len(shapes.PUBLISHED)})",
    )
    parser.add_argument(
        "--calls", type=harness.one_of(CALLS), metavar="C,C", help=f"of {', '.join(CALLS)} (default: all)"
    )
    parser.add_argument(
        "--lengths",
        type=harness.numbers,
        metavar="T,T",
        help="tokens of a sequence, at batch 1 (default: 16 and doubling, up to the model's positions)",
    )
    parser.add_argument(
        "--batches",
        type=harness.numbers,
        metavar="B,B",
        help=f"batches of sequences of {shapes.BATCH_LENGTH} tokens (default: 2,4,8)",
    )
    parser.add_argument(
        "--engines",
        type=harness.names,
        metavar="E,E",
        help="modules E_engine in perf/engines or on PYTHONPATH; ratios are to the first "
        "(default: gpt2cy, and torch and numpy where installed)",
    )
    parser.add_argument(
        "--python",
        type=interpreter,
        action="append",
        default=[],
        metavar="E=PATH",
        help="run engine E in another Python interpreter; may be repeated",
    )
    args = harness.arguments(parser, argv, "forward")
    args.python = dict(args.python)
    args.required = args.engines or ["gpt2cy"]
    args.engines = args.engines or list(ENGINES)
    args.calls = args.calls or list(CALLS)
    args.rest = 0.0 if args.quick else harness.REST_SECONDS
    args.seconds = 0.05 if args.quick else 0.2
    args.lengths = args.lengths or ([16, 64] if args.quick else None)
    args.batches = args.batches or ([2] if args.quick else list(shapes.BATCHES))
    args.decodes = [(1, 16)] if args.quick else list(shapes.DECODES)
    return args


def interpreter(text):
    engine, _, path = text.partition("=")
    if not engine or not path or shutil.which(path) is None:
        raise argparse.ArgumentTypeError(f"expected ENGINE=PATH of an executable, got {text!r}")
    return engine, path


if __name__ == "__main__":
    sys.exit(main())
