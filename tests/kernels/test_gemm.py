# SPDX-License-Identifier: Apache-2.0
"""The matrix product: every element is one chain of fused multiply-adds over k, then the epilogue."""

import ctypes
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2cy.kernels import raw

ACTIVATIONS = [None, "gelu_tanh", "gelu_erf", "relu"]
# Rows of a tile (AVX2, AVX-512), twice that, a panel, two, rows of a task, blocks of k (few rows, many).
TILES = 6, 14, 28, 32, 64, 84, 128, 768
EDGES = sorted({1, 2} | {size + step for size in TILES for step in (-1, 0, 1)} | {336, 337, 1537})


def operands(m, k, n, seed=0):
    rng = np.random.default_rng([seed, m, k, n])
    a = rng.standard_normal((m, k), np.float32)
    w = rng.standard_normal((k, n), np.float32)
    return a, w, rng.standard_normal(n, np.float32), rng.standard_normal((m, n), np.float32)


def test_ref_is_the_chain_it_says():
    """`ref` itself, against the C library's fused multiply-add in a plain loop."""
    fmaf = ctypes.CDLL(None).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    a, w, bias, residual = operands(3, 9, 5)
    expected = np.zeros((3, 5), np.float32)
    for i, j in itertools.product(range(3), range(5)):
        total = 0.0
        for p in range(9):
            total = fmaf(a[i, p], w[p, j], total)
        expected[i, j] = (np.float32(total) + bias[j]) + residual[i, j]
    np.testing.assert_array_equal(raw.gemm(a, raw.pack(w), bias, None, residual, isa="ref"), expected)


@pytest.mark.parametrize("axis", ["m", "k", "n"])
@pytest.mark.parametrize("size", EDGES)
def test_edges_equal_ref(fused_isa, same_bits, axis, size):
    a, w, bias, residual = operands(**{"m": 15, "k": 65, "n": 33} | {axis: size})
    packed = raw.pack(w)
    expected = raw.gemm(a, packed, bias, "gelu_tanh", residual, isa="ref")
    for n_threads in (1, 2, 3):
        same_bits(raw.gemm(a, packed, bias, "gelu_tanh", residual, fused_isa, n_threads), expected)


@pytest.mark.parametrize(
    "m, k, n",
    [(169, 385, 65), (29, 769, 300), (14, 1537, 97), (337, 31, 513), (1, 385, 3000)]
    + [(m, 769, 800) for m in (6, 7, 12, 13, 29)],  # from one sliver to several, copied by each worker
)
def test_several_blocks_at_once_equal_ref(fused_isa, same_bits, m, k, n):
    a, w, bias, residual = operands(m, k, n)
    packed = raw.pack(w)
    expected = raw.gemm(a, packed, bias, None, residual, isa="ref")
    for n_threads in (1, 2, 3):
        same_bits(raw.gemm(a, packed, bias, None, residual, fused_isa, n_threads), expected)


@pytest.mark.parametrize("m, k, n", [(330, 800, 40), (400, 1600, 97), (85, 3000, 130), (90, 200, 2400)])
def test_rows_that_are_copied_together_equal_ref(fused_isa, same_bits, m, k, n):
    """More than 250,000 numbers, which all copy; and fewer, which too many workers do not copy."""
    a, w, bias, residual = operands(m, k, n)
    packed = raw.pack(w)
    expected = raw.gemm(a, packed, bias, None, residual, isa="ref")
    for n_threads in (1, 2, 3, 9):
        same_bits(raw.gemm(a, packed, bias, None, residual, fused_isa, n_threads), expected)


