# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.memory cimport Arena
from gpt2cy.kernels.packed cimport PackedMatrix
from gpt2cy.kernels.threads cimport Team


cdef class Linear:
    cdef readonly Py_ssize_t in_features, out_features
    cdef PackedMatrix matrix
    cdef float *bias_data      # NULL without a bias
    cdef Arena arena
    cdef void run(self, const Team *team, const float *x, Py_ssize_t n, int activation, const float *residual,
                  float *out, float **out_rows, float *scratch) noexcept nogil
    cdef int put(self, str name, value) except -1
    cdef int draw(self, rng, float std) except -1

cdef size_t linear_nbytes(Py_ssize_t in_features, Py_ssize_t out_features, bint bias) noexcept nogil
cdef Arena arena_alone(str names, size_t nbytes)
cdef int begin_reading(Arena arena) except -1
cdef read_vector(Arena arena, const float *data, Py_ssize_t n)
cdef int write_vector(float *data, Py_ssize_t n, const float[:] values) except -1
