# SPDX-License-Identifier: Apache-2.0
"""PackedMatrix: a weight matrix [K, N], kept once, in the order in which the product reads it.

    panels [ceil(N / 32)][K][32]     element [k, n] at ((n // 32) K + k) 32 + n % 32

The last panel's columns past N are zero.  dtype, interleave and scales leave room for half-width and
quantised weights; today dtype is float32.
"""
from libc.string cimport memset

from gpt2cy.kernels.dispatch cimport current
from gpt2cy.kernels.memory cimport rounded
from gpt2cy.kernels.table cimport G2_FLOAT32, G2_PANEL, g2_copy_packed, g2_element, g2_pack_transposed

import numpy as np

from gpt2cy import _checks


cdef size_t packed_nbytes(Py_ssize_t k, Py_ssize_t n) noexcept nogil:
    """Bytes of the panels of a [k, n] matrix, as an arena hands them out."""
    return rounded(<size_t>((n + G2_PANEL - 1) // G2_PANEL) * G2_PANEL * <size_t>k * sizeof(float))


cdef class PackedMatrix:
    """A [K, N] float32 matrix in panels; public reads and writes go through ordinary arrays.

    Parameters
    ----------
    k, n : int
        Rows and columns.
    arena : Arena, optional
        Where the panels live; its own memory by default.
    """

    def __cinit__(self, Py_ssize_t k, Py_ssize_t n, Arena arena=None):
        cdef Py_ssize_t row
        if k < 1 or n < 1:
            raise ValueError(f"a packed matrix needs at least one row and column, got [{k}, {n}]")
        _checks.matrix_size("k, n", k, n)
        self.arena = Arena(packed_nbytes(k, n)) if arena is None else arena
        self.layout.data = self.arena.take(packed_nbytes(k, n))
        self.layout.owner = <void *>self.arena
        self.layout.k = k
        self.layout.n = n
        self.layout.dtype = G2_FLOAT32
        self.layout.panel = G2_PANEL
        self.layout.interleave = 1
        if n % G2_PANEL:
            for row in range(k):
                memset(g2_element(&self.layout, row, n), 0, (G2_PANEL - n % G2_PANEL) * sizeof(float))

    @property
    def shape(self):
        """(K, N)"""
        return self.layout.k, self.layout.n

    @property
    def nbytes(self):
        """Bytes of the panels."""
        return packed_nbytes(self.layout.k, self.layout.n)

    cdef int fill(self, const float[:, :] rows, Py_ssize_t first) except -1:
        """Rows first, first + 1, ... of the matrix from `rows` [r, N], of any strides."""
        if first < 0 or rows.shape[1] != self.layout.n or first + rows.shape[0] > self.layout.k:
            raise ValueError("rows do not fit the matrix")
        if rows.shape[0]:
            with nogil:
                g2_copy_packed(&self.layout, first, rows.shape[0], 0, self.layout.n, <float *>&rows[0, 0],
                               rows.strides[0] // <Py_ssize_t>sizeof(float),
                               rows.strides[1] // <Py_ssize_t>sizeof(float), 0)
        return 0

    cdef int fill_transposed(self, const float[:, :] columns, Py_ssize_t first) except -1:
        """Columns first, first + 1, ... of the matrix from the rows of `columns` [c, K]."""
        if first < 0 or columns.shape[1] != self.layout.k or first + columns.shape[0] > self.layout.n:
            raise ValueError("columns do not fit the matrix")
        cdef Py_ssize_t stride
        if columns.shape[0]:
            stride = columns.strides[0] // <Py_ssize_t>sizeof(float)
            with nogil:
                if columns.strides[1] == sizeof(float):
                    g2_pack_transposed(current(), &self.layout, first, columns.shape[0], &columns[0, 0], stride)
                else:
                    g2_copy_packed(&self.layout, 0, self.layout.k, first, columns.shape[0], <float *>&columns[0, 0],
                                   columns.strides[1] // <Py_ssize_t>sizeof(float), stride, 0)
        return 0

    def to_array(self, bint transposed=False):
        """A fresh float32 array [K, N], or [N, K] if `transposed`."""
        cdef float[:, ::1] view
        if transposed:
            out = np.empty((self.layout.n, self.layout.k), np.float32)
            view = out
            g2_copy_packed(&self.layout, 0, self.layout.k, 0, self.layout.n, &view[0, 0], 1, self.layout.k, 1)
        else:
            out = np.empty((self.layout.k, self.layout.n), np.float32)
            view = out
            g2_copy_packed(&self.layout, 0, self.layout.k, 0, self.layout.n, &view[0, 0], self.layout.n, 1, 1)
        return out
