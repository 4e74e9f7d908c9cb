# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.memory cimport Arena
from gpt2cy.kernels.packed cimport PackedMatrix
from gpt2cy.kernels.table cimport g2_rows


cdef class Embedding:
    cdef readonly Py_ssize_t num_embeddings, n_embd
    cdef g2_rows table
    cdef PackedMatrix matrix   # shared with a tied head, else None: plain rows
    cdef float *plain
    cdef Arena arena
    cdef int fill(self, const float[:, :] rows, Py_ssize_t first) except -1
    cdef int draw(self, rng, float std) except -1

cdef size_t embedding_nbytes(Py_ssize_t num_embeddings, Py_ssize_t n_embd) noexcept nogil
