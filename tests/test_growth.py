# SPDX-License-Identifier: Apache-2.0
"""Calls leave nothing behind: neither good ones nor refused ones."""

import contextlib
import gc
import os
import sys
import tracemalloc

import numpy as np
import pytest

import gpt2cy

CONFIG = gpt2cy.GPTConfig(61, 16, 2, 2, 100)
MODEL = gpt2cy.GPT(CONFIG, seed=0)
X = np.ones((3, 16), np.float32)
TOKENS = np.arange(70) % 61
TRACED = 20_000  # bytes: tracemalloc's own; a single object a call is more
RESIDENT = 2 << 20

exhaustive = [pytest.mark.slow, pytest.mark.exhaustive]
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def with_cache():
    cache = MODEL.new_cache()
    MODEL(TOKENS, cache)
    branch = cache.copy()
    MODEL.next_logits([1], branch)
    cache.truncate(3)
    MODEL.next_logits([1], cache)


def assign():
    layer = MODEL.blocks[0].mlp.c_fc
    layer.weight = layer.weight
    layer.bias = layer.bias
    MODEL.ln_f.gamma = MODEL.ln_f.gamma


GOOD = {
    "forward": lambda: MODEL(TOKENS),
    "next_logits": lambda: MODEL.next_logits(TOKENS),
    "forward_many": lambda: MODEL.forward_many([TOKENS, TOKENS[:3]]),
    "cache": with_cache,
    "GPT": lambda: gpt2cy.GPT(CONFIG, init_std=0.0),
    "Embedding": lambda: gpt2cy.Embedding(5, 16)([1, 2]),
    "LayerNorm": lambda: gpt2cy.LayerNorm(16)(X),
    "Linear": lambda: gpt2cy.Linear(16, 3)(X),
    "MLP": lambda: gpt2cy.MLP(16)(X),
    "Attention": lambda: gpt2cy.Attention(16, 2)(X),
    "Block": lambda: gpt2cy.Block(CONFIG)(X),
    "functions": lambda: (gpt2cy.gelu(X), gpt2cy.gelu_erf(X), gpt2cy.relu(X), gpt2cy.softmax(X)),
    "assign": assign,
    "state_dict": lambda: MODEL.load_state_dict(MODEL.state_dict()),
    "config": lambda: gpt2cy.GPTConfig.preset("tiny").memory_plan(2, 30),
    "set_num_threads": lambda: gpt2cy.set_num_threads(None),
}
BAD = {
    "forward": lambda: MODEL([61]),
    "forward a cache too small": lambda: MODEL(TOKENS, MODEL.new_cache(capacity=9)),
    "next_logits": lambda: MODEL.next_logits([[1, 2]], MODEL.new_cache(2)),
    "forward_many": lambda: MODEL.forward_many([[1], [99]]),
    "new_cache": lambda: MODEL.new_cache(0),
    "truncate": lambda: MODEL.new_cache().truncate(1),
    "GPT": lambda: gpt2cy.GPT(CONFIG, init_std="x"),
    "Embedding": lambda: gpt2cy.Embedding(5, 16, seed=-1),
    "LayerNorm": lambda: gpt2cy.LayerNorm(16)(X[:, :3]),
    "Linear": lambda: gpt2cy.Linear(16, 3)("x"),
    "MLP": lambda: gpt2cy.MLP(16, activation="tanh"),
    "Attention": lambda: gpt2cy.Attention(16, 3),
    "Block": lambda: gpt2cy.Block(CONFIG, 2),
    "assign": lambda: setattr(MODEL.lm_head, "weight", X),
    "load_state_dict": lambda: MODEL.load_state_dict({"x": X}),
    "softmax": lambda: gpt2cy.softmax([]),
    "set_num_threads": lambda: gpt2cy.set_num_threads(0),
}


def resident():
    """Bytes of memory of our own: pages of files come and go as the system likes."""
    with open("/proc/self/statm") as file:
        _, pages, of_files, *_ = map(int, file.read().split())
    return (pages - of_files) * os.sysconf("SC_PAGE_SIZE")


def grown(call, rounds):
    """Python's and the process's growth over half of the calls, in bytes: the least of up to three halves.

    What is left behind is left each time; what the allocator keeps of what is freed, or gives back, is not.
    """
    for _ in range(rounds // 2):
        call()
    least = None
    for _ in range(3):
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0], resident()
        for _ in range(rounds // 2):
            call()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0], resident()
        tracemalloc.stop()
        growth = after[0] - before[0], after[1] - before[1]
        least = growth if least is None else (min(least[0], growth[0]), min(least[1], growth[1]))
        if least[0] < TRACED and least[1] < RESIDENT:
            break
    return least


@linux
@pytest.mark.parametrize("rounds", [200, pytest.param(10_000, marks=exhaustive)])
@pytest.mark.parametrize("name", GOOD)
def test_good_calls_leave_nothing(name, rounds):
    traced, process = grown(GOOD[name], rounds)
    assert traced < TRACED
    assert process < RESIDENT


@linux
@pytest.mark.parametrize("rounds", [200, pytest.param(10_000, marks=exhaustive)])
@pytest.mark.parametrize("name", BAD)
def test_refused_calls_leave_nothing(name, rounds):
    def call():
        with contextlib.suppress(TypeError, ValueError):
            BAD[name]()
            raise AssertionError("not refused")

    traced, process = grown(call, rounds)
    assert traced < TRACED
    assert process < RESIDENT


@linux
def test_caches_that_share_may_go_in_any_order():
    """Blocks live as long as somebody holds them, and not longer."""
    model = gpt2cy.GPT(gpt2cy.GPTConfig(61, 128, 2, 8, 1024), seed=0)
    tokens = np.arange(1024) % 61

    def round_of(order):
        caches = [model.new_cache()]
        expected = model.next_logits(tokens[:1000], caches[0])
        for _ in range(4):
            caches.append(caches[-1].copy())
            model.next_logits([5], caches[-1])
        last = caches[order[-1]].copy()
        for i in order:
            caches[i] = None
        last.truncate(999)
        np.testing.assert_array_equal(model.next_logits(tokens[999:1000], last), expected)

    orders = [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 0, 4, 1, 3)]
    for order in orders:
        round_of(order)
    before = resident()
    for order in orders * 3:
        round_of(order)
    assert resident() - before < 8 << 20
