# SPDX-License-Identifier: Apache-2.0
"""How far layer norm is from the truth: within the bound of docs/numerics.md, for any mean beside any spread.

With u = 2**-24, k = ceil(C / 16) numbers a lane, m and s the row's mean and root mean square deviation:

    the mean misses by at most          d = (k + 4) u (abs(m) + s)
    and in units of what divides        r = d / sqrt(s^2 + eps)
    so (x - m) / sqrt(..) = z misses by r + abs(z) min(1, r^2 / 2) + (k + 17) / 2 u (abs(z) + r)

k + 3 additions and a division make the mean. A miss of d in the mean moves every number by d, and adds d^2 to
the variance. After that there are a sum of positive terms (k + 9 roundings, halved by the root), a root, a
division, a difference and a product. Whoever rounds the mean to float32 may have an r of u abs(m) / (2 s).
"""

import numpy as np
import pytest

from gpt2cy.kernels import raw

UNIT = 2.0**-24
WIDTHS = [1, 7, 16, 768, 4096]
RATIOS = [0.0, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6]


def rows(width, ratio, spread=1.0):
    """Some rows of about this mean over spread, in float32; means of either sign, and no round ones."""
    rng = np.random.default_rng([width, int(ratio)])
    signs = np.array([1.0, -1.0, 1.1, -0.7, 0.9, 1.3, -1.7])[:, None]
    return (spread * (rng.standard_normal((7, width)) + ratio * signs)).astype(np.float32)


def truth(x, eps):
    """In float64: z, the mean, the root mean square deviation, and what z was divided by."""
    x = x.astype(np.float64)
    mean = x.mean(-1, keepdims=True)
    spread = np.sqrt(np.square(x - mean).mean(-1, keepdims=True))
    scale = np.sqrt(np.square(spread) + eps)
    return (x - mean) / scale, mean, spread, scale


def bound(x, eps):
    """Largest error of z."""
    z, mean, spread, scale = truth(x, eps)
    lane = -(-x.shape[-1] // 16)
    r = (lane + 4) * UNIT * (np.abs(mean) + spread) / scale
    z = np.abs(z)
    return 1.001 * (r + z * np.minimum(1.0, r**2 / 2) + (lane + 17) / 2 * UNIT * (z + r)) + 1e-30


@pytest.mark.parametrize("spread", [1e-6, 1e-2, 1.0, 1e6])
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("width", WIDTHS)
def test_within_the_bound(isa, width, ratio, spread):
    x = rows(width, ratio, spread)
    ones, rng = np.ones(width, np.float32), np.random.default_rng(0)
    gamma, beta = rng.standard_normal((2, width), np.float32)
    for eps in (1e-5, 1e-12):
        z, most = truth(x, np.float32(eps).astype(float))[0], bound(x, np.float32(eps).astype(float))
        assert (np.abs(raw.layernorm(x, ones, None, eps, isa=isa) - z) <= most).all()
        expected = z * gamma + beta.astype(np.float64)
        most = np.abs(gamma) * most + UNIT * (np.abs(z * gamma) + np.abs(expected) + np.abs(gamma) * most)
        assert (np.abs(raw.layernorm(x, gamma, beta, eps, isa=isa) - expected) <= most).all()


@pytest.mark.parametrize("width", [7, 768, 4096])
def test_the_bound_is_no_empty_promise(width):
    """The one-pass variance breaks it, and so does a variance with a factor 1 + 1e-3 or an eps forgotten."""
    x = rows(width, 1e3)
    most, ones = bound(x, 1e-5), np.ones(width, np.float32)
    mean = x.mean(-1, keepdims=True)
    variance = np.maximum(np.square(x).mean(-1, keepdims=True) - np.square(mean), 0)
    one_pass = (x - mean) / np.sqrt(variance + np.float32(1e-5))
    assert (np.abs(one_pass - truth(x, 1e-5)[0]) > most).any()
    near = rows(width, 1.0)
    wrong = raw.layernorm(near, ones, None, 1e-5) / np.float32(np.sqrt(1.001))
    assert (np.abs(wrong - truth(near, 1e-5)[0]) > bound(near, 1e-5)).any()
    small = rows(width, 1.0, 1e-2)
    wrong = raw.layernorm(small, ones, None, 1e-12)
    assert (np.abs(wrong - truth(small, 1e-5)[0]) > bound(small, 1e-5)).any()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("value", [0.0, 7.0, -0.3330078125, 1.0009765625, -6144.0, 65504.0])
def test_constant_rows_of_few_bits_are_beta(isa, width, value):
    """12 bits of a number and 12 of the width fit 24: the mean is exact, and the result beta to the bit."""
    assert np.frexp(value)[0] * 2**12 % 1 == 0
    beta = np.random.default_rng(0).standard_normal(width, np.float32)
    x, ones = np.full((3, width), value, np.float32), np.ones(width, np.float32)
    result = raw.layernorm(x, ones, beta, 1e-5, isa=isa)
    np.testing.assert_array_equal(result, [beta] * 3)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("value", [0.1, -1 / 3, 1234.5678, -1e6 / 7, 1e30 / 3, 1e-30])
def test_other_constant_rows_miss_by_the_mean_alone(isa, width, value):
    """All numbers of a row are the same miss of the mean, r / sqrt(1 + r^2): less than 1 however large."""
    x = np.full((2, width), value, np.float32)
    result = raw.layernorm(x, np.ones(width, np.float32), None, 1e-5, isa=isa)
    assert (result == result[0, 0]).all()
    r = (-(-width // 16) + 4) * UNIT * abs(float(x[0, 0])) / np.sqrt(1e-5)
    assert abs(result[0, 0]) <= 1.001 * r / np.sqrt(1 + r**2)
    if width in (1, 16):
        assert result[0, 0] == 0.0  # a power of two up to 32: every sum is exact


def test_rows_past_the_range_of_squares(isa):
    """A deviation above 1.8e19 has an infinite square: only beta is left, as in any float32 layer norm."""
    ones = np.ones(16, np.float32)
    x = np.full((1, 16), 1e20, np.float32)
    x[0, ::2] = -1e20
    assert (raw.layernorm(x, ones, 3 * ones, isa=isa) == 3.0).all()
