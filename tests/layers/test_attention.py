# SPDX-License-Identifier: Apache-2.0
"""Attention alone."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy
from gpt2cy import reference


def random_attention(width, n_heads, seed=0, **options):
    rng = np.random.default_rng(seed)
    attention = gpt2cy.Attention(width, n_heads, **options)
    for layer in (attention.c_attn, attention.c_proj):
        layer.weight = rng.standard_normal(layer.weight.shape, np.float32) / np.sqrt(width)
        if layer.bias is not None:
            layer.bias = rng.standard_normal(layer.out_features, np.float32)
    return attention


def expected(attention, x):
    weights = (attention.c_attn.weight, attention.c_attn.bias, attention.c_proj.weight, attention.c_proj.bias)
    return reference.attention(x, *weights, attention.n_heads, attention.scale)


@given(
    n_heads=st.integers(1, 5),
    head_dim=st.integers(1, 40),
    length=st.integers(1, 80),
    batch=st.integers(0, 3),
    bias=st.booleans(),
    scaled=st.booleans(),
    inverse=st.booleans(),
    layer=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_agrees_with_the_reference(n_heads, head_dim, length, batch, bias, scaled, inverse, layer, seed):
    attention = random_attention(
        n_heads * head_dim,
        n_heads,
        seed,
        bias=bias,
        scale_attn_weights=scaled,
        scale_attn_by_inverse_layer_idx=inverse,
        layer_idx=layer,
    )
    scale = (1 / math.sqrt(head_dim) if scaled else 1.0) / (layer + 1 if inverse else 1)
    assert attention.scale == np.float32(scale)
    shape = (batch, length) if batch else (length,)
    x = np.random.default_rng(seed).standard_normal((*shape, n_heads * head_dim), np.float32)
    result = attention(x)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected(attention, x), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("head_dim", [1, 16, 31, 32, 33, 64, 128, 255, 256])
def test_head_widths(head_dim):
    attention = random_attention(2 * head_dim, 2)
    x = np.random.default_rng(1).standard_normal((70, 2 * head_dim), np.float32)
    np.testing.assert_allclose(attention(x), expected(attention, x), rtol=1e-4, atol=2e-5)


def test_attributes():
    attention = gpt2cy.Attention(8, n_heads=2)
    assert (attention.n_heads, attention.head_dim) == (2, 4)
    assert attention.c_attn.weight.shape == (8, 24)
    assert attention.c_proj.weight.shape == (8, 8)
    assert gpt2cy.Attention(8, 2, bias=False).c_attn.bias is None
    assert repr(attention) == "Attention(8, n_heads=2)"
    for name in ("c_attn", "c_proj", "n_heads", "head_dim", "scale"):
        with pytest.raises(AttributeError):
            setattr(attention, name, getattr(attention, name))


def test_causal_to_the_bit(same_bits):
    attention = random_attention(24, 3)
    x = np.random.default_rng(1).standard_normal((100, 24), np.float32)
    whole = attention(x)
    for length in (1, 14, 63, 64, 65, 99):
        same_bits(attention(x[:length]), whole[:length])
    x[70:] = np.nan
    same_bits(attention(x)[:70], whole[:70])


def test_rows_of_a_batch_do_not_mix(same_bits):
    attention = random_attention(24, 3)
    x = np.random.default_rng(1).standard_normal((3, 20, 24), np.float32)
    same_bits(attention(x)[1], attention(x[1]))


def test_x_in_any_form(form):
    attention = random_attention(6, 2)
    x = np.arange(24, dtype=np.float32).reshape(4, 6) / 8
    np.testing.assert_array_equal(attention(form(x)), attention(x))


def test_seeds():
    same = [gpt2cy.Attention(8, 2, seed=1).c_attn.weight for _ in range(2)]
    np.testing.assert_array_equal(*same)
    assert (gpt2cy.Attention(8, 2).c_attn.weight != gpt2cy.Attention(8, 2).c_attn.weight).any()


@pytest.mark.parametrize(
    "x",
    [
        None,
        "text",
        [],
        np.ones(8),
        np.empty((0, 8)),
        np.empty((2, 0, 8)),
        np.ones((3, 7)),
        np.ones((1, 1, 1, 8)),
        [[True] * 8],
    ],
)
def test_what_is_not_rows(x):
    with pytest.raises((TypeError, ValueError), match=r"^x: expected"):
        gpt2cy.Attention(8, 2)(x)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("n_heads", {"n_heads": 3}),
        ("n_heads", {"n_heads": 0}),
        ("n_heads", {"n_heads": -2}),
        ("n_heads", {"n_heads": 2.0}),
        ("n_heads", {"n_heads": None}),
        ("n_embd", {"n_embd": 0}),
        ("n_embd", {"n_embd": 2**40}),
        ("n_embd", {"n_embd": None}),
        ("n_heads", {"n_embd": 514, "n_heads": 2}),
        ("bias", {"bias": None}),
        ("scale_attn_weights", {"scale_attn_weights": 1}),
        ("scale_attn_by_inverse_layer_idx", {"scale_attn_by_inverse_layer_idx": "no"}),
        ("layer_idx", {"layer_idx": -1}),
        ("layer_idx", {"layer_idx": None}),
        ("seed", {"seed": 1.0}),
    ],
)
def test_arguments_are_checked(name, arguments):
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected"):
        gpt2cy.Attention(**{"n_embd": 8, "n_heads": 2} | arguments)


def test_heads_that_do_not_divide_name_the_nearest():
    message = r"n_heads: expected an integer >= 1 that divides n_embd \(12\), got 5; nearest valid: 4 and 6"
    with pytest.raises(ValueError, match=message):
        gpt2cy.Attention(12, 5)
