# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t

from gpt2cy.kernels.table cimport g2_statistics
from gpt2cy.kernels.threads cimport Team

cdef void statistics(const Team *team, const float *x, Py_ssize_t n, Py_ssize_t width, const int64_t *targets,
                     g2_statistics *out) noexcept nogil
cdef void top(const Team *team, const float *x, Py_ssize_t n, Py_ssize_t width, Py_ssize_t k, int64_t *ids,
              int64_t *found) noexcept nogil
