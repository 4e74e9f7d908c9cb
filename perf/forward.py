# SPDX-License-Identifier: Apache-2.0
"""How long a forward pass takes, beside PyTorch and NumPy: float32, logits of every position.

    python perf/forward.py --quick
    python perf/forward.py --python torch=/path/to/a/python/that/has/torch

Each engine gets the same weights. Its logits are first compared with gpt2cy.reference (float64), and an
engine that is wrong is not timed. Prints tables and writes perf/results/forward-CPU.json.
"""

import argparse
import dataclasses
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np
import shapes

import gpt2cy
from gpt2cy import reference

ENGINES = ("gpt2cy", "torch", "numpy")
TOLERANCE = 1e-4  # in standard deviations of the logits; float32 engines reach 1e-6 to 1e-5
CHECKED = (2, 80)  # batch, tokens: more than one block of 64 positions, no multiple of a tile


class WrongAnswer(Exception):
    """An engine's logits are not those of the reference."""


def main(argv=None):
    """Measure; return 1 if an engine was wrong, or one asked for by name cannot run."""
    args = arguments(argv)
    results = {
        "machine": harness.machine(),
        "threads": args.threads,
        "dtype": "float32",
        "rounds": args.rounds,
        "versions": {},
        "left_out": {},
        "models": {},
        "checks": [],
        "rows": [],
    }
    print(f"{results['machine']['cpu']}; threads: {args.threads}; float32; ms: median (low-high round)")
    for model in args.models:
        workers = start(model, args, results)
        try:
            if workers:
                results["rows"] += measure(model, workers, args)
        finally:
            for worker in workers:
                worker.close()
        if args.output:
            harness.write(args.output, "forward", results)
    if args.output:
        print(f"\nwrote {args.output}")
    wrong = any(check["refused"] for check in results["checks"])
    return 1 if wrong or set(results["left_out"]) & set(args.required) else 0


def start(model, args, results):
    """Start the engines with the model's weights; note how each did; return those that answer correctly."""
    config = shapes.MODELS[model]
    results["models"][model] = {**dataclasses.asdict(config), "n_params": config.n_params}
    workers = []
    with tempfile.TemporaryDirectory() as folder:
        want = write_question(config, Path(folder))
        for engine in args.engines:
            if engine in results["left_out"]:
                continue
            worker = harness.Worker(engine, args.threads, args.python.get(engine))
            check = {"model": model, "engine": engine, "relative_error": None, "refused": None}
            try:
                question = {"weights": f"{folder}/weights.npz", "config": dataclasses.asdict(config)}
                results["versions"][engine] = worker.ask("load", **question)["versions"]
                check["relative_error"] = judge(worker, Path(folder), want)
                workers.append(worker)
            except harness.EngineError as error:
                results["left_out"][engine] = str(error)
                print(f"{engine} is left out: {error}", file=sys.stderr)
                worker.close()
                continue
            except WrongAnswer as error:
                check["refused"] = str(error)
                print(f"{engine} is not timed on {model}: {error}", file=sys.stderr)
                worker.close()
            results["checks"].append(check)
    return workers


def write_question(config, folder):
    """Write weights.npz and tokens.npy into the folder; return the logits that are right."""
    batch, length = CHECKED
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, (batch, length))
    weights = shapes.weights(config)
    np.savez(folder / "weights.npz", **weights)
    np.save(folder / "tokens.npy", tokens)
    return reference.forward(config, weights, tokens)


def judge(worker, folder, want):
    """Return the relative error of an engine's logits, or raise WrongAnswer."""
    tokens, output = folder / "tokens.npy", folder / f"{worker.name}.npy"
    try:
        worker.ask("forward", tokens=str(tokens), output=str(output))
    except harness.EngineError as error:
        raise WrongAnswer(f"no logits: {error}") from None
    error = harness.relative_error(np.load(output), want)
    if not error <= TOLERANCE:
        raise WrongAnswer(f"its logits differ from the reference by {error:.1e} standard deviations")
    return error


