# SPDX-License-Identifier: Apache-2.0
"""Rows of logits in parallel, a row a task: statistics, the first in order, the choice of a token.

Numbers: csrc/logits.inc.h; a row's result does not depend on the others.
"""
import numpy as np

from cython.parallel cimport prange

from libc.math cimport INFINITY, NAN
from libc.string cimport memcpy

from gpt2cy.kernels.table cimport (
    G2_NOT_FINITE,
    G2_SELECT_SCRATCH,
    fp_mode,
    g2_candidates,
    g2_fp_enter,
    g2_fp_leave,
    g2_logprob,
    g2_table,
)
from gpt2cy.kernels.threads cimport Region, close_region, open_region, take, workers

cdef double WORTH_A_TEAM = 2.0e4   # logits

STATISTICS_DTYPE = np.dtype(   # g2_statistics, for arrays
    [("log_sum_exp", "f8"), ("log_total", "f8"), ("entropy", "f8"), ("argmax", "i8"), ("rank", "i8"),
     ("max", "f4"), ("logprob", "f4")]
)
assert STATISTICS_DTYPE.itemsize == sizeof(g2_statistics)

cdef enum Op:
    STATISTICS, TOP, CHOOSE


cdef struct Job:
    const Team *team
    Op op
    float *x                # only CHOOSE writes there
    Py_ssize_t n, width
    const int64_t *targets
    g2_statistics *out
    Py_ssize_t k
    int64_t *ids
    int64_t *found
    Choice *choices
    float *scratch          # of worker 0; the others' follow


cdef void edit(const Edits *e, float *x, Py_ssize_t width) noexcept nogil:
    """Penalties, bans and biases of one row, in place; an id is at most once in each list."""
    cdef Py_ssize_t i, j
    cdef int64_t id
    cdef float v
    for i in range(e.n_seen):
        id = e.seen[i]
        v = x[id]
        if e.repetition != 1:
            v = v * e.repetition if v < 0 else v / e.repetition
        if e.counts[i]:
            v = v - e.frequency * <float>e.counts[i]
            v = v - e.presence
        x[id] = v
    if e.ngram:
        for i in range(e.n_history - e.ngram + 1):
            j = 0
            while j < e.ngram - 1 and e.history[i + j] == e.history[e.n_history - e.ngram + 1 + j]:
                j += 1
            if j == e.ngram - 1:
                x[e.history[i + j]] = -INFINITY
    for i in range(e.n_biased):
        x[e.biased[i]] = x[e.biased[i]] + e.bias[i]
    if e.allowed != NULL:
        for i in range(width):
            x[i] = x[i] if e.allowed[i] else -INFINITY
    for i in range(e.limit, width):
        x[i] = -INFINITY


cdef void choose_one(const g2_table *table, float *x, Py_ssize_t width, Choice *c, float *scratch) noexcept nogil:
    """One row; where it is scored, edits are made to a copy."""
    cdef const float *came = x
    cdef g2_statistics whole
    cdef g2_candidates candidates
    cdef int64_t first = 0
    cdef Py_ssize_t i
    cdef float largest
    c.id = -1
    c.logprob = NAN
    c.status = NOT_FINITE
    if c.scored:
        table.statistics(came, width, -1, &whole)
        first = whole.argmax
    elif c.edited or c.greedy:
        first = table.argmax(came, width, &largest)
    if first < 0:
        return
    if c.n_top:
        c.n_top = table.top(came, width, c.n_top, c.top)
        for i in range(c.n_top):
            c.top_logprobs[i] = g2_logprob(came[c.top[i]], whole.max, whole.log_total)
    if c.edited:
        if c.scored:
            x = scratch + G2_SELECT_SCRATCH(width)
            memcpy(x, came, width * sizeof(float))
        edit(&c.edits, x, width)
        if c.greedy:
            first = table.argmax(x, width, &largest)
    if not c.greedy:
        first = table.select(x, width, &c.how, scratch, &candidates)
    if first < 0:
        if c.edited:
            c.status = EDITED_NOT_FINITE if first == G2_NOT_FINITE else NOTHING_LEFT
        return
    c.id = first if c.greedy else table.draw(&candidates, c.u)
    c.status = CHOSEN
    if c.scored:
        c.logprob = g2_logprob(came[c.id], whole.max, whole.log_total)


cdef void one_row(const Job *job, Py_ssize_t row, int worker) noexcept nogil:
    cdef float *x = job.x + row * job.width
    cdef const g2_table *table = job.team.table
    cdef fp_mode mode = g2_fp_enter()
    if job.op == STATISTICS:
        table.statistics(x, job.width, job.targets[row] if job.targets != NULL else -1, job.out + row)
    elif job.op == TOP:
        job.found[row] = table.top(x, job.width, job.k, job.ids + row * job.k)
    else:
        choose_one(table, x, job.width, job.choices + row, job.scratch + worker * scratch_of_one(job.width))
    g2_fp_leave(mode)


cdef void some_rows(const Job *job, Region *region, int worker) noexcept nogil:
    cdef Py_ssize_t row = take(region, worker)
    while row >= 0:
        one_row(job, row, worker)
        row = take(region, worker)


cdef void run(const Job *job) noexcept nogil:
    cdef int n = workers(job.team, <double>job.n * job.width, WORTH_A_TEAM) if job.n > 1 else 1
    cdef Py_ssize_t i
    cdef Region region
    if n == 1:
        for i in range(job.n):
            one_row(job, i, 0)
    else:
        open_region(&region, n, job.n)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            some_rows(job, &region, i)
        close_region(&region)


cdef Job blank(const Team *team, Op op, const float *x, Py_ssize_t n, Py_ssize_t width) noexcept nogil:
    return Job(team, op, <float *>x, n, width, NULL, NULL, 0, NULL, NULL, NULL, NULL)


cdef void statistics(const Team *team, const float *x, Py_ssize_t n, Py_ssize_t width, const int64_t *targets,
                     g2_statistics *out) noexcept nogil:
    """out[n] of x[n, width]; targets[n] are ids or -1, NULL for none."""
    cdef Job job = blank(team, STATISTICS, x, n, width)
    job.targets = targets
    job.out = out
    run(&job)


cdef void top(const Team *team, const float *x, Py_ssize_t n, Py_ssize_t width, Py_ssize_t k, int64_t *ids,
              int64_t *found) noexcept nogil:
    """ids[n, k] of the largest of each row of x[n, width], found[n] of them: k, or width, or 0 if not finite."""
    cdef Job job = blank(team, TOP, x, n, width)
    job.k = k
    job.ids = ids
    job.found = found
    run(&job)


cdef Py_ssize_t scratch_of_one(Py_ssize_t width) noexcept nogil:
    """Floats: to select from, and a copy of the row; whole cache lines."""
    return (G2_SELECT_SCRATCH(width) + width + 31) // 16 * 16


cdef Py_ssize_t choose_scratch(const Team *team, Py_ssize_t width) noexcept nogil:
    """Floats of scratch memory for `choose`."""
    return team.n_threads * scratch_of_one(width)


cdef void choose(const Team *team, float *x, Py_ssize_t n, Py_ssize_t width, Choice *choices,
                 float *scratch) noexcept nogil:
    """Fill in what came of choices[n], of rows x[n, width], which are overwritten; n_top <= width."""
    cdef Job job = blank(team, CHOOSE, x, n, width)
    job.choices = choices
    job.scratch = scratch
    run(&job)
