# SPDX-License-Identifier: Apache-2.0
"""Causal attention: block by block, in pieces, at every head width, with anything in what is to come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2cy.kernels import raw

WIDTHS = [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 96, 127, 128, 129, 160, 255, 256]


def projection(length, n_heads, head_dim, seed=0):
    """qkv [T, 3 C]"""
    return np.random.default_rng([seed, length, n_heads, head_dim]).standard_normal(
        (length, 3 * n_heads * head_dim), np.float32
    )


def truth(qkv, n_heads, scale):
    """Softmax attention in float64: [T, C]."""
    length = len(qkv)
    q, k, v = (
        part.reshape(length, n_heads, -1).transpose(1, 0, 2)
        for part in np.split(qkv.astype(np.float64), 3, axis=1)
    )
    scores = np.where(np.tri(length, dtype=bool), scale * q @ k.transpose(0, 2, 1), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (weights @ v).transpose(1, 0, 2).reshape(length, -1)


@pytest.mark.parametrize("head_dim", WIDTHS)
def test_every_head_width_equals_ref(fused_isa, same_bits, head_dim):
    qkv = projection(67, 2, head_dim)
    scale = head_dim**-0.5
    expected = raw.attention(qkv, 2, scale, isa="ref")
    for n_threads in (1, 3):
        same_bits(raw.attention(qkv, 2, scale, isa=fused_isa, n_threads=n_threads, fill=np.nan), expected)


@pytest.mark.parametrize(
    "length", [1, 2, 5, 6, 7, 13, 14, 15, 28, 29, 36, 37, 63, 64, 65, 78, 127, 128, 129, 300]
)
def test_lengths_equal_ref(fused_isa, same_bits, length):
    qkv = projection(length, 3, 20)
    expected = raw.attention(qkv, 3, 0.3, isa="ref")
    for n_threads in (1, 2, 3):
        same_bits(raw.attention(qkv, 3, 0.3, isa=fused_isa, n_threads=n_threads), expected)


@given(data=st.data(), length=st.integers(1, 150), n_heads=st.integers(1, 4), head_dim=st.integers(1, 70))
def test_any_shape_in_any_pieces_equals_ref(fused_isa, same_bits, data, length, n_heads, head_dim):
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=5))) if length > 1 else []
    qkv = projection(length, n_heads, head_dim)
    expected = raw.attention(qkv, n_heads, 0.4, isa="ref")
    same_bits(raw.attention(qkv, n_heads, 0.4, cuts, fused_isa, 2, np.nan), expected)


def test_a_cut_at_every_position_changes_nothing(isa, same_bits):
    qkv = projection(140, 2, 9)
    whole = raw.attention(qkv, 2, 0.5, isa=isa)
    for cut in range(1, 140):
        same_bits(raw.attention(qkv, 2, 0.5, (cut,), isa, fill=np.nan), whole)
    same_bits(raw.attention(qkv, 2, 0.5, range(1, 140), isa, fill=np.nan), whole)


@pytest.mark.parametrize("head_dim", [32, 64, 96, 256])
@pytest.mark.parametrize("piece", [1, 2, 3, 5, 6, 7, 14, 15])
def test_keys_put_in_on_the_way(fused_isa, same_bits, head_dim, piece):
    """Pieces of up to a tile's rows, within blocks and across their ends, with enough heads for a team."""
    qkv = projection(150, 6, head_dim)
    expected = raw.attention(qkv, 6, 0.3, isa="ref")
    cuts = range(piece, 150, piece)
    for n_threads in (1, 2, 3):
        got = raw.attention(qkv, 6, 0.3, cuts, fused_isa, n_threads, np.nan, appends=True)
        same_bits(got, expected)


def test_which_pieces_can_put_keys_in_on_the_way(isa):
    """Those of one tile, since a second would need what the first may not have put in yet; whole panels."""
    most = {"avx512": 14, "avx2": 6, "base": 6, "neon": 6, "ref": 4}[isa]
    call = raw.Attention(projection(40, 2, 32), 2, 0.5, isa)
    call.rows(0, most)
    assert call.may_append()
    call.rows(0, most + 1)
    assert not call.may_append()
    with pytest.raises(ValueError, match=rf"^appends: not with {most + 1} rows and heads of 32$"):
        call.attend(True)
    assert not raw.Attention(projection(1, 2, 31), 2, 0.5, isa).may_append()