@given(
    m=st.integers(1, 80),
    k=st.integers(1, 500),
    n=st.integers(1, 900),
    n_threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_any_shape_equals_ref(fused_isa, same_bits, m, k, n, n_threads, seed):
    a, w, _, _ = operands(m, k, n, seed)
    packed = raw.pack(w)
    same_bits(raw.gemm(a, packed, isa=fused_isa, n_threads=n_threads), raw.gemm(a, packed, isa="ref"))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("n", [1, 31, 65])
def test_a_fused_epilogue_equals_its_steps(isa, same_bits, activation, with_residual, with_bias, n):
    a, w, bias, residual = operands(17, 24, n)
    packed = raw.pack(w)
    expected = raw.gemm(a, packed, isa=isa)
    if with_bias:
        expected = expected + bias
    if activation:
        expected = raw.activation(expected.reshape(-1), activation, isa).reshape(17, n)
    if with_residual:
        expected = expected + residual
    bias, residual = bias if with_bias else None, residual if with_residual else None
    fused = raw.gemm(a, packed, bias, activation, residual, isa)
    same_bits(fused, expected)


def test_a_row_does_not_know_its_neighbours(isa, same_bits):
    """How many rows there are decides which tile computes a row; its numbers must not tell."""
    a, w, _, _ = operands(30, 400, 40)
    packed = raw.pack(w)
    whole = raw.gemm(a, packed, isa=isa)
    for m in range(1, 31):
        same_bits(raw.gemm(a[:m].copy(), packed, isa=isa), whole[:m])
        same_bits(raw.gemm(a[30 - m :].copy(), packed, isa=isa), whole[30 - m :])


def test_special_numbers_equal_ref(fused_isa, same_bits):
    rng = np.random.default_rng(1)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, 1e-20], np.float32)
    a, w, bias, residual = operands(23, 40, 45)
    for array in (a, w, bias, residual):
        array.reshape(-1)[rng.integers(0, array.size, array.size // 40)] = special[
            rng.integers(0, 9, array.size // 40)
        ]
    packed = raw.pack(w)
    for activation in ACTIVATIONS:
        expected = raw.gemm(a, packed, bias, activation, residual, isa="ref")
        assert 0 < np.isnan(expected).sum() < expected.size
        same_bits(raw.gemm(a, packed, bias, activation, residual, isa=fused_isa), expected)


def test_subnormals_are_flushed(isa):
    """A product below the smallest normal number is 0, so tiny weights do not cost 36 times the time."""
    tiny = np.full((3, 5), 1e-30, np.float32)
    assert not raw.gemm(tiny, raw.pack(tiny.T * np.float32(1e-9)), isa=isa).any()
    assert not raw.gemm(
        np.full((3, 5), 1e-40, np.float32), raw.pack(np.ones((5, 2), np.float32)), isa=isa
    ).any()


@pytest.mark.parametrize("m, k, n", [(3, 10, 7), (70, 768, 96), (14, 3072, 64)])
def test_close_to_float64(isa, m, k, n):
    """Within 4 roundings of sum |a| |w|; a chain's worst case is k of them. Measured: 3.2."""
    a, w, _, _ = operands(m, k, n)
    exact = a.astype(np.float64) @ w.astype(np.float64)
    size = np.abs(a).astype(np.float64) @ np.abs(w).astype(np.float64)
    error = np.abs(raw.gemm(a, raw.pack(w), isa=isa) - exact) / (size * 2.0**-24)
    assert error.max() < 4.0


def test_isas_are_close(isa):
    a, w, bias, residual = operands(31, 500, 70)
    packed = raw.pack(w)
    for activation in ACTIVATIONS:
        expected = raw.gemm(a, packed, bias, activation, residual, isa="ref")
        result = raw.gemm(a, packed, bias, activation, residual, isa=isa)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)


def test_shapes_are_checked():
    a, w, bias, residual = operands(3, 4, 5)
    packed = raw.pack(w)
    for bad in ({"a": a[:, :3].copy()}, {"bias": bias[:4]}, {"residual": residual[:2]}, {"n_threads": 0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            raw.gemm(**{"a": a, "w": packed, "bias": bias, "residual": residual} | bad)
