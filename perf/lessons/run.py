# SPDX-License-Identifier: Apache-2.0
"""Compile the lessons, check each one, then time it: python perf/lessons/run.py [--check] [--isa avx2]

Each step of product/ (a matrix product) and of attention/ (one head) is one C function. docs/kernels.md and
docs/attention.md explain them, with the figures that this script measures (see page.py).

Every figure is the median of some rounds; in a round all steps take their turn, with what the processor
could do at best (limits.c) measured beside them. Nothing is timed while a step is wrong: answers are
compared with float64, and bits with the package's own kernels, at a small odd shape and at each shape that
is timed. The weights of successive calls differ, so that they come from memory as the layers of a model do.
"""

import argparse
import ctypes
import functools
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from gpt2cy.kernels import dispatch, raw, threads

sys.path.append(str(Path(__file__).resolve().parents[1]))
import csrc
import harness

HERE = Path(__file__).resolve().parent
FLOATS = ctypes.POINTER(ctypes.c_float)
SEVERAL_THREADS = ("threads", "apart", "epilogue")
WITH_GELU = ("apart", "epilogue")
OTHER_BITS = ("square", "lanes")  # their sums are made in another order, as they say
# (m, k, n): the two products of a GPT-2 block's MLP, for a token, a short prompt and a longer one
SHAPES = ((1, 768, 3072), (16, 768, 3072), (256, 768, 3072), (256, 3072, 768))
LENGTHS, HEAD_DIM = (1024, 4096), 64
COPIES = 8  # of the weights: 75 MB, more than a cache holds
LEAST_SECONDS = 0.05  # of a measurement
SLOW = 1.0  # seconds after which one measurement has to do


def steps(folder):
    """The lessons of a folder by name, in order: 03_registers.c holds the function registers."""
    return [path.stem[3:] for path in sorted((HERE / folder).glob("[0-9]*.c"))]


def structure(*fields):
    return type("Structure", (ctypes.Structure,), {"_fields_": list(fields)})


INTEGER = ctypes.c_int64
Product = structure(
    *((name, INTEGER) for name in ("m", "k", "n")),
    *((name, FLOATS) for name in ("a", "b", "panels", "bias", "c", "slivers", "tiles")),
    ("threads", ctypes.c_int),
)
Attention = structure(
    *((name, INTEGER) for name in ("t", "d")),
    ("scale", ctypes.c_float),
    *((name, FLOATS) for name in ("q", "k", "v", "key_blocks", "out", "scratch")),
)


def floats(array):
    return array.ctypes.data_as(FLOATS)