@pytest.mark.parametrize("head_dim", [1, 5, 32, 40])
@pytest.mark.parametrize("fill", [np.nan, np.inf, 3e38])
def test_what_the_blocks_held_before_never_shows(isa, same_bits, head_dim, fill):
    for length in (1, 63, 64, 65, 100):
        qkv = projection(length, 3, head_dim)
        same_bits(raw.attention(qkv, 3, 0.5, isa=isa, fill=fill), raw.attention(qkv, 3, 0.5, isa=isa))


@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3e38])
def test_no_number_reaches_back(isa, same_bits, part, poison):
    """A later query, key or value may be anything: rows before it keep their bits, its own row shows it."""
    qkv = projection(140, 2, 8)
    clean = raw.attention(qkv, 2, 0.5, isa=isa)
    for at in (1, 13, 14, 62, 63, 64, 65, 100, 128, 139):
        dirty = qkv.copy()
        dirty[at:, part * 16 : (part + 1) * 16] = poison
        result = raw.attention(dirty, 2, 0.5, isa=isa)
        same_bits(result[:at], clean[:at])
        assert (result[at] != clean[at]).any()


@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_close_to_float64_and_causal_at_any_size_of_scores(isa, same_bits, size):
    """NUM-01: scores up to 1e5, where a finite mask of -1e4 would let the future in."""
    qkv = projection(90, 2, 16)
    qkv[:, :64] *= np.float32(size)
    expected = truth(qkv, 2, 0.25)
    result = raw.attention(qkv, 2, 0.25, isa=isa)
    assert size < 300 or 0.25 * np.abs(np.sum(qkv[:, :16] * qkv[:, 32:48], axis=1)).max() > 1e5
    # An error of half an ulp in a score of size s changes its weight by s 2^-24.
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6 if size == 1 else 1e-6 * size**2)
    other = qkv.copy()
    other[50:] = projection(40, 2, 16, seed=7) * np.float32(1000.0)
    same_bits(raw.attention(other, 2, 0.25, isa=isa)[:50], result[:50])


@pytest.mark.parametrize("below", [1, 60, 63, 64, 65, 128, 130])
def test_scores_that_overflow_below_weigh_nothing(isa, same_bits, below):
    """Also those of whole blocks: rows that see a finite score are as if they saw no other."""
    qkv = projection(200, 1, 16)
    qkv[:, 0], qkv[:below, 16], qkv[below:, 16] = 1e20, -1e20, 0
    got = raw.attention(qkv, 1, 0.25, isa=isa)
    assert np.isnan(got[:below]).all()  # -inf - -inf, as in any softmax
    assert np.abs(got[below:] - truth(qkv[below:], 1, 0.25)).max() < 1e-5
    same_bits(raw.attention(qkv, 1, 0.25, [below, 150], isa, 3), got)


def test_equal_scores_give_the_mean(isa):
    qkv = projection(130, 1, 3)
    qkv[:, :3] = 0.0
    values = qkv[:, 6:].astype(np.float64)
    mean = np.cumsum(values, axis=0) / np.arange(1, 131)[:, None]
    np.testing.assert_allclose(raw.attention(qkv, 1, 1.0, isa=isa), mean, rtol=1e-5, atol=1e-6)


def test_special_numbers_equal_ref(fused_isa, same_bits):
    rng = np.random.default_rng(3)
    special = np.array([np.inf, -np.inf, np.nan, 1e-40, 3e38, -3e38], np.float32)
    for seed in range(20):
        qkv = projection(100, 2, 10, seed)
        qkv.reshape(-1)[rng.integers(0, qkv.size, 12)] = rng.choice(special, 12)
        same_bits(raw.attention(qkv, 2, 0.5, isa=fused_isa), raw.attention(qkv, 2, 0.5, isa="ref"))


@pytest.mark.parametrize("n_heads, cuts", [(0, ()), (-1, ()), (5, ()), (2, (0,)), (2, (3, 3)), (2, (9,))])
def test_arguments_are_checked(n_heads, cuts):
    with pytest.raises(ValueError, match=r"qkv|cuts"):
        raw.attention(projection(8, 2, 3), n_heads, 1.0, cuts)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_the_scale_is_above_0(scale):
    with pytest.raises(ValueError, match=r"^scale: expected a number above 0, got "):
        raw.attention(projection(8, 2, 3), 2, scale)