def measure(model, workers, args):
    """Time every case of a model, print its table, and return the rows of the result."""
    config = shapes.MODELS[model]
    lengths = args.lengths or shapes.lengths(config)
    too_long = [length for length in lengths if length > config.block_size]
    if too_long:
        print(f"{model} has {config.block_size} positions, not timed: {too_long} tokens", file=sys.stderr)
    cases = [(1, length) for length in lengths if length not in too_long]
    cases += [(batch, shapes.BATCH_LENGTH) for batch in args.batches]
    rows, lines = [], []
    for batch, length in cases:

        def ask(worker, batch=batch, length=length):
            answer = worker.ask("time", batch=batch, length=length, seconds=args.seconds)
            return statistics.median(answer["ms"])

        rounds, failures = harness.interleave(workers, ask, args.rounds, args.rest)
        figures = harness.summarize(rounds) | {name: {"error": why} for name, why in failures.items()}
        case = {"model": model, "batch": batch, "length": length}
        rows += [{**case, "engine": worker.name, **figures[worker.name]} for worker in workers]
        lines.append([batch, length, *(cell(figures[worker.name]) for worker in workers)])
    print(f"\n{model}, {config.n_params:,} parameters; xR: R times the time of {workers[0].name}\n")
    print(harness.table(["batch", "tokens", *(worker.name for worker in workers)], lines), flush=True)
    return rows


def cell(figures):
    """One engine's figures for a table."""
    if "error" in figures:
        return "failed"
    low, median, high = (harness.number(figures[key]) for key in ("low", "median", "high"))
    return f"{median} ({low}-{high}) x{figures['ratio']:.2f}"


def arguments(argv):
    """Read the command line, and fill in what --quick and the machine decide."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument(
        "--models",
        type=one_of(shapes.MODELS),
        default=list(shapes.PUBLISHED),
        metavar="M,M",
        help=f"of {', '.join(shapes.MODELS)} (default: the first {len(shapes.PUBLISHED)})",
    )
    parser.add_argument(
        "--lengths",
        type=numbers,
        metavar="T,T",
        help="tokens of a sequence, at batch 1 (default: 16 and doubling, up to the model's positions)",
    )
    parser.add_argument(
        "--batches",
        type=numbers,
        metavar="B,B",
        help=f"batches of sequences of {shapes.BATCH_LENGTH} tokens (default: 2,4,8)",
    )
    parser.add_argument(
        "--engines",
        type=names,
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
    parser.add_argument(
        "--threads",
        type=number,
        default=gpt2cy.get_num_threads(),
        help="of each engine (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=number, help="turns that each engine has a case (default: 11)")
    parser.add_argument("--quick", action="store_true", help="a glance: 3 rounds, few cases, no file")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the JSON here instead, also if quick"
    )
    args = parser.parse_args(argv)
    args.python = dict(args.python)
    args.required = args.engines or ["gpt2cy"]
    args.engines = args.engines or list(ENGINES)
    args.seconds, args.rest = (0.05, 0.0) if args.quick else (0.2, harness.REST_SECONDS)
    args.rounds = args.rounds or (3 if args.quick else 11)
    args.lengths = args.lengths or ([16, 64] if args.quick else None)
    args.batches = args.batches or ([2] if args.quick else list(shapes.BATCHES))
    if args.output is None and not args.quick:
        args.output = harness.RESULTS / f"forward-{harness.slug(harness.machine()['cpu'])}.json"
    return args


def names(text):
    chosen = [name for name in text.split(",") if name]
    if not chosen:
        raise argparse.ArgumentTypeError("expected at least one name")
    return list(dict.fromkeys(chosen))


def one_of(known):
    def parse(text):
        chosen = names(text)
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return chosen

    return parse


def number(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def numbers(text):
    return [number(part) for part in text.split(",")]


def interpreter(text):
    engine, _, path = text.partition("=")
    if not engine or not path or shutil.which(path) is None:
        raise argparse.ArgumentTypeError(f"expected ENGINE=PATH of an executable, got {text!r}")
    return engine, path


if __name__ == "__main__":
    sys.exit(main())
