# SPDX-License-Identifier: Apache-2.0
"""Huge numbers, Inf, NaN, subnormals: calls end, and other rows and earlier tokens see nothing of them."""

import statistics
import time

import formula
import numpy as np
import pytest

import gpt2cy
from gpt2cy import reference
from gpt2cy.kernels import dispatch

EXTREMES = [1e30, -1e30, 3.4e38, np.inf, -np.inf, np.nan, 1e-40]
CONFIG = gpt2cy.GPTConfig(61, 20, 5, 2, 150)
WIDTH = 20

ROWS = {
    "LayerNorm": lambda: gpt2cy.LayerNorm(WIDTH),
    "Linear": lambda: gpt2cy.Linear(WIDTH, 33, seed=0),
    "MLP": lambda: gpt2cy.MLP(WIDTH, seed=0),
    "MLP, erf": lambda: gpt2cy.MLP(WIDTH, activation="gelu_erf", seed=0),
    "MLP, relu": lambda: gpt2cy.MLP(WIDTH, activation="relu", seed=0),
    "gelu": lambda: gpt2cy.gelu,
    "gelu_erf": lambda: gpt2cy.gelu_erf,
    "relu": lambda: gpt2cy.relu,
    "softmax": lambda: gpt2cy.softmax,
}
SEQUENCES = {
    "Attention": lambda: gpt2cy.Attention(WIDTH, 5, seed=0),
    "Block": lambda: gpt2cy.Block(CONFIG, seed=0),
}
extreme = pytest.mark.parametrize("value", EXTREMES)
large = pytest.mark.parametrize("value", [1e30, np.inf, np.nan])


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def poisoned(x, at, value):
    """A copy with the value in half of the row `at`, or in the number `at`."""
    copy = x.copy()
    if copy[at].ndim:
        copy[at][..., ::2] = value
    else:
        copy[at] = value
    return copy


# ---- layers alone


@extreme
@pytest.mark.parametrize("name", ROWS)
def test_a_row_touches_no_other(isa, same_bits, name, value):
    dispatch.use(isa)
    layer = ROWS[name]()
    x = numbers(70, WIDTH)
    expected = layer(x)
    for at in (0, 13, 69):
        result = layer(poisoned(x, at, value))
        others = np.arange(70) != at
        same_bits(result[others], expected[others])
        same_bits(result[at], layer(poisoned(x, at, value)[at : at + 1])[0])


@extreme
@pytest.mark.parametrize("name", SEQUENCES)
def test_a_row_touches_no_earlier_one(isa, same_bits, name, value):
    """Nor any of another sequence: rows 0 to 129 of two, across the edges of blocks of 64 keys."""
    dispatch.use(isa)
    layer = SEQUENCES[name]()
    x = numbers(2, 130, WIDTH)
    expected = layer(x)
    for at in (0, 63, 64, 129):
        result = layer(poisoned(x, (0, at), value))
        same_bits(result[0, :at], expected[0, :at])
        same_bits(result[1], expected[1])
        if np.isnan(value):
            assert np.isnan(result[0, at:]).all()


@large
@pytest.mark.parametrize("name", ["Linear", "MLP", "LayerNorm", "Attention", "Block"])
def test_weights_of_any_size_keep_rows_apart(isa, same_bits, name, value):
    """Each weight in turn half extreme: a sequence gives the bits it gives alone, and its start too."""
    dispatch.use(isa)
    layer = (ROWS | SEQUENCES)[name]()
    x = numbers(2, 66, WIDTH)
    for part, attribute in weights(layer):
        before = getattr(part, attribute)
        setattr(part, attribute, poisoned(before, ..., value))
        whole = layer(x)
        for i in range(2):
            same_bits(layer(x[i]), whole[i])
        same_bits(layer(x[:, :31]), whole[:, :31])
        setattr(part, attribute, before)


