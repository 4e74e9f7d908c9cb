# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t

from gpt2cy.kernels.memory cimport Arena, Spare
from gpt2cy.layers.embedding cimport Embedding
from gpt2cy.layers.head cimport Scores
from gpt2cy.layers.layernorm cimport LayerNorm
from gpt2cy.layers.linear cimport Linear
from gpt2cy.layers.tap cimport Observer
from gpt2cy.parameters cimport Parameters
from gpt2cy.workspace cimport Workspace


cdef class Transformer:
    cdef readonly object config
    cdef readonly Embedding wte, wpe
    cdef readonly tuple blocks
    cdef readonly LayerNorm ln_f
    cdef readonly Linear lm_head
    cdef Arena arena
    cdef Spare scratch         # memory of the last call's workspace
    cdef Spare results         # ... and of its logits, once nobody holds them
    cdef Parameters parameters  # by name
    cdef dict layers_by_name(self)
    cdef batch_logits(self, tokens, cache, bint last_only, Observer observer, out=*)
    cdef ragged_logits(self, str name, sequences, caches, Observer observer)
    cdef next_ragged_logits(self, sequences, caches, out)
    cdef tuple ragged(self, str name, sequences, caches, int logits)
    cdef bytes copied(self, str name, ids)
    cdef list checked_caches(self, caches, Py_ssize_t n)
    cdef int check_cache(self, cache, str name) except -1
    cdef int require_memory(self, str name, list lengths, list caches, Py_ssize_t n_out, Observer observer) except -1
    cdef int require_sequences(self, str name, list lengths, Py_ssize_t times, int logits) except -1
    cdef int require_shape(self, str name, Py_ssize_t batch, Py_ssize_t n, Py_ssize_t blocks,
                           Py_ssize_t n_out) except -1
    cdef int require_plan(self, str name, dict plan) except -1
    cdef new_array(self, tuple shape)
    cdef Observer observed(self, bint check_finite=*)
    cdef int call(self, bytes ids, list lengths, list caches, str many, Py_ssize_t last_rows, out, list outs,
                  Observer observer=*, Scores scores=*) except -1
    cdef list enter_caches(self, list caches, list lengths, str many)
    cdef int run(self, const int64_t *ids, list lengths, list slots, Py_ssize_t last_rows, float *out, list outs,
                 Observer observer, Scores scores) except -1
    cdef int end_observed(self, Workspace w, Py_ssize_t n_out, float *out, float **rows, Observer observer) except -1
    cdef int score(self, Workspace w, list lengths, Scores scores, Observer observer) except -1
