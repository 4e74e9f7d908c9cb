# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.table cimport g2_epilogue, g2_packed
from gpt2cy.kernels.threads cimport Team

cdef void matmul(const Team *team, const float *a, Py_ssize_t lda, Py_ssize_t m, const g2_packed *w,
                 const g2_epilogue *e, float *scratch) noexcept nogil
cdef Py_ssize_t matmul_scratch(const Team *team, Py_ssize_t m, Py_ssize_t k) noexcept nogil
