# SPDX-License-Identifier: Apache-2.0
"""How near are layer norm and softmax to the memory's speed, and GELU to the number of its instructions?

    python perf/rows.py --quick

Layer norm and softmax read each number once and write one: they are compared with a copy of so many bytes,
source and target together as large as x and y, measured in the same rounds ("of a copy"). Sizes are chosen
for the second-level cache, the third, and memory. A copy may need less time than the instructions do, so the
bound is the larger of both: 6 instructions a vector for layer norm (sum; difference and square; difference,
scale, gamma and beta), those of exp and 4 more for softmax (maximum, difference, sum, quotient).

GELU, on numbers that stay in the second-level cache: its bound is the larger of

    instructions of one vector / instructions a second, which the fma limit tells
    divisions of one vector / divisions a second, which the divide limit tells

The instructions are counted in the assembler that this machine's cc makes of `v_gelu_tanh` (csrc/simd.h) with
the build's flags: every instruction on vector registers that computes. Moves, loads and constants do not
count: a loop can keep them in registers or overlap them. A division counts among the instructions, and by
itself again as often as the divider allows.
"""

import itertools
import re
import sys

import bench
import csrc
import harness
import numpy as np
import roofline

from gpt2cy import reference
from gpt2cy.kernels import raw

WIDTHS = {"layernorm": 768, "softmax": 1024}
ROWS = (64, 256, 2048, 65536)
GELU_NUMBERS = 16 * 3072
VECTOR = {"base": 4, "avx2": 8, "avx512": 16, "neon": 4}  # floats
# Flops of one instruction on one float, as the fma limit counts them: base has no fused multiply-add.
FLOPS = {"base": 1, "avx2": 2, "avx512": 2, "neon": 2}
MOVES = re.compile(
    r"v?mov|v?broadcast|vpbroadcast|vpternlogd?\s+\$0xff|ldr|ldp|ldu|str|stp|stu|dup|fmov|ret|endbr"
)
OF_VECTORS = re.compile(r"%[xyz]mm|\bv\d+\.")


def instructions(isa, function):
    """(instructions, divisions) that compute one vector of a function of csrc/simd.h."""
    stub = (csrc.CSRC / f"isa_{isa}.c").read_text().replace("isa.inc.h", "simd.h")  # the vectors, no kernels
    text = csrc.assembler(f"{stub}vf counted(vf x) {{ return {function}(x); }}\n", f"isa_{isa}.c")
    body = text.split("counted:", 1)[1].split(".size", 1)[0]
    lines = [line.strip() for line in body.splitlines()]
    lines = [line for line in lines if OF_VECTORS.search(line) and not MOVES.match(line)]
    return len(lines), sum(re.match(r"v?divps|fdiv", line) is not None for line in lines)


def needed(isas):
    """{(kernel, isa): instructions of a vector}; of GELU also the divisions among them."""
    counts = {}
    for isa in isas:
        counts["layernorm", isa] = 6
        counts["softmax", isa] = instructions(isa, "v_exp_down")[0] + 4
        counts["gelu_tanh", isa] = instructions(isa, "v_gelu_tanh")
    return counts


def row_cases(kind, n, counts, args):
    """Layer norm or softmax of n rows; checked."""
    width = WIDTHS[kind]
    rng = np.random.default_rng(n)
    x = bench.aligned(rng.standard_normal((n, width), np.float32))
    gamma, beta = rng.standard_normal((2, width), np.float32)
    out = bench.aligned(np.zeros_like(x))
    few = x[:64].astype(np.float64)
    want = reference.layernorm(few, gamma, beta, 1e-5) if kind == "layernorm" else reference.softmax(few)
    for isa, threads in itertools.product(args.isas, args.threads):

        def call(isa=isa, threads=threads):
            more = {"isa": isa, "n_threads": threads, "out": out}
            return raw.layernorm(x, gamma, beta, **more) if kind == "layernorm" else raw.softmax(x, **more)

        bench.require_close(f"{kind}, {n} rows, {isa}", call()[:64], want)
        moved = 2 * x.nbytes
        yield bench.Case(
            {"kernel": kind, "rows": n, "width": width, "isa": isa, "threads": threads},
            call,
            roofline.Work(counts.get((kind, isa), 0) * x.size * FLOPS[isa], moved),
            f"fma/{isa}/{threads}",
            f"copy/{moved}/{threads}",
        )


def gelu_cases(counts, args):
    """GELU (tanh) with one thread; checked."""
    x = bench.aligned(np.random.default_rng(0).standard_normal(GELU_NUMBERS, np.float32))
    out = bench.aligned(np.zeros_like(x))
    for isa in args.isas:

        def call(isa=isa):
            return raw.activation(x, "gelu_tanh", isa=isa, out=out)

        bench.require_close(f"gelu_tanh, {isa}", call(), reference.gelu_tanh(x.astype(np.float64)))
        n, divisions = counts.get(("gelu_tanh", isa), (0, 0))
        vectors = GELU_NUMBERS / VECTOR[isa]
        yield bench.Case(
            {"kernel": "gelu_tanh", "rows": 1, "width": GELU_NUMBERS, "isa": isa, "threads": 1},
            call,
            # In units of the limits: an instruction is a multiply-add; quotients stand for bytes.
            roofline.Work(n * vectors * VECTOR[isa] * FLOPS[isa], divisions * GELU_NUMBERS) if n else None,
            f"fma/{isa}/1",
            f"divide/{isa}/1",
        )


def main(argv=None):
    parser = harness.parser(__doc__)
    parser.add_argument("--isas", type=harness.one_of(bench.isas()), help="default: all of this machine")
    parser.add_argument("--rows", type=harness.numbers, metavar="N,N", help="rows (default: 64 to 65536)")
    args = harness.arguments(parser, argv, "rows")
    args.isas = args.isas or bench.isas()
    args.rows = args.rows or ([64, 256] if args.quick else list(ROWS))
    lines, counts = [], {}
    with bench.limits_or_none() as machine:
        run = bench.Bench(args, machine)
        if machine:
            counts = needed(args.isas)
        for kind, n in itertools.product(WIDTHS, args.rows):
            for row in run.measure(list(row_cases(kind, n, counts, args))):
                rate = row["bytes"] / row["median"] / 1e6
                copied = run.limit(f"copy/{row['bytes']}/{row['threads']}")
                row["of_a_copy"] = copied and rate / copied
                percent = f"{100 * row['of_a_copy']:.0f} %" if copied else "-"
                speed = f"{harness.number(rate)} GB/s, {percent} of a copy"
                lines.append(
                    [kind, n, row["isa"], row["threads"], harness.spread(row), speed, bench.share(row)]
                )
        for row in run.measure(list(gelu_cases(counts, args))):
            n, divisions = counts.get(("gelu_tanh", row["isa"]), ("?", "?"))
            what = f"{n} instructions a vector, {divisions} divides"
            lines.append([row["kernel"], 1, row["isa"], 1, harness.spread(row), what, bench.share(row)])
    print(harness.table(["kernel", "rows", "isa", "threads", "ms", "speed", "of the bound"], lines))
    run.finish(instructions={" ".join(key): found for key, found in counts.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
