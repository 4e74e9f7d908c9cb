# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.memory cimport Arena
from gpt2cy.kernels.table cimport g2_packed


cdef class PackedMatrix:
    cdef g2_packed layout
    cdef Arena arena
    cdef int fill(self, const float[:, :] rows, Py_ssize_t first) except -1
    cdef int fill_transposed(self, const float[:, :] columns, Py_ssize_t first) except -1

cdef size_t packed_nbytes(Py_ssize_t k, Py_ssize_t n) noexcept nogil
