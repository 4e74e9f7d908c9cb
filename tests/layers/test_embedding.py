# SPDX-License-Identifier: Apache-2.0
"""Embedding alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy
from gpt2cy import reference


@given(
    n=st.integers(1, 90),
    width=st.integers(1, 70),
    shape=st.lists(st.integers(1, 6), max_size=3),
    seed=st.integers(0, 99),
)
def test_rows_of_the_table(n, width, shape, seed):
    table = gpt2cy.Embedding(n, width, seed=seed)
    ids = np.random.default_rng(seed).integers(0, n, shape)
    result = table(ids)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, reference.embedding(ids, table.weight))
    np.testing.assert_array_equal(table.rows(ids), result)


def test_attributes():
    table = gpt2cy.Embedding(10, 4, seed=0)
    assert (table.num_embeddings, table.n_embd) == (10, 4)
    assert repr(table) == "Embedding(10, 4)"
    for name in ("num_embeddings", "n_embd", "anything"):
        with pytest.raises(AttributeError):
            setattr(table, name, 3)


def test_initial_weights():
    weight = gpt2cy.Embedding(2000, 100, seed=5).weight
    np.testing.assert_array_equal(weight, gpt2cy.Embedding(2000, 100, seed=5).weight)
    assert (weight != gpt2cy.Embedding(2000, 100).weight).any()
    assert abs(weight.std() - 0.02) < 2e-4
    assert abs(weight.mean()) < 2e-4


def test_weight_in_any_form(form):
    weight = np.arange(60, dtype=np.float32).reshape(12, 5) / 8
    table = gpt2cy.Embedding(12, 5)
    table.weight = form(weight)
    assert table.weight.dtype == np.float32
    np.testing.assert_array_equal(table.weight, weight)
    np.testing.assert_array_equal(table([11, 0]), weight[[11, 0]])


def test_weight_is_a_read_only_copy():
    table = gpt2cy.Embedding(3, 4, seed=0)
    weight = table.weight
    with pytest.raises(ValueError, match="read-only"):
        weight[0, 0] = 1.0
    table.weight = table.weight * 2
    np.testing.assert_array_equal(table.weight, weight * 2)
    source = np.ones((3, 4), np.float32)
    table.weight = source
    source[:] = 5.0
    assert (table.weight == 1.0).all()


@pytest.mark.parametrize(
    "value, error",
    [
        (np.ones((4, 3)), ValueError),
        (np.ones(12), ValueError),
        (np.ones((3, 4), int), TypeError),
        (None, TypeError),
        ("text", TypeError),
        (np.full((3, 4), 1e300), ValueError),
        (np.ones((3, 4), complex), TypeError),
    ],
)
def test_a_wrong_weight_changes_nothing(value, error):
    table = gpt2cy.Embedding(3, 4, seed=0)
    before = table.weight
    with pytest.raises(error, match=r"^weight: expected"):
        table.weight = value
    np.testing.assert_array_equal(table.weight, before)


@pytest.mark.parametrize("bad", [-1, 12, 2**31, 2**63 - 1, -(2**63), 2**64])
def test_ids_outside(bad):
    with pytest.raises(ValueError, match=rf"^ids: id {bad} at \[1\] is outside the num_embeddings of 12"):
        gpt2cy.Embedding(12, 5)([3, bad])


@pytest.mark.parametrize(
    "ids", [None, "3", 1.0, [1.0], [True], [], np.empty((0, 3), int), [[1], [1, 2]], object()]
)
def test_what_is_not_ids(ids):
    with pytest.raises((TypeError, ValueError), match=r"^ids: "):
        gpt2cy.Embedding(12, 5)(ids)


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("num_embeddings", (0, 4)),
        ("n_embd", (4, 0)),
        ("n_embd", (4, -1)),
        ("num_embeddings", (2.0, 4)),
        ("num_embeddings", (True, 4)),
        ("n_embd", (4, None)),
        ("n_embd", (4, 2**62)),
        ("n_embd", (2**40, 2**40)),
        ("num_embeddings", (10**5000, 4)),
    ],
)
def test_sizes_are_checked(name, sizes):
    with pytest.raises((TypeError, ValueError), match=name):
        gpt2cy.Embedding(*sizes)
