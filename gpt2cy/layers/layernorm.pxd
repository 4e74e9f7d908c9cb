# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.memory cimport Arena
from gpt2cy.kernels.threads cimport Team


cdef class LayerNorm:
    cdef readonly Py_ssize_t n_embd
    cdef readonly double eps
    cdef float eps_data        # eps as float32
    cdef float *gamma_data
    cdef float *beta_data      # NULL without a beta
    cdef Arena arena
    cdef void run(self, const Team *team, const float *x, Py_ssize_t n, float *y) noexcept nogil
    cdef int assign(self, str name, value) except -1
    cdef int put(self, str name, value) except -1

cdef size_t layernorm_nbytes(Py_ssize_t n_embd, bint bias) noexcept nogil
