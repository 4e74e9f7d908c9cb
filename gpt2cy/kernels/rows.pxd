# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t

from gpt2cy.kernels.table cimport g2_rows
from gpt2cy.kernels.threads cimport Team

cdef void layernorm(const Team *team, const float *x, const float *gamma, const float *beta, float eps, float *y,
                    Py_ssize_t n, Py_ssize_t width) noexcept nogil
cdef void softmax(const Team *team, const float *x, float *y, Py_ssize_t n, Py_ssize_t width) noexcept nogil
cdef void activation(const Team *team, int kind, const float *x, float *y, Py_ssize_t n) noexcept nogil
cdef void exp(const Team *team, const float *x, float *y, Py_ssize_t n) noexcept nogil
cdef void add(const Team *team, const float *x, float *y, Py_ssize_t n, bint accumulate) noexcept nogil
cdef void embed(const Team *team, const g2_rows *tokens, const int64_t *ids, const g2_rows *positions,
                const int64_t *at, float *x, Py_ssize_t n, Py_ssize_t width) noexcept nogil
