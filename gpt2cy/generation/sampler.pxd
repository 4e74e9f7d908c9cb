# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint32_t, uint64_t

from gpt2cy.kernels.logits cimport Choice, Edits


cdef class Sampler:
    cdef readonly object settings, seed
    cdef readonly Py_ssize_t vocab_size, n_prompt
    cdef readonly int64_t row, sample
    cdef Py_ssize_t n
    cdef object history, seen, counts, biased, bias   # arrays; the first three with room to grow
    cdef dict place                                   # id -> where it stands in seen; None: nobody counts
    cdef Py_ssize_t n_seen
    cdef void append(self, int64_t token) except *
    cdef void count(self, int64_t token, int64_t times) except *
    cdef object allowed(self)
    cdef bint edits(self, mask, list keep, Edits *e) except -1
    cdef void choice(self, mask, list keep, Choice *c) except *
