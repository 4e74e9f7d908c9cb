# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t

from gpt2cy.kernels.table cimport g2_table

cdef extern from "guard.h" nogil:
    ctypedef struct g2_loop:
        pass

# One task of a loop; scratch is the worker's own.
ctypedef void (*Work)(const void *job, int64_t task, float *scratch) noexcept nogil

cdef enum:
    MOST = 256             # threads

# What one thread writes while others read lies at least a cache line from what they write, wherever lines begin.
ctypedef struct Share:     # of one worker; a loop uses either what is above the gap or what is below
    int64_t next, end      # its tasks in a loop of all workers
    int64_t unused[6]
    g2_loop loop           # its own loop, where it has rows of its own
    int64_t unused_too[3]

ctypedef struct Region:    # one parallel loop
    int n_workers
    int unused[15]
    int arrived            # workers at meetings, where the loop has any
    int unused_too[15]
    double last            # when worker 0, the thread that called, finished a task
    double shortest        # its shortest task: what the system took from it is not in there
    double waited          # its longest wait at a meeting
    double unused_at_all[8]
    Share shares[MOST]

ctypedef struct Team:
    const g2_table *table  # the kernels, the same for the whole call
    int n_threads          # who computes: the constant team, or 1
    int owned              # 1: this call has the team and gives it back
    Region *region         # NULL, or: one worker, which has rows of its own, meets the others there
    int worker             # which one

cdef void join_team(Team *team) noexcept nogil
cdef void leave_team(Team *team) noexcept nogil
cdef int workers(const Team *team, double work, double least) noexcept nogil
cdef void open_region(Region *region, int n_workers, Py_ssize_t n_tasks) noexcept nogil
cdef Py_ssize_t take(Region *region, int worker) noexcept nogil
cdef void close_region(const Region *region) noexcept nogil
cdef bint all_here(const Region *region) noexcept nogil
cdef void note(Region *region, int worker) noexcept nogil
cdef void run_tasks(const Team *team, Work work, const void *job, Py_ssize_t n_tasks, float *scratch) noexcept nogil
cdef void meet(const Team *team, float *scratch) noexcept nogil
