# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.threads cimport Team
from gpt2cy.layers.linear cimport Linear
from gpt2cy.layers.tap cimport Tap
from gpt2cy.workspace cimport Buffers


cdef class MLP:
    cdef readonly Linear c_fc, c_proj
    cdef readonly str activation
    cdef int kind
    cdef void run(self, const Team *team, Buffers *b, Py_ssize_t n, bint residual, int layer,
                  const Tap *tap) noexcept nogil

cdef size_t mlp_nbytes(Py_ssize_t n_embd, Py_ssize_t n_inner, bint bias) noexcept nogil