def weights(layer):
    """Yield (layer, attribute) of every weight within."""
    for attribute in ("weight", "bias", "gamma", "beta"):
        if getattr(layer, attribute, None) is not None:
            yield layer, attribute
    for part in ("ln_1", "attn", "ln_2", "mlp", "c_attn", "c_fc", "c_proj"):
        if hasattr(layer, part):
            yield from weights(getattr(layer, part))


# ---- models


@pytest.fixture
def model(isa):
    dispatch.use(isa)
    model = gpt2cy.GPT(CONFIG)
    model.load_state_dict(formula.weights(CONFIG))
    return model


@large
def test_a_token_touches_no_other_sequence_and_no_earlier_token(model, same_bits, value):
    """Token 60 carries the value: with forward, next_logits, forward_many and caches."""
    tokens = formula.tokens(CONFIG, 2, 130) % 60
    expected = model(tokens)
    model.wte.weight = poisoned(model.wte.weight, 60, value)
    for at in (0, 63, 64):
        dirty = tokens[0].copy()
        dirty[at] = 60
        first, second, short = model.forward_many([dirty, tokens[1], tokens[0, :40]])
        same_bits(model(dirty), first)
        same_bits(first[:at], expected[0, :at])
        same_bits(second, expected[1])
        same_bits(short, expected[0, :40])
        same_bits(model.next_logits([dirty, tokens[1]])[1], expected[1, -1])

        caches = [model.new_cache(), model.new_cache()]
        model.forward_many([dirty[:70], tokens[1, :70]], caches)
        branch = caches[0].copy()
        rest = model.forward_many([dirty[70:], tokens[1, 70:]], caches)
        same_bits(rest[0], first[70:])
        same_bits(rest[1], expected[1, 70:])
        clean_again = min(at, 70)
        for cache in (branch, caches[0]):
            cache.truncate(clean_again)
            same_bits(model(tokens[0, clean_again:], cache), expected[0, clean_again:])


@large
def test_a_weight_of_any_size_keeps_every_promise(model, same_bits, value):
    """In half a row of each matrix, one number of each gamma: batches, pieces, caches give the same bits."""
    tokens = formula.tokens(CONFIG, 2, 67)
    before = model.state_dict()
    for name, array in before.items():
        if "h.1." in name or name.endswith("bias"):
            continue
        model.load_state_dict(before | {name: poisoned(array, (array.shape[0] // 2,), value)})
        whole = model(tokens)
        same_bits(model.next_logits(tokens), whole[:, -1])
        many = model.forward_many([tokens[1], tokens[0, :20]])
        same_bits(many[0], whole[1])
        same_bits(many[1], whole[0, :20])
        cache = model.new_cache(2)
        same_bits(model(tokens[:, :65], cache), whole[:, :65])
        same_bits(model(tokens[:, 65:], cache), whole[:, 65:])


# ---- subnormal numbers


@pytest.mark.alone
def test_subnormal_weights_cost_no_time():
    """NUM-04: c_fc of 1e-41, against one of 0.02, run in turn; and right to 1e-38."""
    small, normal = gpt2cy.MLP(256, seed=0), gpt2cy.MLP(256, seed=0)
    x = numbers(64, 256)
    weight = np.float32(1e-41) * numbers(256, 1024)
    assert 0 < np.abs(weight).max() < np.finfo(np.float32).tiny
    small.c_fc.weight = weight
    gpt2cy.set_num_threads(1)

    def seconds(layer):
        start = time.perf_counter()
        layer(x)
        return time.perf_counter() - start

    ratios = [seconds(small) / seconds(normal) for _ in range(31)]
    assert statistics.median(ratios) < 3
    hidden = x.astype(np.float64) @ weight.astype(np.float64)
    np.testing.assert_allclose(small.c_fc(x), hidden, rtol=0, atol=1e-38)
    expected = reference.gelu_tanh(hidden) @ small.c_proj.weight
    np.testing.assert_allclose(small(x), expected, rtol=0, atol=1e-38)
