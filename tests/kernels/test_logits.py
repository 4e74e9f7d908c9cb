# SPDX-License-Identifier: Apache-2.0
"""Rows of logits: largest, statistics, the first in order."""

import math

import numpy as np
import pytest

from gpt2cy.kernels import raw

INF, NAN = math.inf, math.nan
SIZES = [1, 2, 3, 5, 15, 16, 17, 31, 33, 64, 65, 100, 1023, 1024, 1025, 2111]
FLOATS = ("log_sum_exp", "log_total", "entropy", "max", "logprob")


def row(n, kind="normal", seed=0):
    """One row [n] of logits: kinds in which ties, masks, scales and runs differ."""
    rng = np.random.default_rng([seed, n])
    x = rng.standard_normal(n).astype(np.float32)
    if kind == "few values":
        x = rng.integers(-2, 3, n).astype(np.float32)
    elif kind == "masked":
        x[rng.random(n) < 0.5] = -INF
        x[n // 2] = 1.0
    elif kind == "scales":
        x = (x * 10.0 ** rng.integers(-44, 38, n)).astype(np.float32)
    elif kind == "equal":
        x[:] = 1.5
    elif kind == "peaked":
        x[rng.integers(n)] = 30.0
    elif kind == "model":  # a few ids far above a broad field, as a language model's
        x = (x * 2.5 - 30 + 14 * rng.random(n) ** 6).astype(np.float32)
    return x


KINDS = ["normal", "few values", "masked", "scales", "equal", "peaked", "model"]


def canonical(x):
    """The logits as kernels see them: subnormals are 0, and so is -0."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)


def in_order(x):
    """Ids by value, the largest first, equal ones by id."""
    return np.argsort(-canonical(x), kind="stable")


def truth(x, target):
    """Log-sum-exp, entropy and log probability in float64."""
    x = x.astype(np.float64)
    d = x - x.max()
    p = np.exp(d) / np.exp(d).sum()
    lse = x.max() + math.log(np.exp(d).sum())
    surprise = np.where(p > 0, -(d - math.log(np.exp(d).sum())), 0.0)
    return lse, float((p * surprise).sum()), x[target] - lse


# ---- statistics


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_statistics_equal_ref(fused_isa, n, kind):
    x = np.stack([row(n, kind, seed) for seed in range(3)])
    for target in (0, n // 2, n - 1, -1):
        expected = raw.statistics(x, [target] * 3, isa="ref")
        for threads in (1, 2):
            found = raw.statistics(x, [target] * 3, isa=fused_isa, n_threads=threads)
            assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "scales"])
@pytest.mark.parametrize("n", [1, 7, 100, 50257])
def test_statistics_are_true(isa, n, kind):
    x = row(n, kind)
    order = in_order(x)
    for target in {0, n // 2, n - 1, int(order[0])}:
        found = raw.statistics(x[None], [target], isa=isa)[0]
        lse, entropy, logprob = truth(x, target)
        np.testing.assert_allclose(found["log_sum_exp"], lse, rtol=2e-7, atol=2e-7)
        np.testing.assert_allclose(found["entropy"], entropy, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found["logprob"], np.float32(logprob), rtol=3e-7, atol=3e-7)
        assert found["argmax"] == order[0] == np.argmax(x)
        assert found["rank"] == order.tolist().index(target)
        assert found["max"] == x.max()


def test_entropy_at_its_ends(isa):
    flat = raw.statistics(np.zeros((1, 50257), np.float32), isa=isa)[0]
    np.testing.assert_allclose(flat["entropy"], math.log(50257), rtol=1e-14)
    sure = raw.statistics(np.array([[-INF, 3.0, -INF]], np.float32), [1], isa=isa)[0]
    assert (sure["entropy"], sure["logprob"], sure["log_sum_exp"]) == (0.0, 0.0, 3.0)


@pytest.mark.parametrize("place", [0, 1, 17, 1024, 4000, 4095])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_one_number_that_is_not_finite_is_found(isa, bad, place):
    x = row(4096)
    x[place] = bad
    found = raw.statistics(x[None], [3], isa=isa)[0]
    assert found["argmax"] == -1 and found["rank"] == -1
    assert all(math.isnan(found[name]) for name in FLOATS)
    assert raw.top(x[None], 5, isa=isa)[0].tolist() == []


def test_a_row_without_any_logit(isa):
    for n in (1, 16, 1000):
        x = np.full((1, n), -INF, np.float32)
        assert raw.statistics(x, [0], isa=isa)[0]["argmax"] == -2
        assert raw.top(x, 3, isa=isa)[0].tolist() == []


def test_minus_infinity_has_no_probability(isa):
    found = raw.statistics(np.array([[0.0, -INF, 0.0]], np.float32), [1], isa=isa)[0]
    assert found["logprob"] == -INF and found["rank"] == 2
    np.testing.assert_allclose([found["log_sum_exp"], found["entropy"]], math.log(2), rtol=1e-15)


def test_the_first_of_equals_is_the_largest(isa):
    x = np.zeros((1, 3000), np.float32)
    x[0, [1500, 2500]] = 1e-30
    assert raw.statistics(x, [2500], isa=isa)[0][["argmax", "rank"]].tolist() == (1500, 1)
    x = np.array([[-0.0, 0.0, 1e-45, -1e-45]], np.float32)  # all of them 0 to the kernels
    assert raw.statistics(x, [3], isa=isa)[0][["argmax", "rank", "max"]].tolist() == (0, 3, 0.0)


# ---- top


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_top_is_the_order(isa, n, kind):
    x = np.stack([row(n, kind, seed) for seed in range(2)])
    for k in sorted({1, 2, n // 3 + 1, n - 1, n, n + 5} - {0}):
        for threads in (1, 2):
            for found, logits in zip(raw.top(x, k, isa=isa, n_threads=threads), x, strict=True):
                assert found.tolist() == in_order(logits)[:k].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_top_of_a_vocabulary(isa, kind):
    x = row(50257, kind)
    order = in_order(x)
    for k in (1, 5, 50, 1000):
        assert raw.top(x[None], k, isa=isa)[0].tolist() == order[:k].tolist()
