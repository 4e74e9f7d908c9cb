# SPDX-License-Identifier: Apache-2.0
"""What does a call cost before any arithmetic? Microseconds, on one token and 16 numbers of width.

    python perf/overhead.py --quick

A model of one layer, 16 wide, and each of the layers by itself, on arrays as they come: float32 rows, int64
ids. So little work stays on one thread whatever their number is. Answers are compared with gpt2cy.reference
first.

"caches swept": before each call twice the last-level cache is read, as a larger model's weights would be.
What Python does at the door then comes from memory.
"""

import statistics
import sys
import time

import bench
import harness
import limits
import numpy as np
import shapes

import gpt2cy
from gpt2cy import reference

CONFIG = gpt2cy.GPTConfig(vocab_size=64, n_embd=16, n_heads=2, n_layers=1, block_size=64)


def calls():
    """{name: (call, what it must give)}."""
    weights = shapes.weights(CONFIG)
    model = gpt2cy.GPT(CONFIG)
    model.load_state_dict(weights)
    token, row = np.array([3]), np.random.default_rng(0).standard_normal((1, CONFIG.n_embd), np.float32)
    exact, logits = row.astype(np.float64), reference.forward(CONFIG, weights, token)
    cache, block = model.new_cache(), model.blocks[0]
    params = {name.removeprefix("h.0."): array for name, array in weights.items() if name.startswith("h.0.")}

    def of(layer):
        return params[f"{layer}.weight"], params[f"{layer}.bias"]

    heads, scale = CONFIG.n_heads, CONFIG.head_dim**-0.5
    attended = reference.attention(exact, *of("attn.c_attn"), *of("attn.c_proj"), heads, scale)

    def cached():
        cache.truncate(0)
        return model.next_logits(token, cache)

    return {
        "model.forward": (lambda: model(token), logits),
        "model.next_logits": (lambda: model.next_logits(token), logits[-1]),
        "model.next_logits, cached": (cached, logits[-1]),
        "Embedding": (lambda: model.wte(token), weights["wte.weight"][token]),
        "LayerNorm": (
            lambda: block.ln_1(row),
            reference.layernorm(exact, *of("ln_1"), CONFIG.layer_norm_eps),
        ),
        "Linear": (lambda: block.attn.c_attn(row), reference.linear(exact, *of("attn.c_attn"))),
        "Attention": (lambda: block.attn(row), attended),
        "MLP": (lambda: block.mlp(row), reference.mlp(exact, *of("mlp.c_fc"), *of("mlp.c_proj"))),
        "Block": (lambda: block(row), reference.block(exact, params, heads, scale)),
        "gelu": (lambda: gpt2cy.gelu(row), reference.gelu_tanh(exact)),
    }


def swept(call):
    """A timer for bench.Case: milliseconds of a call that finds nothing of its own in the caches."""
    other = np.ones(2 * limits.cache_sizes()["l3"] // 4, np.float32)

    def timer(seconds):
        samples = []
        begin = time.perf_counter()
        while not samples or time.perf_counter() - begin < seconds:
            other.sum()
            start = time.perf_counter()
            call()
            samples.append(1e3 * (time.perf_counter() - start))
        return statistics.median(samples)

    return timer


def main(argv=None):
    args = harness.arguments(harness.parser(__doc__), argv, "overhead")
    lines = []
    run = bench.Bench(args, None)
    for threads in args.threads:
        gpt2cy.set_num_threads(threads)
        cases = []
        for name, (call, want) in calls().items():
            bench.require_close(name, call(), want)
            cases.append(bench.Case({"call": name, "threads": threads}, call))
            if name.startswith("model."):
                cases.append(
                    bench.Case({"call": f"{name}, caches swept", "threads": threads}, None, timer=swept(call))
                )
        for row in run.measure(cases):
            times = [harness.number(1e3 * row[key]) for key in ("median", "low", "high")]
            lines.append([row["call"], threads, f"{times[0]} ({times[1]}-{times[2]})"])
    gpt2cy.set_num_threads(None)
    print(harness.table(["call", "threads", "microseconds"], lines))
    run.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
