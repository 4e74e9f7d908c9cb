# SPDX-License-Identifier: Apache-2.0
"""Rows of logits in parallel, a row a task: statistics, and the first in order.

Numbers: csrc/logits.inc.h; a row's result does not depend on the others.
"""
import numpy as np

from cython.parallel cimport prange

from gpt2cy.kernels.table cimport fp_mode, g2_fp_enter, g2_fp_leave
from gpt2cy.kernels.threads cimport Region, close_region, open_region, take, workers

cdef double WORTH_A_TEAM = 2.0e4   # logits

STATISTICS_DTYPE = np.dtype(   # g2_statistics, for arrays
    [("log_sum_exp", "f8"), ("log_total", "f8"), ("entropy", "f8"), ("argmax", "i8"), ("rank", "i8"),
     ("max", "f4"), ("logprob", "f4")]
)
assert STATISTICS_DTYPE.itemsize == sizeof(g2_statistics)

cdef enum Op:
    STATISTICS, TOP


cdef struct Job:
    const Team *team
    Op op
    const float *x
    Py_ssize_t n, width
    const int64_t *targets
    g2_statistics *out
    Py_ssize_t k
    int64_t *ids
    int64_t *found


cdef void one_row(const Job *job, Py_ssize_t row) noexcept nogil:
    cdef const float *x = job.x + row * job.width
    cdef fp_mode mode = g2_fp_enter()
    if job.op == STATISTICS:
        job.team.table.statistics(x, job.width, job.targets[row] if job.targets != NULL else -1, job.out + row)
    else:
        job.found[row] = job.team.table.top(x, job.width, job.k, job.ids + row * job.k)
    g2_fp_leave(mode)


cdef void some_rows(const Job *job, Region *region, int worker) noexcept nogil:
    cdef Py_ssize_t row = take(region, worker)
    while row >= 0:
        one_row(job, row)
        row = take(region, worker)


cdef void run(const Job *job) noexcept nogil:
    cdef int n = workers(job.team, <double>job.n * job.width, WORTH_A_TEAM) if job.n > 1 else 1
    cdef Py_ssize_t i
    cdef Region region
    if n == 1:
        for i in range(job.n):
            one_row(job, i)
    else:
        open_region(&region, n, job.n)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            some_rows(job, &region, i)
        close_region(&region)


cdef void statistics(const Team *team, const float *x, Py_ssize_t n, Py_ssize_t width, const int64_t *targets,
                     g2_statistics *out) noexcept nogil:
    """out[n] of x[n, width]; targets[n] are ids or -1, NULL for none."""
    cdef Job job = Job(team, STATISTICS, x, n, width, targets, out, 0, NULL, NULL)
    run(&job)


cdef void top(const Team *team, const float *x, Py_ssize_t n, Py_ssize_t width, Py_ssize_t k, int64_t *ids,
              int64_t *found) noexcept nogil:
    """ids[n, k] of the largest of each row of x[n, width], found[n] of them: k, or width, or 0 if not finite."""
    cdef Job job = Job(team, TOP, x, n, width, NULL, NULL, k, ids, found)
    run(&job)
