# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.threads cimport Team
from gpt2cy.layers.linear cimport Linear
from gpt2cy.layers.tap cimport Tap
from gpt2cy.workspace cimport Batch, Buffers


cdef class Attention:
    cdef readonly Linear c_attn, c_proj
    cdef readonly Py_ssize_t n_heads, head_dim
    cdef readonly float scale
    cdef dict scaling          # the arguments that decide it
    cdef void run(self, const Team *team, Batch *batch, Buffers *b, bint residual, Py_ssize_t layer,
                  const Tap *tap) noexcept nogil

cdef size_t attention_nbytes(Py_ssize_t n_embd, bint bias) noexcept nogil
