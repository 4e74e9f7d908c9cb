# SPDX-License-Identifier: Apache-2.0
"""How much of the machine does attention reach, and does its memory grow linearly?

    python perf/attention.py --quick
    python perf/attention.py --torch /path/to/a/python/that/has/torch

Causal attention of one sequence, 12 heads of 64, keys and values already in their blocks. Flops are those of
the causal half: 4 C for each pair of a query and a key that it sees. Beside it PyTorch's
scaled_dot_product_attention (is_causal) on the same numbers, where torch can be imported here or in the
interpreter given: in a process of its own, in turns.

Memory: the resident peak of one call of a one-layer model, less its logits, at each length.
"""

import itertools
import math
import sys
import tempfile
from pathlib import Path

import bench
import harness
import numpy as np
import resident
import roofline

import gpt2cy
from gpt2cy import reference
from gpt2cy.kernels import raw

N_HEADS, HEAD_DIM = 12, 64
WIDTH = N_HEADS * HEAD_DIM
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
CHECKED = 512  # queries of the longest sequence that are compared


def question(length):
    """Queries, keys and values [T, 3 C], and what attention has to give for the last queries."""
    qkv = np.random.default_rng(length).standard_normal((length, 3 * WIDTH), np.float32)
    last = slice(max(0, length - CHECKED), length)
    q, k, v = (part.reshape(length, N_HEADS, HEAD_DIM).swapaxes(0, 1) for part in np.split(qkv, 3, axis=1))
    scores = q[:, last].astype(np.float64) @ k.swapaxes(1, 2) / math.sqrt(HEAD_DIM)
    future = np.arange(length) > np.arange(length)[last, None]
    want = reference.softmax(np.where(future, -np.inf, scores)) @ v
    return qkv, last, want.swapaxes(0, 1).reshape(-1, WIDTH)


def own_cases(length, args):
    """A case for each instruction set and number of threads; checked."""
    qkv, last, want = question(length)
    for isa, threads in itertools.product(args.isas, args.threads):
        made = raw.Attention(qkv, N_HEADS, 1 / math.sqrt(HEAD_DIM), isa=isa, n_threads=threads)
        made.append()
        made.attend()
        bench.require_close(f"attention, {length} tokens, {isa}", made.out[last], want)
        yield bench.Case(
            {"length": length, "engine": "gpt2cy", "isa": isa, "threads": threads},
            made.attend,
            roofline.attention(WIDTH, length),
            bench.peak(isa, threads),
        )


def torch_case(worker, threads, length, folder, args):
    """The same numbers given to PyTorch; checked."""
    qkv, last, want = question(length)
    np.save(folder / "qkv.npy", qkv)
    files = {"call": "attention", "tokens": str(folder / "qkv.npy")}
    worker.ask("answer", **files, output=str(folder / "out.npy"))
    bench.require_close(f"PyTorch's attention, {length} tokens", np.load(folder / "out.npy")[last], want)
    return bench.Case(
        {"length": length, "engine": "torch", "isa": None, "threads": threads},
        None,
        roofline.attention(WIDTH, length),
        bench.peak(args.isas[-1], threads),
        timer=lambda seconds: worker.ask("time", **files, seconds=seconds)["ms"],
    )


def start_torch(args, left_out):
    """{threads: worker}, empty where PyTorch is not there."""
    workers = {threads: harness.Worker("torch_attention", threads, args.torch) for threads in args.threads}
    try:
        for worker in workers.values():
            args.torch_versions = worker.ask("load", config={"n_heads": N_HEADS})["versions"]
        return workers
    except harness.EngineError as error:
        left_out["torch"] = str(error)
        print(f"torch is left out: {error}", file=sys.stderr)
        for worker in workers.values():
            worker.close()
        return {}


def measure(run, workers, length, args):
    """Time one length; return the lines of the table."""
    cases = list(own_cases(length, args))
    with tempfile.TemporaryDirectory() as folder:
        cases += [torch_case(worker, n, length, Path(folder), args) for n, worker in workers.items()]
        rows = run.measure(cases)
    lines = []
    for row in rows:
        who = row["isa"] or row["engine"]
        speed = harness.number(row["flops"] / row["median"] / 1e6)
        lines.append([length, who, row["threads"], harness.spread(row), speed, bench.share(row)])
    return lines


def workspace(lengths):
    """[(T, bytes)]: the resident peak of a one-layer model's call, less the logits."""
    config = gpt2cy.GPTConfig(16, WIDTH, N_HEADS, 1, max(lengths))
    found = []
    for length in lengths:
        model = gpt2cy.GPT(config, seed=0)  # a model may keep the memory of its last call
        model([0] * 64)  # what the first call loads is not a length's
        peak = resident.peak(lambda model=model, length=length: model(np.zeros(length, int)))
        found.append((length, peak - roofline.FLOAT_BYTES * length * config.vocab_size))
    return found


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--isas", type=harness.one_of(bench.isas()), help="default: all of this machine")
    parser.add_argument(
        "--lengths", type=harness.numbers, metavar="T,T", help="default: 64 to 8192, doubling"
    )
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch (default: this one)")
    args = harness.arguments(parser, argv, "attention")
    args.torch_versions = None
    args.isas = args.isas or bench.isas()
    args.lengths = args.lengths or ([64, 256] if args.quick else list(LENGTHS))
    used = workspace(args.lengths) if resident.AVAILABLE else []
    left_out = {}
    workers = start_torch(args, left_out)
    with bench.limits_or_none() as machine:
        run = bench.Bench(args, machine)
        lines = [line for length in args.lengths for line in measure(run, workers, length, args)]
    print(harness.table(["tokens", "isa", "threads", "ms", "GFLOP/s", "of the peak"], lines))
    if used:
        print("\nmemory of a call of a one-layer model, less its logits\n")
        shown = [[t, harness.number(n / 2**20), harness.number(n / t / 2**10)] for t, n in used]
        print(harness.table(["tokens", "MiB", "KiB a token"], shown))
    for worker in workers.values():
        worker.close()
    more = {"workspace": [{"length": length, "bytes": found} for length, found in used]}
    run.finish(left_out=left_out, torch=args.torch_versions, **more)
    return 0


if __name__ == "__main__":
    sys.exit(main())
