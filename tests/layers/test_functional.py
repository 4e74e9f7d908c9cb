# SPDX-License-Identifier: Apache-2.0
"""gelu, gelu_erf, relu and softmax as functions of arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy
from gpt2cy import reference

TWINS = {
    gpt2cy.gelu: reference.gelu_tanh,
    gpt2cy.gelu_erf: reference.gelu_erf,
    gpt2cy.relu: reference.relu,
    gpt2cy.softmax: reference.softmax,
}
functions = pytest.mark.parametrize("function", TWINS, ids=lambda function: function.__name__)
shapes = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)


@functions
@given(shape=shapes, seed=st.integers(0, 1000))
def test_agrees_with_the_reference(function, shape, seed):
    x = 3 * np.random.default_rng(seed).standard_normal(shape, np.float32)
    before = x.copy()
    result = function(x)
    assert result.dtype == np.float32
    assert result.shape == shape
    np.testing.assert_allclose(result, TWINS[function](x), rtol=2e-6, atol=5e-7)
    np.testing.assert_array_equal(x, before)
    result[...] = 0.0  # its own memory
    np.testing.assert_array_equal(x, before)


@functions
def test_large_arrays_use_the_team(function):
    x = np.random.default_rng(0).standard_normal((300, 401), np.float32)
    results = []
    for n in (1, 2, 3):
        gpt2cy.set_num_threads(n)
        results.append(function(x))
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])
    np.testing.assert_allclose(results[0], TWINS[function](x), rtol=2e-6, atol=5e-7)


@functions
def test_any_form(function, form):
    x = np.arange(-12, 12, dtype=np.float32).reshape(4, 6) / 8
    np.testing.assert_array_equal(function(form(x)), function(x))


@functions
@pytest.mark.parametrize("dtype", ["i1", "u8", ">i4", "f2", "f8"])
def test_real_dtypes(function, dtype):
    x = np.arange(6).astype(dtype)
    np.testing.assert_array_equal(function(x), function(x.astype(np.float32)))


def test_a_single_number():
    assert gpt2cy.gelu(np.float32(0.0)).shape == ()
    assert gpt2cy.relu(-2.0) == 0.0
    assert gpt2cy.relu(2) == 2.0
    with pytest.raises(ValueError, match=r"x: expected shape \[\.\.\., n\]"):
        gpt2cy.softmax(1.0)


def test_nan_stays():
    x = np.array([1.0, np.nan, -np.inf, np.inf], np.float32)
    for function in (gpt2cy.gelu, gpt2cy.gelu_erf, gpt2cy.relu):
        result = function(x)
        assert np.isnan(result[1])
        assert result[3] == np.inf
    np.testing.assert_array_equal(gpt2cy.softmax([[0.0, -np.inf, 0.0]]), [[0.5, 0.0, 0.5]])


@functions
@pytest.mark.parametrize(
    "x", [None, "text", b"1", [True], [1j], [[1.0], [1.0, 2.0]], [], np.empty((0, 3)), object()]
)
def test_what_is_not_real_numbers(function, x):
    with pytest.raises((TypeError, ValueError), match=r"^x: "):
        function(x)
