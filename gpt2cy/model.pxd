# SPDX-License-Identifier: Apache-2.0
from gpt2cy.layers.tap cimport Observer
from gpt2cy.transformer cimport Transformer


cdef class GPT(Transformer):
    cdef Observer observed(self, bint check_finite=*)
    cdef Observer checked(self, check_finite)
    cdef held_ids(self, tokens)
    cdef int write(self, path, form, dict options) except -1
