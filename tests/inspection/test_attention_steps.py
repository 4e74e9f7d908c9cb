# SPDX-License-Identifier: Apache-2.0
"""Attention in steps: scores, weights and new heads of every width, to the bit on every fused ISA."""

import numpy as np
import pytest

import gpt2cy
from gpt2cy.inspection import apply
from gpt2cy.kernels import dispatch

WIDTHS = [1, 5, 32, 33, 64, 100]
LENGTH = 131  # two blocks of keys and a little, tiles of queries that do not come out even
TOKENS = np.random.default_rng(2).integers(0, 40, LENGTH)


@pytest.fixture(scope="module", params=WIDTHS)
def model(build, request):
    return build(40, 2 * request.param, 2, 1, 140)


def halved(rows):
    """An edit that changes some rows of weights only, alone and in runs."""

    def change(weights):
        weights[:, rows] *= 0.5
        return weights

    return {"h.0.attn.weights": apply(change)}


ROWS = [[0], [LENGTH - 1], [63, 64, 65], [3, 5, 6, 7, 40], list(range(LENGTH))]


@pytest.mark.parametrize("rows", ROWS, ids=["first", "last", "block's edge", "some", "all"])
def test_new_heads_of_every_width(model, rows, same_bits):
    check_new_heads(model, rows, same_bits)


def test_new_heads_on_every_isa(model, isa, same_bits):
    dispatch.use(isa)
    check_new_heads(model, ROWS[3], same_bits)


def check_new_heads(model, rows, same_bits):
    plain = model.trace(TOKENS, "h.0.attn.*")
    with model.edit(halved(rows)):
        edited = model.trace(TOKENS, "h.0.attn.*")
    weights, v = edited["h.0.attn.weights"].astype(np.float64), plain["h.0.attn.v"].astype(np.float64)
    factors = np.where(np.isin(np.arange(LENGTH), rows), 0.5, 1.0)
    np.testing.assert_array_equal(weights, plain["h.0.attn.weights"] * factors[:, None])
    limit = 2e-6 * np.abs(v).max()
    np.testing.assert_allclose(edited["h.0.attn.heads"], weights @ v, rtol=1e-5, atol=limit)
    others = np.setdiff1d(np.arange(LENGTH), rows)
    same_bits(edited["h.0.attn.heads"][:, others], plain["h.0.attn.heads"][:, others])


def test_bits_of_every_width(model, fused_isa, same_bits):
    """Also in pieces with a cache, where tiles of queries begin elsewhere, and by one thread or two."""
    edits = halved(list(range(LENGTH)))
    dispatch.use("ref")
    with model.edit(edits):
        expected = model.trace(TOKENS, "h.0.attn.*")
    dispatch.use(fused_isa)
    for threads in (1, 2):
        gpt2cy.set_num_threads(threads)
        with model.edit(edits):
            for name, array in model.trace(TOKENS, "h.0.attn.*").items():
                same_bits(array, expected[name])
    with model.edit({"h.0.attn.weights": lambda weights: weights * np.float32(0.5)}):
        cache = model.new_cache()
        model.next_logits(TOKENS[:67], cache)
        pieces = [model.trace(TOKENS[67:70], "h.0.attn.*", cache=cache)]
        pieces.append(model.trace(TOKENS[70:], "h.0.attn.*", cache=cache))
    for name in ("scores", "weights", "heads"):
        first, second = (piece[f"h.0.attn.{name}"] for piece in pieces)
        whole = expected[f"h.0.attn.{name}"][:, 67:]
        same_bits(np.ascontiguousarray(whole[:, :3, : first.shape[2]]), first)
        same_bits(np.ascontiguousarray(whole[:, 3:]), second)
