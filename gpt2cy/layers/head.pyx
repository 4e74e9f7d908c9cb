# SPDX-License-Identifier: Apache-2.0
"""The head where only a few numbers of each row of logits are wanted: the rows never all exist.

    x [n, C]  ->  lm_head, some rows at a time: logits [r, V] in scratch  ->  statistics of each row, top ids

A block of r rows takes LOGITS_BYTES at most, so memory does not grow with n V.  It is large enough that the head's
weights are read seldom, and small enough to be still in the last cache when its statistics are taken.  Rows are
independent, so neither r nor the number of threads shows in the bits.
"""
import numpy as np

from cpython.exc cimport PyErr_CheckSignals

from gpt2cy.kernels cimport logits as kernel
from gpt2cy.kernels.gemm cimport matmul, matmul_scratch
from gpt2cy.kernels.memory cimport rounded
from gpt2cy.kernels.table cimport G2_LINEAR, g2_epilogue, g2_packed, g2_statistics
from gpt2cy.layers.tap cimport LOGITS, show

from gpt2cy.kernels.logits import STATISTICS_DTYPE

cdef enum:
    LOGITS_BYTES = 24 << 20


cdef void gather(const float *logits, Py_ssize_t n, Py_ssize_t width, Py_ssize_t k, const int64_t *ids,
                 const int64_t *found, float *values) noexcept nogil:
    """values[n, k] of logits[n, width] at ids[n, k], as far as some were found."""
    cdef Py_ssize_t i, j
    for i in range(n):
        for j in range(found[i]):
            values[i * k + j] = logits[i * width + ids[i * k + j]]


cdef class Scores:
    """What is asked of the rows of one call, and the answers.

    Parameters
    ----------
    firsts : list of int
        Of each sequence, the first row that is scored; the rows after it are scored too.
    targets : ndarray of int64, [n]
        The token whose probability is wanted, for each scored row of all sequences.
    limit : int
        Only ids below it exist: the rest of a row is not looked at.
    top : int
        How many of the largest logits to keep.
    """

    def __cinit__(self, list firsts not None, targets, Py_ssize_t limit, Py_ssize_t top):
        self.firsts = firsts
        self.targets = targets
        self.n = len(targets)
        self.limit = limit
        self.table = np.empty(self.n, STATISTICS_DTYPE)
        self.top_ids = np.zeros((self.n, top), np.int64)
        self.top_logits = np.zeros((self.n, top), np.float32)
        self.found = np.zeros(self.n, np.int64)

    cdef Py_ssize_t rows_at_once(self) noexcept:
        """Rows of a block; blocks are of nearly equal size."""
        cdef Py_ssize_t most = max(<Py_ssize_t>1, LOGITS_BYTES // (self.limit * <Py_ssize_t>sizeof(float)))
        cdef Py_ssize_t n_blocks = max(<Py_ssize_t>1, (self.n + most - 1) // most)
        return (self.n + n_blocks - 1) // n_blocks

    cdef size_t nbytes(self, const Team *team, Py_ssize_t width) noexcept:
        """Of the workspace, while this runs."""
        cdef Py_ssize_t rows = self.rows_at_once()
        return (rounded(<size_t>rows * self.limit * sizeof(float)) +
                rounded(matmul_scratch(team, rows, width) * sizeof(float)))

    cdef int run(self, Workspace w, Linear head, const float *x, Observer observer) except -1:
        """Score x[n, C], the rows behind the final norm, as the batch's sequences say which are whose."""
        if self.n == 0:
            return 0
        if observer is not None and observer.tap.wanted[<int>LOGITS]:
            return self.run_observed(w, head, x, observer)
        cdef Py_ssize_t width = head.in_features, block = self.rows_at_once(), first = 0, rows
        cdef float *logits = w.take_floats(block * self.limit)
        cdef float *scratch = w.take_floats(matmul_scratch(&w.team, block, width))
        cdef g2_packed columns = head.matrix.layout     # those of the ids that exist
        cdef g2_epilogue e = g2_epilogue(head.bias_data, G2_LINEAR, NULL, 0, logits, self.limit, NULL)
        columns.n = self.limit
        while first < self.n:
            PyErr_CheckSignals()
            rows = min(block, self.n - first)
            with nogil:
                matmul(&w.team, x + first * width, width, rows, &columns, &e, scratch)
            self.take(&w.team, logits, first, rows)
            first += rows
        return 0

    cdef int run_observed(self, Workspace w, Linear head, const float *x, Observer observer) except -1:
        """The same where somebody wants to see logits: all of them, one sequence after the other."""
        cdef Py_ssize_t width = head.in_features, vocab = head.out_features, first = 0, rows, i
        cdef Py_ssize_t longest = max([w.batch.sequences[i].n_rows for i in range(w.batch.n_sequences)])
        cdef float *scratch = w.take_floats(matmul_scratch(&w.team, longest, width))
        cdef float[:, ::1] logits
        cdef float[:, ::1] known
        for i in range(w.batch.n_sequences):
            rows = w.batch.sequences[i].n_rows
            if rows == 0:
                continue
            array = np.empty((rows, vocab), np.float32)
            logits = array
            observer.tap.sequence = i
            with nogil:
                head.run(&w.team, x + first * width, rows, G2_LINEAR, NULL, &logits[0, 0], NULL, scratch)
                show(&observer.tap, LOGITS, 0, &logits[0, 0], rows, vocab)
            if observer.error is not None:
                raise observer.error
            known = np.ascontiguousarray(array[:, :self.limit])
            self.take(&w.team, &known[0, 0], first, rows)
            first += rows
        return 0

    cdef int take(self, const Team *team, const float *logits, Py_ssize_t first, Py_ssize_t rows) except -1:
        """What is asked of rows first .. first + rows - 1, from their logits [rows, limit]."""
        cdef Py_ssize_t k = self.top_ids.shape[1]
        cdef const int64_t[::1] targets = self.targets
        cdef unsigned char[::1] table = self.table.view(np.uint8)
        cdef int64_t[::1] ids = self.top_ids.reshape(-1), found = self.found
        cdef float[::1] values = self.top_logits.reshape(-1)
        with nogil:
            kernel.statistics(team, logits, rows, self.limit, &targets[first], <g2_statistics *>&table[0] + first)
            if k > 0:
                kernel.top(team, logits, rows, self.limit, k, &ids[first * k], &found[first])
                gather(logits, rows, self.limit, k, &ids[first * k], &found[first], &values[first * k])
        return 0
