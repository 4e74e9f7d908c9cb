# SPDX-License-Identifier: Apache-2.0
"""Rows of logits: largest, statistics, the first in order."""

import math

import numpy as np
import pytest

from gpt2cy import reference
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


# ---- what may be drawn

SAMPLINGS = [
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"top_p": 1e-45},
    {"top_p": 0.5, "inverse_temperature": 3.0},
    {"top_k": 20, "top_p": 0.7},
    {"min_p": 0.05},
    {"typical_p": 0.2},
    {"typical_p": 0.0},
    {"typical_p": 0.95, "top_k": 40},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9, "inverse_temperature": 1.25},
    {"inverse_temperature": 1e-6},
    {"inverse_temperature": 3e38, "top_p": 0.9},
]
DRAWS = [0.0, 1e-18, 0.1, 0.5, 0.9, 1 - 2.0**-53]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 16, 17, 65, 200, 1025, 2111])
def test_selection_equals_ref(fused_isa, same_bits, n, kind):
    x = row(n, kind)
    for how in SAMPLINGS:
        expected = raw.select(x, **how, isa="ref", draws=DRAWS)
        found = raw.select(x, **how, isa=fused_isa, draws=DRAWS)
        same_bits(found[0], expected[0])
        assert found[1].tolist() == expected[1].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_selection_from_a_vocabulary_equals_ref(fused_isa, same_bits, kind):
    x = row(50257, kind)
    for how in ({"top_p": 0.9}, {"top_k": 50, "top_p": 0.9}, {"typical_p": 0.9}, {"min_p": 0.1}):
        expected = raw.select(x, **how, isa="ref", draws=DRAWS)
        found = raw.select(x, **how, isa=fused_isa, draws=DRAWS)
        same_bits(found[0], expected[0])
        assert found[1].tolist() == expected[1].tolist()


@pytest.mark.parametrize("how", SAMPLINGS[:-1], ids=str)
@pytest.mark.parametrize("kind", ["normal", "masked", "peaked", "model"])
def test_selection_is_what_it_says(isa, kind, how):
    for n in (1, 5, 64, 300, 2000):
        x = row(n, kind, seed=1)
        weights, _ = raw.select(x, **how, isa=isa)
        settings = {
            "temperature" if name == "inverse_temperature" else name: value for name, value in how.items()
        }
        if "temperature" in settings:
            settings["temperature"] = 1 / settings["temperature"]
        expected = reference.token_probabilities(x, **settings)
        grain = (expected > 1e-12 * expected.max()) & (expected < 1e-11 * expected.max())  # half a quantum
        assert (weights[~grain] > 0).tolist() == (expected[~grain] > 1e-12 * expected.max()).tolist()
        np.testing.assert_allclose(weights / weights.sum(dtype=np.float64), expected, rtol=3e-5, atol=1e-10)


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"top_k": 3}, [1, 2, 3]),
        ({"top_k": 5}, [1, 2, 3, 4, 5]),
        ({"top_p": 0.3}, [1, 2]),
        ({"top_k": 4, "top_p": 0.5}, [1, 2]),
        ({"min_p": 1.0}, [1, 2, 3, 4, 5, 6]),
        ({"typical_p": 0.3}, [1, 2]),
    ],
    ids=str,
)
def test_of_equals_the_lowest_ids_are_kept(isa, how, kept):
    x = np.array([-INF, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0], np.float32)
    weights, drawn = raw.select(x, **how, isa=isa, draws=[0.0, 0.999999])
    assert np.flatnonzero(weights).tolist() == kept
    assert drawn.tolist() == [kept[0], kept[-1]]


def test_all_equal_in_a_vocabulary(isa):
    x = np.full(50257, -3.0, np.float32)
    for how, kept in (({"top_p": 0.5}, 25129), ({"top_k": 300}, 300), ({"typical_p": 0.1}, 5026)):
        assert np.flatnonzero(raw.select(x, **how, isa=isa)[0]).tolist() == list(range(kept))


def test_weights_add_up_exactly(isa):
    """So they are multiples of 2**-37 up to 65,536 ids, and of a larger quantum beyond."""
    for n, quantum in ((50257, 2.0**-37), (65536, 2.0**-37), (65537, 2.0**-36), (300000, 2.0**-34)):
        weights, _ = raw.select(3 * row(n), isa=isa)
        scaled = weights.astype(np.float64) / quantum
        assert (scaled == np.rint(scaled)).all()
        assert (scaled % 2 == 1).any()
        assert math.fsum(weights) == weights[::-1].sum(dtype=np.float64)


@pytest.mark.parametrize("n", [1, 40, 5000])
def test_draws_are_the_inverse_of_the_distribution(isa, n):
    x = row(n, "masked")
    rng = np.random.default_rng(n)
    for how in ({}, {"top_k": 9}, {"top_p": 0.8}):
        us = [*DRAWS, *rng.random(50)]
        weights, drawn = raw.select(x, **how, isa=isa, draws=us)
        ends = np.cumsum(weights.astype(np.float64))
        assert drawn.tolist() == np.searchsorted(ends, np.array(us) * ends[-1], side="right").tolist()


def test_the_boundaries_of_a_draw(isa):
    """Weights 1, 1, 1, 1: a quarter each, the boundary belonging to the next."""
    below = math.nextafter(0.25, 0)
    drawn = raw.select(np.zeros(4, np.float32), isa=isa, draws=[0.0, below, 0.25, 0.5, 0.75, 1 - 2.0**-53])[1]
    assert drawn.tolist() == [0, 0, 1, 2, 3, 3]


def test_nothing_is_selected_from_what_is_not_finite(isa):
    for bad in (NAN, INF):
        x = row(100)
        x[60] = bad
        with pytest.raises(FloatingPointError):
            raw.select(x, isa=isa)
    with pytest.raises(FloatingPointError):
        raw.select(np.full(5, -INF, np.float32), isa=isa)
