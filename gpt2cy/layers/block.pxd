# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.threads cimport Region, Team
from gpt2cy.layers.attention cimport Attention
from gpt2cy.layers.layernorm cimport LayerNorm
from gpt2cy.layers.mlp cimport MLP
from gpt2cy.layers.tap cimport Tap
from gpt2cy.workspace cimport Batch, Buffers


cdef class Block:
    cdef readonly LayerNorm ln_1, ln_2
    cdef readonly Attention attn
    cdef readonly MLP mlp
    cdef readonly Py_ssize_t layer_idx
    cdef object config
    cdef int draw(self, rng, float std) except -1
    cdef void run_part(self, const Team *team, Batch *batch, Buffers *b, Region *region, int worker,
                       const Tap *tap) noexcept nogil
    cdef void run_parts(self, const Team *team, Batch *batch, Buffers *b, const Tap *tap) noexcept nogil
    cdef void run_rows(self, const Team *team, Batch *batch, Buffers *b, const Tap *tap) noexcept nogil
    cdef void run(self, const Team *team, Batch *batch, Buffers *b, const Tap *tap) noexcept nogil
