# SPDX-License-Identifier: Apache-2.0
"""How much of the machine does a matrix product reach, for the shapes of GPT-2?

    python perf/gemm.py --quick
    python perf/gemm.py --isas avx2 --rows 1,64,256

Weights are packed beforehand, as in a model, and 256 MiB of them take turns, so that none is still in a cache
(--quick has one, which stays there): the roofline is the larger of the weights' bytes over the bandwidth of
memory and the flops over the peak of that instruction set, both measured in the same rounds. The result's
array is reused. `--layers near` shows the kernel without memory: weights that stay in a core's cache.
"""

import itertools
import sys

import bench
import harness
import numpy as np
import roofline

from gpt2cy.kernels import raw

SHAPES = {  # K, N of the gpt2 preset
    "c_attn": (768, 2304),
    "attn.c_proj": (768, 768),
    "c_fc": (768, 3072),
    "mlp.c_proj": (3072, 768),
    "lm_head": (768, 50257),
    "near": (768, 192),  # of no model
}
ROWS = (1, 4, 16, 32, 64, 128, 256, 1024)
WEIGHT_BYTES = 256 << 20


def cases_of(run, layer, m, args):
    """One case for each instruction set and number of threads, all on the same numbers; checked."""
    k, n = SHAPES[layer]
    rng = np.random.default_rng(m)
    a = rng.standard_normal((m, k), np.float32)
    weight = rng.standard_normal((k, n), np.float32)
    copies = 1 if args.quick or layer == "near" else max(1, WEIGHT_BYTES // weight.nbytes)
    packed = [raw.pack(weight) for _ in range(copies)]
    some = slice(0, min(n, 512))
    want = a.astype(np.float64) @ weight[:, some]
    out = np.empty((m, n), np.float32)
    for isa, threads in itertools.product(args.isas, args.threads):
        turns = itertools.cycle(packed)

        def call(turns=turns, isa=isa, threads=threads):
            return raw.gemm(a, next(turns), isa=isa, n_threads=threads, out=out)

        bench.require_close(f"{layer}, {m} rows, {isa}", call()[:, some], want)
        yield bench.Case(
            {"layer": layer, "m": m, "k": k, "n": n, "isa": isa, "threads": threads},
            call,
            roofline.product(m, k, n),
            bench.peak(isa, threads),
            run.read(copies * weight.nbytes, threads),
        )


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--isas", type=harness.one_of(bench.isas()), help="default: all of this machine")
    parser.add_argument("--layers", type=harness.one_of(SHAPES), help="default: all of the gpt2 preset")
    parser.add_argument("--rows", type=harness.numbers, metavar="M,M", help="rows of the left side")
    args = harness.arguments(parser, argv, "gemm")
    args.isas = args.isas or bench.isas()
    args.layers = args.layers or (["attn.c_proj"] if args.quick else list(SHAPES)[:-1])
    args.rows = args.rows or ([1, 64] if args.quick else list(ROWS))
    with bench.limits_or_none() as machine:
        run = bench.Bench(args, machine)
        for layer in args.layers:
            shown = []
            for m in args.rows:
                for row in run.measure(list(cases_of(run, layer, m, args))):
                    speed = harness.number(row["flops"] / row["median"] / 1e6)
                    shown.append(
                        [m, row["isa"], row["threads"], harness.spread(row), speed, bench.share(row)]
                    )
            print(f"\n{layer}, {SHAPES[layer][0]} x {SHAPES[layer][1]}\n")
            head = ["rows", "isa", "threads", "ms", "GFLOP/s", "of the roofline"]
            print(harness.table(head, shown), flush=True)
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
