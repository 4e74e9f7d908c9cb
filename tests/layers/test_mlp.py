# SPDX-License-Identifier: Apache-2.0
"""MLP alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy
from gpt2cy import reference

ACTIVATIONS = ["gelu_tanh", "gelu_erf", "relu"]


def random_mlp(width, inner, activation, bias, seed):
    rng = np.random.default_rng(seed)
    mlp = gpt2cy.MLP(width, inner, activation, bias=bias)
    for layer in (mlp.c_fc, mlp.c_proj):
        layer.weight = rng.standard_normal(layer.weight.shape, np.float32) / np.sqrt(layer.in_features)
        if bias:
            layer.bias = rng.standard_normal(layer.out_features, np.float32)
    return mlp


@given(
    width=st.integers(1, 100),
    inner=st.none() | st.integers(1, 150),
    activation=st.sampled_from(ACTIVATIONS),
    bias=st.booleans(),
    shape=st.lists(st.integers(1, 6), max_size=3),
    seed=st.integers(0, 99),
)
def test_agrees_with_the_reference(width, inner, activation, bias, shape, seed):
    mlp = random_mlp(width, inner, activation, bias, seed)
    x = np.random.default_rng(seed).standard_normal((*shape, width), np.float32)
    expected = reference.mlp(
        x, mlp.c_fc.weight, mlp.c_fc.bias, mlp.c_proj.weight, mlp.c_proj.bias, activation
    )
    result = mlp(x)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_attributes():
    mlp = gpt2cy.MLP(8)
    assert mlp.c_fc.weight.shape == (8, 32)
    assert mlp.c_proj.weight.shape == (32, 8)
    assert mlp.activation == "gelu_tanh"
    assert gpt2cy.MLP(8, 5, bias=False).c_fc.bias is None
    assert repr(mlp) == "MLP(8, 32, 'gelu_tanh')"
    for name in ("c_fc", "c_proj", "activation"):
        with pytest.raises(AttributeError):
            setattr(mlp, name, getattr(mlp, name))


def test_sublayers_are_the_ones_used():
    mlp = random_mlp(8, 5, "relu", True, 0)
    before = mlp(np.ones((1, 8)))
    mlp.c_proj.bias = mlp.c_proj.bias + 1
    np.testing.assert_allclose(mlp(np.ones((1, 8))), before + 1, rtol=1e-6, atol=1e-6)
    mlp.c_fc.weight = np.zeros((8, 5))
    mlp.c_fc.bias = np.full(5, -1.0)
    np.testing.assert_array_equal(mlp(np.ones((1, 8)))[0], mlp.c_proj.bias)


def test_seeds():
    np.testing.assert_array_equal(gpt2cy.MLP(8, seed=1).c_proj.weight, gpt2cy.MLP(8, seed=1).c_proj.weight)
    assert (gpt2cy.MLP(8).c_fc.weight != gpt2cy.MLP(8).c_fc.weight).any()


def test_a_sublayer_outlives_its_layer():
    c_fc = gpt2cy.MLP(8, seed=1).c_fc
    np.testing.assert_array_equal(c_fc.weight, gpt2cy.MLP(8, seed=1).c_fc.weight)


def test_input_is_not_changed(form):
    mlp = random_mlp(7, 9, "gelu_erf", True, 0)
    x = np.arange(21, dtype=np.float32).reshape(3, 7) / 8
    given = form(x)
    np.testing.assert_array_equal(mlp(given), mlp(x))
    np.testing.assert_array_equal(np.asarray(given, np.float32), x)


@pytest.mark.parametrize("x", [None, "text", 1.0, [], np.empty((0, 8)), np.ones((8, 7)), [True] * 8])
def test_what_is_not_rows(x):
    with pytest.raises((TypeError, ValueError), match=r"^x: expected"):
        gpt2cy.MLP(8)(x)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("n_embd", {"n_embd": 0}),
        ("n_embd", {"n_embd": None}),
        ("n_embd", {"n_embd": 8.0}),
        ("n_inner", {"n_inner": 0}),
        ("n_inner", {"n_inner": True}),
        ("n_embd, n_inner", {"n_embd": 2**39, "n_inner": 2**39}),
        ("activation", {"activation": "gelu"}),
        ("activation", {"activation": None}),
        ("bias", {"bias": 0}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": "1"}),
    ],
)
def test_arguments_are_checked(name, arguments):
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected"):
        gpt2cy.MLP(**{"n_embd": 8} | arguments)
