# SPDX-License-Identifier: Apache-2.0
"""LayerNorm alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy
from gpt2cy import reference


@given(
    width=st.integers(1, 200),
    shape=st.lists(st.integers(1, 5), max_size=3),
    bias=st.booleans(),
    eps=st.sampled_from([1e-12, 1e-5, 1e-3, 1.0]),
    seed=st.integers(0, 99),
)
def test_agrees_with_the_reference(width, shape, bias, eps, seed):
    rng = np.random.default_rng(seed)
    norm = gpt2cy.LayerNorm(width, eps, bias=bias)
    norm.gamma = gamma = rng.standard_normal(width, np.float32)
    beta = 0.0
    if bias:
        norm.beta = beta = rng.standard_normal(width, np.float32)
    x = 1 + rng.standard_normal((*shape, width), np.float32)
    if width > 1 and np.ptp(x, axis=-1).min() < 1e-2:
        x[..., 0] += 1.0  # a variance of rounding errors would compare those
    result = norm(x)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, reference.layernorm(x, gamma, beta, eps), rtol=1e-4, atol=1e-5)


def test_attributes():
    norm = gpt2cy.LayerNorm(4)
    assert (norm.n_embd, norm.eps) == (4, 1e-5)
    assert norm.gamma.tolist() == [1.0] * 4
    assert norm.beta.tolist() == [0.0] * 4
    assert gpt2cy.LayerNorm(4, bias=False).beta is None
    assert repr(norm) == "LayerNorm(4, eps=1e-05)"
    with pytest.raises(AttributeError):
        norm.eps = 3.0


@pytest.mark.parametrize("name", ["gamma", "beta"])
def test_weights_in_any_form(form, name):
    values = np.arange(7, dtype=np.float32) / 8
    norm = gpt2cy.LayerNorm(7)
    before = norm([np.arange(7.0)])
    setattr(norm, name, form(values))
    result = getattr(norm, name)
    np.testing.assert_array_equal(result, values)
    assert (norm([np.arange(7.0)]) != before).any()
    with pytest.raises(ValueError, match="read-only"):
        result[0] = 1.0


@pytest.mark.parametrize("name", ["gamma", "beta"])
@pytest.mark.parametrize(
    "value", [np.ones(3), np.ones((1, 4)), np.ones(4, int), None, "text", [[1.0], [1.0, 2.0]]]
)
def test_a_wrong_weight_changes_nothing(name, value):
    norm = gpt2cy.LayerNorm(4)
    before = getattr(norm, name)
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected"):
        setattr(norm, name, value)
    np.testing.assert_array_equal(getattr(norm, name), before)


def test_there_may_be_no_beta():
    with pytest.raises(ValueError, match=r"^beta: "):
        gpt2cy.LayerNorm(4, bias=False).beta = np.ones(4)


def test_x_in_any_form(form):
    x = np.arange(21, dtype=np.float32).reshape(3, 7) ** 2 / 8
    norm = gpt2cy.LayerNorm(7)
    np.testing.assert_array_equal(norm(form(x)), norm(x))


@pytest.mark.parametrize(
    "x", [None, "text", 1.0, [], np.empty((0, 4)), np.ones((4, 3)), [True] * 4, [1j] * 4]
)
def test_what_is_not_rows(x):
    with pytest.raises((TypeError, ValueError), match=r"^x: expected"):
        gpt2cy.LayerNorm(4)(x)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("n_embd", {"n_embd": 0}),
        ("n_embd", {"n_embd": 4.0}),
        ("n_embd", {"n_embd": None}),
        ("n_embd", {"n_embd": 2**63}),
        ("eps", {"eps": 0}),
        ("eps", {"eps": -1e-5}),
        ("eps", {"eps": "1e-5"}),
        ("eps", {"eps": float("nan")}),
        ("eps", {"eps": None}),
        ("bias", {"bias": 1}),
        ("bias", {"bias": None}),
    ],
)
def test_arguments_are_checked(name, arguments):
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected"):
        gpt2cy.LayerNorm(**{"n_embd": 4} | arguments)
