# SPDX-License-Identifier: Apache-2.0
"""The head where only a few numbers of each row of logits are wanted: the rows never all exist.

    x [n, C]  ->  lm_head, some rows at a time: logits [r, V] in scratch  ->  statistics of each row, top ids

A block of r rows takes LOGITS_BYTES at most, so memory does not grow with n V.  It is large enough that the head's
weights are read seldom, and small enough to be still in the last cache when its statistics are taken.  Rows are
independent, so neither r nor the number of threads shows in the bits.
"""
import numpy as np

from gpt2cy.kernels.gemm cimport matmul_scratch
from gpt2cy.kernels.memory cimport rounded
from gpt2cy.kernels.table cimport G2_LINEAR

from cpython.exc cimport PyErr_CheckSignals

cdef enum:
    LOGITS_BYTES = 24 << 20

# ---- stand-in

from libc.math cimport exp, log

ctypedef struct g2_statistics:
    float max
    float logprob
    double log_sum_exp
    double entropy
    int64_t argmax
    int64_t rank
    int finite

cdef void statistics(const Team *team, const float *x, Py_ssize_t ld, Py_ssize_t n, Py_ssize_t width,
                     const int64_t *targets, g2_statistics *out) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef double s, e
    cdef const float *r
    for i in range(n):
        r = x + i * ld
        out[i].max = r[0]
        out[i].argmax = 0
        out[i].rank = 0
        out[i].finite = 1
        for j in range(width):
            if r[j] > out[i].max:
                out[i].max = r[j]
                out[i].argmax = j
            out[i].rank += r[j] > r[targets[i]] or (r[j] == r[targets[i]] and j < targets[i])
            if r[j] != r[j] or r[j] > 3.4e38:
                out[i].finite = 0
        s = 0
        e = 0
        for j in range(width):
            s += exp(r[j] - <double>out[i].max)
            e += exp(r[j] - <double>out[i].max) * (r[j] - <double>out[i].max)
        out[i].log_sum_exp = log(s) + out[i].max
        out[i].logprob = <float>(r[targets[i]] - out[i].log_sum_exp)
        out[i].entropy = log(s) - e / s

cdef void top(const Team *team, const float *x, Py_ssize_t ld, Py_ssize_t n, Py_ssize_t width, Py_ssize_t k,
              int64_t *ids, float *values) noexcept nogil:
    cdef Py_ssize_t i, j, m
    for i in range(n):
        for j in range(k):
            ids[i * k + j] = -1
            for m in range(width):
                if j and (x[i*ld+m] > values[i*k+j-1] or (x[i*ld+m] == values[i*k+j-1] and m <= ids[i*k+j-1])):
                    continue
                if ids[i*k+j] < 0 or x[i*ld+m] > values[i*k+j]:
                    ids[i*k+j] = m
                    values[i*k+j] = x[i*ld+m]

# ---- end of stand-in


STATISTICS = np.dtype(
    [("max", "f4"), ("logprob", "f4"), ("log_sum_exp", "f8"), ("entropy", "f8"), ("argmax", "i8"), ("rank", "i8"),
     ("finite", "i4")], align=True)


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
        self.table = np.empty(self.n, STATISTICS)
        self.top_ids = np.empty((self.n, top), np.int64)
        self.top_logits = np.empty((self.n, top), np.float32)

    cdef Py_ssize_t rows_at_once(self, Py_ssize_t vocab) noexcept:
        """Rows of a block; blocks are of nearly equal size."""
        cdef Py_ssize_t most = max(<Py_ssize_t>1, LOGITS_BYTES // (vocab * <Py_ssize_t>sizeof(float)))
        cdef Py_ssize_t n_blocks = max(<Py_ssize_t>1, (self.n + most - 1) // most)
        return (self.n + n_blocks - 1) // n_blocks

    cdef size_t nbytes(self, const Team *team, Linear head) noexcept:
        """Of the workspace, while this runs."""
        cdef Py_ssize_t rows = self.rows_at_once(head.out_features)
        return (rounded(<size_t>rows * head.out_features * sizeof(float)) +
                rounded(matmul_scratch(team, rows, head.in_features) * sizeof(float)))

    cdef int run(self, Workspace w, Linear head, const float *x) except -1:
        """Score x[n, C], the rows behind the final norm."""
        cdef Py_ssize_t vocab = head.out_features, block = self.rows_at_once(vocab), first = 0, rows
        cdef Py_ssize_t k = self.top_ids.shape[1]
        cdef const int64_t[::1] targets = self.targets
        cdef unsigned char[::1] table = self.table.view(np.uint8)
        cdef int64_t[:, ::1] ids = self.top_ids
        cdef float[:, ::1] values = self.top_logits
        cdef float *logits
        cdef float *scratch
        if self.n == 0:
            return 0
        logits = w.take_floats(block * vocab)
        scratch = w.take_floats(matmul_scratch(&w.team, block, head.in_features))
        while first < self.n:
            PyErr_CheckSignals()
            rows = min(block, self.n - first)
            with nogil:
                head.run(&w.team, x + first * head.in_features, rows, G2_LINEAR, NULL, logits, NULL, scratch)
                statistics(&w.team, logits, vocab, rows, self.limit, &targets[first],
                           <g2_statistics *>&table[0] + first)
                if k > 0:
                    top(&w.team, logits, vocab, rows, self.limit, k, &ids[first, 0], &values[first, 0])
            first += rows
        return 0
