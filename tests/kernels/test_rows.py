# SPDX-License-Identifier: Apache-2.0
"""Layer norm, softmax, exp and the activations, row by row."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2cy import reference
from gpt2cy.kernels import raw

WIDTHS = [*range(1, 36), 47, 48, 49, 63, 64, 65, 127, 128, 129, 768, 3071]
KINDS = ["exp", "gelu_tanh", "gelu_erf", "relu"]
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4e38, -3.4e38, 88.8, -87.3], np.float32
)
TRUTH = {
    "exp": np.exp,
    "gelu_tanh": lambda x: x / (1.0 + np.exp(-2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": np.vectorize(lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2.0))),
    "relu": lambda x: np.maximum(x, 0.0),
}


def numbers(*shape, seed=0, special=False):
    rng = np.random.default_rng([seed, *shape])
    x = 4.0 * rng.standard_normal(shape, np.float32)
    if special:
        x.reshape(-1)[rng.integers(0, x.size, x.size // 8)] = rng.choice(SPECIAL, x.size // 8)
    return x


def ulps(result, exact):
    """Error in units of the last place of the exact result as a float32."""
    return np.abs(result - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


# ---- bits


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("special", [False, True])
def test_rows_equal_ref(fused_isa, same_bits, width, special):
    x, gamma, beta = numbers(37, width, special=special), numbers(width, seed=1), numbers(width, seed=2)
    for n_threads in (1, 3):
        choice = {"isa": fused_isa, "n_threads": n_threads}
        for shift in (beta, None):
            expected = raw.layernorm(x, gamma, shift, 1e-5, isa="ref")
            same_bits(raw.layernorm(x, gamma, shift, 1e-5, **choice), expected)
        same_bits(raw.softmax(x, **choice), raw.softmax(x, isa="ref"))


@pytest.mark.parametrize("kind", KINDS)
@given(n=st.integers(1, 200), seed=st.integers(0, 10**6))
def test_functions_equal_ref(fused_isa, same_bits, kind, n, seed):
    x = numbers(n, seed=seed, special=True)
    x[::2] *= np.float32(2.0 ** -(seed % 30))
    same_bits(raw.activation(x, kind, isa=fused_isa), raw.activation(x, kind, isa="ref"))


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_shares_of_the_threads_equal_ref(fused_isa, same_bits, n_threads):
    """Enough rows for a team, in chunks that do not come out even."""
    x, gamma, beta = numbers(517, 173), numbers(173, seed=1), numbers(173, seed=2)
    choice = {"isa": fused_isa, "n_threads": n_threads}
    same_bits(raw.layernorm(x, gamma, beta, **choice), raw.layernorm(x, gamma, beta, isa="ref"))
    same_bits(raw.softmax(x, **choice), raw.softmax(x, isa="ref"))
    for kind in KINDS:
        same_bits(
            raw.activation(x.reshape(-1), kind, **choice), raw.activation(x.reshape(-1), kind, isa="ref")
        )


def test_a_row_does_not_know_its_neighbours(isa, same_bits):
    x, gamma = numbers(300, 129), numbers(129, seed=1)
    some = x[37:39].copy()
    same_bits(raw.layernorm(x, gamma, isa=isa, n_threads=2)[37:39], raw.layernorm(some, gamma, isa=isa))
    same_bits(raw.softmax(x, isa=isa, n_threads=2)[37:39], raw.softmax(some, isa=isa))


# ---- truth


def test_exp_is_within_one_ulp(isa):
    x = np.linspace(-87.3, 88.72, 2_000_003).astype(np.float32)
    x = x[(x >= np.float32(-87.3)) & (x < np.log(np.finfo(np.float32).max))]
    error = ulps(raw.activation(x, "exp", isa=isa, n_threads=2), np.exp(x.astype(np.float64)))
    assert error.max() < 1.0  # measured: 0.97


def test_exp_at_its_edges(isa):
    low, high = np.float32(-87.3), np.float32(float.fromhex("0x1.62e42ep+6"))
    x = np.array(
        [
            0.0,
            -0.0,
            np.nextafter(low, np.float32(-100)),
            -1e30,
            -np.inf,
            np.nextafter(high, np.float32(100)),
            1e30,
            np.inf,
            1e-45,
            -1e-45,
        ],
        np.float32,
    )
    result = raw.activation(x, "exp", isa=isa)
    assert result.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, math.inf, math.inf, math.inf, 1.0, 1.0]
    assert raw.activation(low.reshape(1), "exp", isa=isa)[0] >= np.finfo(np.float32).tiny
    largest = raw.activation(high.reshape(1), "exp", isa=isa)[0]
    np.testing.assert_allclose(largest, np.exp(np.float64(high)), rtol=1.2e-7)
    assert largest > 0.9999 * np.finfo(np.float32).max


@pytest.mark.parametrize("payload", [0, 1, 0x1FF, 0x200, 0x3FFFFF])
@pytest.mark.parametrize("sign", [0, 1])
def test_exp_of_nan_whatever_its_bits(isa, payload, sign):
    """The exponent of a result is made by adding integers, which knows no NaN by itself."""
    x = np.full(33, (sign << 31) | 0x7FC00000 | payload, np.uint32).view(np.float32)
    x[::2] = 1.0
    result = raw.activation(x, "exp", isa=isa)
    assert np.isnan(result[1::2]).all() and (result[::2] == result[0]).all() and np.isfinite(result[0])
    assert np.isnan(raw.activation(np.full(21, np.nan, np.float32), "exp", isa=isa)).all()


@pytest.mark.parametrize("kind, limit", [("gelu_tanh", 6.0), ("gelu_erf", 10.0), ("relu", 0.5)])
def test_activations_are_close(isa, kind, limit):
    """Relative error in 2**-24 max(1, x**2 / 2), the cost of rounding an exponent (ulp: csrc/functions.c)."""
    x = np.concatenate([np.linspace(-9.5, 9.5, 100_001), np.geomspace(1e-30, 1e4, 2000)]).astype(np.float32)
    exact = TRUTH[kind](x.astype(np.float64))
    result = raw.activation(x, kind, isa=isa)
    bound = limit * 2.0**-24 * np.maximum(1.0, 0.5 * x.astype(np.float64) ** 2) * np.abs(exact)
    assert (np.abs(result - exact) <= np.maximum(bound, 1e-36)).all()


@pytest.mark.parametrize("width", [1, 2, 5, 16, 17, 768, 4099])
def test_layernorm_and_softmax_are_close(isa, width):
    x, gamma, beta = numbers(5, width) + 3, numbers(width, seed=1), numbers(width, seed=2)
    expected = reference.layernorm(x, gamma, beta, 1e-5)
    np.testing.assert_allclose(raw.layernorm(x, gamma, beta, 1e-5, isa=isa), expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(raw.softmax(x, isa=isa), reference.softmax(x), rtol=2e-6)


@pytest.mark.parametrize("scale", [0.0, 0.1, 4.0, 30.0])
@pytest.mark.parametrize("width", [1, 2, 16, 17, 768, 4096])
def test_softmax_is_within_its_bound(isa, width, scale):
    """Of docs/numerics.md: rounding of max - x, exp, the sum and the division."""
    x = (1.0 + scale * numbers(20, width)).astype(np.float32)
    below = x.max(-1, keepdims=True).astype(np.float64) - x
    exact = np.exp(-below) / np.exp(-below).sum(-1, keepdims=True)
    bound = (below + math.log(width) + -(-width // 16) + 8) * 2.0**-24 * exact
    error = np.abs(raw.softmax(x, isa=isa) - exact)
    assert (error <= np.where(exact < 1.3e-38, 1.3e-38, 1.001 * bound)).all()


def test_softmax_at_its_edges(isa):
    inf = math.inf
    x = np.array([[1e30, -1e30, 0.0], [-inf, 0.0, 0.0], [-3e38, -3e38, -3e38]], np.float32)
    third = np.float32(1.0) / np.float32(3.0)
    expected = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [third] * 3], np.float32)
    np.testing.assert_array_equal(raw.softmax(x, isa=isa), expected)
    for row in ([-inf, -inf, -inf], [inf, 0.0, 0.0], [0.0, 1.0, math.nan]):
        assert np.isnan(raw.softmax(np.array([row], np.float32), isa=isa)).any()


def test_layernorm_of_a_constant_row_is_beta(isa):
    beta = numbers(50, seed=2)
    result = raw.layernorm(np.full((2, 50), 7.0, np.float32), numbers(50, seed=1), beta, isa=isa)
    np.testing.assert_array_equal(result, [beta, beta])