def padded(array, after):
    """A copy with zeros for all rows up to a multiple of `after`."""
    rows = -(-len(array) // after) * after
    return np.concatenate([array, np.zeros((rows - len(array), *array.shape[1:]), np.float32)])


def build(isa, folder, compiler="cc", optimisation=("-O3",)):
    """Compile all lessons for an instruction set; return the library, with every lesson as a function."""
    stub = f"isa_{isa}.c"
    shape = [
        f"-D{name}={value or 1}"
        for name, value in re.findall(r"^#define (\w+) ?(.*)$", (csrc.CSRC / stub).read_text(), re.MULTILINE)
    ]
    options = [*csrc.flags(), *csrc.kernels()[stub], *csrc.SETTINGS["warnings"], *optimisation]
    options.remove("-fvisibility=hidden")
    sources = [*sorted(HERE.glob("*.c")), *sorted(HERE.glob("*/[0-9]*.c"))]
    library = Path(folder) / f"lessons_{isa}.so"
    subprocess.run(
        [
            compiler,
            *options,
            *shape,
            "-fopenmp",
            "-fPIC",
            "-shared",
            f"-I{csrc.CSRC}",
            *sources,
            "-o",
            library,
            "-lm",
        ],
        check=True,
    )
    return ctypes.CDLL(library)


class ProductTask:
    """c[m, n] = a b on random numbers; `copies` of b, which successive calls take in turn."""

    def __init__(self, m, k, n, n_threads, copies=1):
        rng = np.random.default_rng(0)
        self.shape, self.threads = (m, k, n), n_threads
        self.a = rng.standard_normal((m, k), np.float32)
        self.b = [rng.standard_normal((k, n), np.float32) for _ in range(copies)]
        self.panels = [
            np.ascontiguousarray(padded(b.T, 32).reshape(-1, 32, k).transpose(0, 2, 1)) for b in self.b
        ]
        self.bias = rng.standard_normal(n, np.float32)
        self.c = np.zeros((m, n), np.float32)
        self.slivers = np.zeros(m * k, np.float32)
        self.tiles = np.zeros(n_threads * m * 32, np.float32)
        self.given = [
            Product(
                m,
                k,
                n,
                *map(floats, (self.a, b, panels, self.bias, self.c, self.slivers, self.tiles)),
                n_threads,
            )
            for b, panels in zip(self.b, self.panels, strict=True)
        ]
        self.flops = 2 * m * k * n
        self.calls = 0

    def call(self, function):
        function(ctypes.byref(self.given[self.calls % len(self.given)]))
        self.calls += 1

    def answer(self, function):
        """c of the first weights, as the step gives it."""
        self.calls = 0
        self.c[:] = np.nan
        self.call(function)
        return self.c.copy()

    def truth(self, step):
        x = self.a.astype(np.float64) @ self.b[0]
        if step in WITH_GELU:
            x = x + self.bias
            x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return x

    def package(self, step, isa, n_threads=1, copy=0):
        gelu = (self.bias, "gelu_tanh") if step in WITH_GELU else (None, None)
        if not hasattr(self, "packed"):
            self.packed = [raw.pack(b) for b in self.b]
        return raw.gemm(self.a, self.packed[copy], *gelu, isa=isa, n_threads=n_threads)


class AttentionTask:
    """Causal attention of one head over t tokens, on random numbers."""

    def __init__(self, t, d):
        rng = np.random.default_rng(0)
        self.qkv = rng.standard_normal((t, 3 * d), np.float32)
        self.scale = np.float32(1 / np.sqrt(d))
        self.q, self.k, self.v = (np.ascontiguousarray(part) for part in np.split(self.qkv, 3, axis=1))
        self.v = np.append(self.v, np.zeros((-(-32 // d), d), np.float32), axis=0)  # a tile reads 32 columns
        self.key_blocks = np.ascontiguousarray(padded(self.k, 64).reshape(-1, 64, d).transpose(0, 2, 1))
        self.out = np.zeros((t, d), np.float32)
        self.scratch = np.zeros(t * t + 14 * (d + 64 + -(-d // 32) * 32), np.float32)
        arrays = (self.q, self.k, self.v, self.key_blocks, self.out, self.scratch)
        self.given = Attention(t, d, self.scale, *map(floats, arrays))
        self.flops = 2 * d * t * (t + 1)  # two products of d for each of the t (t + 1) / 2 pairs

    def call(self, function):
        function(ctypes.byref(self.given))

    def answer(self, function):
        self.out[:] = np.nan
        self.call(function)
        return self.out.copy()

    def bytes_used(self, function):
        """Of the scratch memory: what a call writes to."""
        untouched = np.float32(-1.5e-33)
        self.scratch[:] = untouched
        self.call(function)
        return int(np.count_nonzero(self.scratch != untouched)) * 4

    def truth(self, step):
        q, k, v = (part.astype(np.float64) for part in np.split(self.qkv, 3, axis=1))
        out = []
        for i in range(len(q)):
            scores = k[: i + 1] @ q[i] * self.scale
            weights = np.exp(scores - scores.max())
            out.append(weights @ v[: i + 1] / weights.sum())
        return np.array(out)

    def package(self, step, isa, n_threads=1):
        return raw.attention(self.qkv, 1, self.scale, isa=isa, n_threads=n_threads)


def judge(task, step, function, isa):
    """None for a right answer, else what is wrong with it."""
    got, truth = task.answer(function), task.truth(step)
    error = np.abs(got - truth).max() / np.abs(truth).max()
    if not error < 1e-5:
        return f"differs from float64 by {error:.1e} of the largest number"
    if step not in OTHER_BITS and got.tobytes() != task.package(step, isa).reshape(got.shape).tobytes():
        return f"has not the bits of the package's kernel ({isa})"
    return None


def require_right(task, folder, library, isa):
    """Leave, with all that is wrong, unless every step of a folder gives the right answer."""
    found = {step: judge(task, step, library[step], isa) for step in steps(folder)}
    if wrong := [f"{step} {what}: not timed" for step, what in found.items() if what]:
        sys.exit("\n".join(wrong))


def seconds(call):
    """Of one call, over as many as make the clock's steps small."""
    calls, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < LEAST_SECONDS:
        call()
        calls += 1
    return passed / calls


class Limits:
    """What the processor can do at best, measured when asked."""

    def __init__(self, library, isa, memory):
        self.library, self.memory = library, memory
        text = (csrc.CSRC / f"isa_{isa}.c").read_text()
        lanes, rows, width = (
            int(re.search(rf"define {name} (\d+)", text)[1])
            for name in ("G2_VL", "G2_TILE_ROWS", "G2_TILE_WIDTH")
        )
        self.flops_of_a_step = 2 * lanes * rows * width
        self.sink = floats(np.zeros(256, np.float32))

    def peak(self, n_threads):
        """Floating-point operations a second of multiply-adds that wait for nothing."""
        n = 100_000
        call = seconds(lambda: self.library.peak(INTEGER(n), n_threads, self.sink))
        return n * self.flops_of_a_step * n_threads / call

    def bandwidth(self, n_threads):
        """Bytes a second from memory, read in order."""
        size = self.memory.size
        return (
            4
            * size
            / seconds(lambda: self.library.read_all(floats(self.memory), INTEGER(size), n_threads, self.sink))
        )


def rounds_of(work, rounds):
    """Ask each of {name: function that returns a figure} once a round, slow ones only once."""
    figures, slow = {name: [] for name in work}, set()
    for _ in range(rounds):
        for name, ask in work.items():
            if name not in slow:
                start = time.perf_counter()
                figures[name].append(ask())
                if time.perf_counter() - start > SLOW:
                    slow.add(name)
    return figures


def measure_product(library, isa, shape, n_threads, rounds):
    """Rows of results for one shape, one a step."""
    task = ProductTask(*shape, n_threads, COPIES)
    require_right(task, "product", library, isa)
    limits = Limits(library, isa, np.concatenate([panels.ravel() for panels in task.panels]))
    turn = itertools.count()

    def package(like):
        return seconds(lambda: task.package(like, isa, n_threads, next(turn) % COPIES))

    work = {}
    for step in steps("product"):
        call = functools.partial(task.call, library[step])
        work[step, n_threads if step in SEVERAL_THREADS else 1] = functools.partial(seconds, call)
    work["gpt2cy", n_threads] = functools.partial(package, "threads")
    work["gpt2cy with gelu", n_threads] = functools.partial(package, "epilogue")
    for used in {1, n_threads}:
        work["peak", used] = functools.partial(limits.peak, used)
        work["bandwidth", used] = functools.partial(limits.bandwidth, used)
    task.package("threads", isa)  # packs
    figures = rounds_of(work, rounds)
    best = {key: statistics.median(figures.pop(key)) for key in work if key[0] in ("peak", "bandwidth")}
    results = []
    for (step, used), times in figures.items():
        speed = task.flops / statistics.median(times)
        result = {"step": step, "shape": shape, "threads": used, "gflops": speed / 1e9}
        result["share_of_peak"] = speed / best["peak", used]
        result["peak_gflops"] = best["peak", used] / 1e9
        by_memory = best["bandwidth", used] * 2 * shape[0] / 4  # operations a byte of the weights
        result["limit_gflops"] = min(best["peak", used], by_memory) / 1e9
        results.append({**result, "seconds": times})
    return results


def measure_attention(library, isa, t, rounds):
    """Rows of results for one length, one a step."""
    task = AttentionTask(t, HEAD_DIM)
    require_right(task, "attention", library, isa)
    limits = Limits(library, isa, task.qkv)
    work = {step: functools.partial(task.call, library[step]) for step in steps("attention")}
    work["gpt2cy"] = functools.partial(task.package, None, isa)
    work = {step: functools.partial(seconds, call) for step, call in work.items()}
    figures = rounds_of(work | {"peak": functools.partial(limits.peak, 1)}, rounds)
    peak = statistics.median(figures.pop("peak"))
    results = []
    for step, times in figures.items():
        median = statistics.median(times)
        result = {"step": step, "t": t, "milliseconds": median * 1e3}
        result["scratch_bytes"] = None if step == "gpt2cy" else task.bytes_used(library[step])
        result["gflops"] = task.flops / median / 1e9
        result["share_of_peak"] = task.flops / median / peak
        results.append({**result, "seconds": times})
    return results


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--isa", default=dispatch.available()[-1], choices=dispatch.available()[1:])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="time nothing")
    parser.add_argument("--compiler", default=os.environ.get("CC", "cc"))
    parser.add_argument("--output", type=Path, help="default: perf/results/lessons-CPU.json")
    return parser.parse_args()


def main():
    """Check all lessons, then time them."""
    options = arguments()
    machine = harness.machine()
    with tempfile.TemporaryDirectory() as folder:
        library = build(options.isa, folder, options.compiler)
    n_threads = threads.get_num_threads()
    require_right(ProductTask(29, 385, 95, n_threads), "product", library, options.isa)
    require_right(AttentionTask(200, 40), "attention", library, options.isa)
    count = len(steps("product")) + len(steps("attention"))
    print(f"{count} lessons give the right answer ({options.isa})")
    if options.check:
        return
    version = subprocess.run([options.compiler, "--version"], capture_output=True, text=True).stdout
    result = {"machine": machine, "isa": options.isa, "compiler": version.partition("\n")[0]}
    result |= {"rounds": options.rounds, "threads": n_threads, "head_dim": HEAD_DIM}
    rest = (n_threads, options.rounds)
    result["product"] = [
        row for shape in SHAPES for row in measure_product(library, options.isa, shape, *rest)
    ]
    result["attention"] = [
        row for t in LENGTHS for row in measure_attention(library, options.isa, t, options.rounds)
    ]
    path = options.output or harness.RESULTS / f"lessons-{harness.slug(machine)}.json"
    harness.write(path, "lessons", result)
    for row in result["product"] + result["attention"]:
        size = " x ".join(map(str, row["shape"])) if "shape" in row else f"t = {row['t']}"
        print(
            f"{row['step']:17s} {size:16s} {row['gflops']:7.1f} GFLOP/s  {row['share_of_peak']:5.1%} of peak"
        )
    print(f"written: {path}")


if __name__ == "__main__":
    main()
