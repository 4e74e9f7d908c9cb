# SPDX-License-Identifier: Apache-2.0
"""PackedMatrix: what goes in comes out, whatever the strides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2cy.kernels import raw
from gpt2cy.kernels.packed import PackedMatrix


@given(k=st.integers(1, 40), n=st.integers(1, 140))
def test_round_trip(k, n):
    weight = np.arange(k * n, dtype=np.float32).reshape(k, n)
    packed = raw.pack(weight)
    np.testing.assert_array_equal(packed.to_array(), weight)
    np.testing.assert_array_equal(packed.to_array(transposed=True), weight.T)
    assert packed.shape == (k, n)
    assert packed.nbytes == (n + 31) // 32 * 32 * k * 4  # each row of a panel is two cache lines


@pytest.mark.parametrize("n", [1, 32, 45, 64])
def test_any_strides(n):
    weight = np.random.default_rng(0).standard_normal((7, n), np.float32)
    backwards = np.ascontiguousarray(weight[::-1, ::-1])[::-1, ::-1]
    spaced = np.repeat(np.repeat(weight, 2, 0), 3, 1)[::2, ::3]
    repeated = np.broadcast_to(weight[:1], (7, n))
    for view in (np.asfortranarray(weight), backwards, spaced):
        np.testing.assert_array_equal(raw.pack(view).to_array(), weight)
    np.testing.assert_array_equal(raw.pack(repeated).to_array(), repeated)


def test_the_result_is_fresh():
    packed = raw.pack(np.ones((3, 4), np.float32))
    packed.to_array()[:] = 7.0
    assert (packed.to_array() == 1.0).all()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (-1, 3)])
def test_empty_is_refused(shape):
    with pytest.raises(ValueError, match="at least one row and column"):
        PackedMatrix(*shape)
