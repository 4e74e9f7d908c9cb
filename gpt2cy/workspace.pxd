# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.memory cimport Spare
from gpt2cy.kernels.table cimport g2_sequence
from gpt2cy.kernels.threads cimport Team


cdef struct Part


ctypedef struct Batch:          # ragged: rows of all sequences, one after the other
    g2_sequence *sequences
    Py_ssize_t n_sequences, n_rows
    bint last_only              # what follows needs only each sequence's last row
    Part *parts                 # a part of the rows for each worker, or NULL: all share the work on all rows

ctypedef struct Buffers:
    float *x        # [n, C] the residual stream
    float *narrow   # [n, C] normalised rows, then the heads' outputs
    float *wide     # [n, max(3 C, inner)] qkv, then the MLP's inner rows
    float *scratch  # of the kernels

cdef struct Part:               # some rows of a batch
    Batch batch
    Buffers buffers


cdef class Workspace:
    cdef Team team
    cdef Batch batch
    cdef Buffers buffers
    cdef Spare home
    cdef char *base
    cdef size_t size, used
    cdef void *take(self, size_t nbytes) except NULL
    cdef float *take_floats(self, Py_ssize_t count) except NULL
    cdef int obtain(self, size_t nbytes, Spare home) except -1
    cdef int obtain_alone(self, str name, size_t result, size_t nbytes) except -1
    cdef void give_back(self, const void *start) noexcept
    cdef int lay_out(self, list lengths, Py_ssize_t width, Py_ssize_t inner) except -1
    cdef int divide(self, Py_ssize_t width, Py_ssize_t inner) except -1
    cdef int own_blocks(self, Py_ssize_t width) except -1

cdef size_t batch_nbytes(const Team *team, list lengths, Py_ssize_t width, Py_ssize_t inner,
                         bint blocks) except 0
cdef size_t shape_nbytes(const Team *team, Py_ssize_t n_sequences, Py_ssize_t n, Py_ssize_t count, Py_ssize_t width,
                         Py_ssize_t inner, bint blocks) except 0
cdef Py_ssize_t blocks_for(Py_ssize_t length) noexcept nogil
cdef size_t residual_nbytes(Py_ssize_t n_sequences, Py_ssize_t n, Py_ssize_t width) noexcept nogil
cdef void keep_last(Batch *batch) noexcept nogil
cdef Py_ssize_t gather_last(Batch *batch, Buffers *b, Py_ssize_t width) noexcept nogil
cdef Workspace begin_call()
cdef Workspace call_alone(list lengths, Py_ssize_t width, Py_ssize_t inner)
