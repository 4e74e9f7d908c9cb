# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t

from gpt2cy.kernels.table cimport g2_sequence


ctypedef struct Slot:
    Py_ssize_t length          # positions held
    Py_ssize_t n_blocks        # blocks held: as many as a call has asked for
    float **table              # of the blocks; moves only in reserve


cdef class KVCache:
    cdef readonly Py_ssize_t batch_size, capacity, n_layers, n_heads, n_embd
    cdef Slot *slots
    cdef int busy
    cdef Py_ssize_t layer_floats(self) noexcept
    cdef size_t block_nbytes(self) noexcept
    cdef float *new_block(self) except NULL
    cdef sizes(self)
    cdef size_t wanted(self, Py_ssize_t slot, Py_ssize_t n_new) noexcept
    cdef void cut(self, Py_ssize_t slot, Py_ssize_t length) noexcept
    cdef int enter(self, str name=*) except -1
    cdef void leave(self) noexcept
    cdef int reserve(self, Py_ssize_t slot, Py_ssize_t n_new) except -1
    cdef void describe(self, Py_ssize_t slot, g2_sequence *s) noexcept
    cdef void advance(self, Py_ssize_t slot, Py_ssize_t n_new, const int64_t *ids) noexcept
    cdef held(self, Py_ssize_t slot)
