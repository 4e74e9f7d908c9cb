# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t

from gpt2cy.kernels.table cimport g2_table


ctypedef struct Team:
    const g2_table *table  # the kernels, the same for the whole call
    int n_threads          # who computes: the constant team, or 1
    int owned              # 1: this call has the team and gives it back

cdef enum:
    MOST = 256             # threads

ctypedef struct Share:     # one worker's tasks, a cache line of its own
    int64_t next, end
    int64_t unused[6]

ctypedef struct Region:    # one parallel loop
    int n_workers
    int arrived            # workers at the meeting, where the loop has one
    double last            # when worker 0, the thread that called, finished a task
    double shortest        # its shortest task: what the system took from it is not in there
    double waited          # its wait at the meeting
    Share shares[MOST]

cdef void join_team(Team *team) noexcept nogil
cdef void leave_team(Team *team) noexcept nogil
cdef int workers(const Team *team, double work, double least) noexcept nogil
cdef void open_region(Region *region, int n_workers, Py_ssize_t n_tasks) noexcept nogil
cdef Py_ssize_t take(Region *region, int worker) noexcept nogil
cdef void close_region(const Region *region) noexcept nogil
cdef bint all_here(const Region *region) noexcept nogil
cdef void note(Region *region, int worker) noexcept nogil
cdef void meet(Region *region, int worker) noexcept nogil
