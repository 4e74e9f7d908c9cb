# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t

from gpt2cy.kernels.threads cimport Team
from gpt2cy.layers.linear cimport Linear
from gpt2cy.layers.tap cimport Observer
from gpt2cy.workspace cimport Workspace


cdef class Scores:
    cdef readonly list firsts       # of each sequence, the first row that is scored
    cdef readonly Py_ssize_t n      # rows scored
    cdef readonly object table, top_ids, top_logits
    cdef object targets, found
    cdef Py_ssize_t limit
    cdef Py_ssize_t rows_at_once(self) noexcept
    cdef size_t nbytes(self, const Team *team, Py_ssize_t width) noexcept
    cdef int run(self, Workspace w, Linear head, const float *x, Observer observer) except -1
    cdef int run_observed(self, Workspace w, Linear head, const float *x, Observer observer) except -1
    cdef int take(self, const Team *team, const float *logits, Py_ssize_t first, Py_ssize_t rows) except -1
