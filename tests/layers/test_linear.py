# SPDX-License-Identifier: Apache-2.0
"""Linear alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy
from gpt2cy import reference


def random_layer(n_in, n_out, bias, seed):
    rng = np.random.default_rng(seed)
    layer = gpt2cy.Linear(n_in, n_out, bias)
    layer.weight = rng.standard_normal((n_in, n_out), np.float32)
    if bias:
        layer.bias = rng.standard_normal(n_out, np.float32)
    return layer


@given(
    n_in=st.integers(1, 400),
    n_out=st.integers(1, 100),
    shape=st.lists(st.integers(1, 5), max_size=3),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_agrees_with_the_reference(n_in, n_out, shape, bias, seed):
    layer = random_layer(n_in, n_out, bias, seed)
    x = np.random.default_rng(seed).standard_normal((*shape, n_in), np.float32)
    result = layer(x)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, reference.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=2e-5)


def test_attributes():
    layer = gpt2cy.Linear(3, 2)
    assert (layer.in_features, layer.out_features) == (3, 2)
    assert layer.weight.shape == (3, 2)
    assert layer.bias.tolist() == [0.0, 0.0]
    assert gpt2cy.Linear(3, 2, False).bias is None
    assert repr(layer) == "Linear(3, 2, bias=True)"
    with pytest.raises(AttributeError):
        layer.in_features = 4


def test_initial_weights():
    weight = gpt2cy.Linear(600, 900, seed=5).weight  # more than one block of drawing
    np.testing.assert_array_equal(weight, gpt2cy.Linear(600, 900, seed=5).weight)
    assert (weight != gpt2cy.Linear(600, 900).weight).any()
    assert abs(weight.std() - 0.02) < 1e-4
    assert abs(weight.mean()) < 1e-4
    assert len(np.unique(weight[[0, 300, 599]])) > 2000


def test_weight_in_any_form(form):
    weight = np.arange(35 * 6, dtype=np.float32).reshape(6, 35) / 8
    layer = gpt2cy.Linear(6, 35)
    layer.weight = form(weight)
    layer.bias = form(weight[0])
    np.testing.assert_array_equal(layer.weight, weight)
    np.testing.assert_array_equal(layer(np.eye(6)), weight + weight[0])


def test_weights_are_read_only_copies():
    layer = gpt2cy.Linear(3, 4, seed=0)
    for array in (layer.weight, layer.bias):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 1.0
    weight = layer.weight
    layer.weight = layer.weight * 2
    np.testing.assert_array_equal(layer.weight, weight * 2)


@pytest.mark.parametrize(
    "value", [np.ones((4, 3)), np.ones(12), np.ones((3, 4), int), None, "x", np.full((3, 4), 1e39)]
)
def test_a_wrong_weight_changes_nothing(value):
    layer = gpt2cy.Linear(3, 4, seed=0)
    before = layer.weight
    with pytest.raises((TypeError, ValueError), match=r"^weight: expected"):
        layer.weight = value
    np.testing.assert_array_equal(layer.weight, before)


@pytest.mark.parametrize("value", [np.ones(3), np.ones((1, 4)), np.ones(4, bool), None, 1.0])
def test_a_wrong_bias_changes_nothing(value):
    layer = gpt2cy.Linear(3, 4)
    with pytest.raises((TypeError, ValueError), match=r"^bias: expected"):
        layer.bias = value
    assert not layer.bias.any()


def test_there_may_be_no_bias():
    with pytest.raises(ValueError, match=r"^bias: "):
        gpt2cy.Linear(3, 4, bias=False).bias = np.ones(4)


def test_shape_messages_name_both_shapes():
    with pytest.raises(ValueError, match=r"^weight: expected shape \[3, 4\], got shape \[4, 3\]$"):
        gpt2cy.Linear(3, 4).weight = np.ones((4, 3))
    with pytest.raises(
        ValueError, match=r"^x: expected shape \[\.\.\., 3\] with at least one row, got shape \[2, 4\]$"
    ):
        gpt2cy.Linear(3, 4)(np.ones((2, 4)))


def test_x_in_any_form(form):
    x = np.arange(21, dtype=np.float32).reshape(3, 7) / 8
    layer = random_layer(7, 5, True, 0)
    np.testing.assert_array_equal(layer(form(x)), layer(x))


@pytest.mark.parametrize(
    "x", [None, "text", 1.0, [], np.empty((0, 3)), [True] * 3, [1j] * 3, [[1.0] * 3, [1.0]]]
)
def test_what_is_not_rows(x):
    with pytest.raises((TypeError, ValueError), match=r"^x: expected"):
        gpt2cy.Linear(3, 4)(x)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("in_features", (0, 4)),
        ("out_features", (4, 0)),
        ("out_features", (4, -1)),
        ("in_features", (2.0, 4)),
        ("in_features", (True, 4)),
        ("out_features", (4, None)),
        ("out_features", (4, 2**62)),
        ("in_features, out_features", (2**40, 2**40)),
        ("bias", (3, 4, 1)),
        ("bias", (3, 4, None)),
    ],
)
def test_arguments_are_checked(name, arguments):
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected"):
        gpt2cy.Linear(*arguments)


def test_too_large_for_memory():
    with pytest.raises(MemoryError):
        gpt2cy.Linear(2**29, 2**29)
