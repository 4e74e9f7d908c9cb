# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.table cimport g2_table


ctypedef struct Team:
    const g2_table *table  # the kernels, the same for the whole call
    int n_threads          # who computes: the constant team, or 1
    int owned              # 1: this call has the team and gives it back

ctypedef struct Region:    # one parallel loop, as the thread that called it sees it
    double last            # when it finished a task
    double shortest        # its shortest task: what the system took from it is not in there

cdef void join_team(Team *team) noexcept nogil
cdef void leave_team(Team *team) noexcept nogil
cdef int workers(const Team *team, double work, double least) noexcept nogil
cdef void open_region(Region *region) noexcept nogil
cdef void task_done(Region *region, int thread) noexcept nogil
cdef void close_region(const Region *region) noexcept nogil
