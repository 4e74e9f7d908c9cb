# SPDX-License-Identifier: Apache-2.0
from gpt2cy.transformer cimport Transformer


cdef class GPT(Transformer):
    cdef int write(self, path, form, dict options) except -1
