# SPDX-License-Identifier: Apache-2.0
"""How many threads compute, and which call has them.

The default is the least of OpenMP's limit, the cgroup's CPU quota and the processors this process may use;
affinity and OpenMP's limit are read again at each call, the quota once.
`set_num_threads` and GPT2CY_NUM_THREADS override it.  One call at a time has the team; a call
that comes meanwhile computes with its own thread alone, and so does every call in a forked child of
a process that had other threads (GNU OpenMP does not survive a fork).  The bits are the same.

A loop ends when its last thread has arrived.  Where another program holds a core, that is a time slice of
milliseconds, for a loop of microseconds.  So the calling thread measures how long it waits: after waits out
of all proportion calls compute alone for a while, each time for longer, until loops end in time again.
"""
import math
import os

from libc.string cimport memset

from gpt2cy import _checks
from gpt2cy.kernels import host

from gpt2cy.kernels cimport dispatch

cdef extern from "host.h" nogil:
    int G2_OPENMP
    int g2_omp_limit()
    int g2_omp_team()
    int g2_affinity()
    double g2_now()
    int getpid "g2_process" ()

cdef extern from "guard.h" nogil:
    int g2_write_enter(int *state)
    void g2_write_leave(int *state)
    int64_t g2_take(int64_t *next, int64_t end)
    void g2_run(g2_loop *loop, Work work, const void *job, int64_t n, float *scratch)
    int g2_help(g2_loop *loop, float *scratch)
    int g2_arrive(int *arrived, int n)
    int g2_all_there(const int *arrived, int number)
    void g2_wait(int *pauses)

cdef int chosen = 0        # by set_num_threads; 0: the default
cdef int quota = MOST      # of the cgroup, rounded up
cdef int in_use = 0        # the team's lock
cdef int ever_used = 0     # a team has run in this process
cdef int alone = 0         # in a forked child: no team
cdef int others = 0        # the parent had other threads when it forked
cdef int process = 0       # this one, as far as is known: a fork by C code runs no hook
cdef double suspect = 0    # until when another long wait means a busy core
cdef double resume = 0     # when the team may be used again after that
cdef double pause = 0      # how long it is left alone, doubling
cdef double LONG_WAIT = 1e-3, MOMENT = 0.05, LEAST_PAUSE = 0.02, MOST_PAUSE = 0.64   # seconds


cdef int count() noexcept nogil:
    """Threads that a call with the team computes with."""
    cdef int n, processors
    if G2_OPENMP == 0:
        return 1
    if chosen:
        return chosen
    n = min(g2_omp_limit(), quota)
    processors = g2_affinity()
    if processors > 0:
        n = min(n, processors)
    return max(1, min(n, <int>MOST))


cdef void join_team(Team *team) noexcept nogil:
    """Take the team for one call if it is free, else compute alone."""
    global ever_used, alone, process
    cdef int n
    if getpid() != process:
        process = getpid()
        alone = 1
    team.table = dispatch.current()
    team.n_threads = 1
    team.owned = 0
    team.region = NULL
    team.worker = 0
    n = 1 if alone else count()
    if n > 1 and g2_write_enter(&in_use):
        team.owned = 1
        team.n_threads = n
        ever_used = 1


cdef void leave_team(Team *team) noexcept nogil:
    if team.owned:
        team.owned = 0
        g2_write_leave(&in_use)


cdef int workers(const Team *team, double work, double least) noexcept nogil:
    """The whole team, or one thread where `work` is less than `least`: never a number between."""
    if team.n_threads == 1 or work < least:
        return 1
    return 1 if resume > 0 and g2_now() < resume else team.n_threads


cdef void open_region(Region *region, int n_workers, Py_ssize_t n_tasks) noexcept nogil:
    """Before a loop: each worker gets an equal share of the tasks, one after the other."""
    cdef int i
    region.n_workers = n_workers
    region.arrived = 0
    region.last = 0
    region.shortest = 1.0
    region.waited = 0
    for i in range(n_workers):
        region.shares[i].next = n_tasks * i // n_workers
        region.shares[i].end = n_tasks * (i + 1) // n_workers
        memset(&region.shares[i].loop, 0, sizeof(g2_loop))


cdef void note(Region *region, int worker) noexcept nogil:
    """Worker 0 is between two tasks; or its part, where each worker has one, begins or ends."""
    cdef double now
    if worker == 0:
        now = g2_now()
        if region.last > 0:
            region.shortest = min(region.shortest, now - region.last)
        region.last = now


cdef Py_ssize_t take(Region *region, int worker) noexcept nogil:
    """This worker's next task, or -1: of its own share, then of the others', since a core may be slowed by a
    neighbour.  A worker's tasks follow each other in memory, so what one of them fetches ahead serves the next.
    """
    cdef int i
    cdef int64_t task
    cdef Share *share
    note(region, worker)
    for i in range(region.n_workers):
        share = &region.shares[(worker + i) % region.n_workers]
        task = g2_take(&share.next, share.end)
        if task >= 0:
            return task
    return -1


cdef bint all_here(const Region *region) noexcept nogil:
    """Within a loop: whether each worker is a thread of its own, as those who meet must be."""
    return g2_omp_team() == region.n_workers


cdef void run_tasks(const Team *team, Work work, const void *job, Py_ssize_t n_tasks, float *scratch) noexcept nogil:
    """All tasks of a loop of one thread's; workers who wait at a meeting help."""
    cdef Py_ssize_t task
    if team.region != NULL and n_tasks > 1:
        g2_run(&team.region.shares[team.worker].loop, work, job, n_tasks, scratch)
    else:
        for task in range(n_tasks):
            work(job, task, scratch)


cdef void meet(const Team *team, float *scratch) noexcept nogil:
    """Go on when all workers are here; until then help those who are not."""
    cdef Region *region = team.region
    cdef int i, n = region.n_workers, pauses = 0, helped
    cdef int number = g2_arrive(&region.arrived, n)
    cdef double since = 0
    note(region, team.worker)
    if team.worker == 0:
        since = region.last
    while not g2_all_there(&region.arrived, number):
        helped = 0
        for i in range(1, n):
            helped += g2_help(&region.shares[(team.worker + i) % n].loop, scratch)
        if not helped:
            g2_wait(&pauses)
        elif team.worker == 0:
            since = g2_now()
    if team.worker == 0:
        region.last = g2_now()
        region.waited = max(region.waited, region.last - since)


cdef void close_region(const Region *region) noexcept nogil:
    """After the loop: waits longer than tasks explain mean that somebody else has a core.

    One such wait may be chance; the second within a moment, or the first after a pause, is not.
    """
    global suspect, resume, pause
    cdef double now = g2_now()
    if max(now - region.last, region.waited) > LONG_WAIT + 8 * region.shortest:
        if now < suspect:
            pause = min(MOST_PAUSE, max(LEAST_PAUSE, 2 * pause))
            resume = now + pause
        suspect = now + pause + MOMENT
    elif resume > 0 and now > suspect:
        resume = pause = 0


def set_num_threads(n):
    """Compute with `n` threads from the next call on; ``None`` returns to the default.

    Parameters
    ----------
    n : int or None
        1 to 256.  Results do not depend on it, to the bit.

    Raises
    ------
    TypeError, ValueError
        If `n` is not an integer in that range.

    Examples
    --------
    >>> import gpt2cy
    >>> gpt2cy.set_num_threads(1)
    >>> gpt2cy.get_num_threads()
    1
    >>> gpt2cy.set_num_threads(None)
    """
    global chosen
    chosen = 0 if n is None else _checks.integer("n", n, 1, MOST)


def get_num_threads():
    """Threads that the next call computes with.

    Examples
    --------
    >>> import gpt2cy
    >>> gpt2cy.get_num_threads() >= 1
    True
    """
    return 1 if alone else count()


def chosen_num_threads():
    """What `set_num_threads` or GPT2CY_NUM_THREADS chose; None: the default."""
    return chosen or None


def openmp_version():
    """OpenMP's date as yyyymm, or 0 for a serial build."""
    return G2_OPENMP


def cgroup_quota(root="/sys/fs/cgroup", membership="/proc/self/cgroup"):
    """Processors that the cgroup's quota allows, rounded up; None where there is no quota.

    Parameters
    ----------
    root, membership : str
        Where cgroups are mounted, and the file that says which one this process is in.
    """
    quotas = [_quota_of(group) for group in host.groups("cpu", root, membership)]
    quotas = [found for found in quotas if found]
    return max(1, math.ceil(min(quotas))) if quotas else None


def _quota_of(group):
    """Quota over period of one group: cpu.max (v2) or cpu.cfs_* (v1); None where unlimited."""
    try:
        with open(os.path.join(group, "cpu.max")) as file:
            limit, period = file.read().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        with open(os.path.join(group, "cpu.cfs_quota_us")) as file:
            limit = int(file.read())
        with open(os.path.join(group, "cpu.cfs_period_us")) as file:
            period = int(file.read())
        return limit / period if limit > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _before_fork():
    """A fork loses every thread but one: a parent that has others, ours or not, may leave a broken team."""
    global others
    try:
        others = len(os.listdir("/proc/self/task")) > 1
    except OSError:
        others = ever_used


def _after_fork_in_child():
    global alone, in_use, process
    alone = alone or ever_used or others
    in_use = 0
    process = getpid()


def _start():
    global quota, chosen, process
    process = getpid()
    found = cgroup_quota()
    quota = min(MOST, found) if found else MOST
    wanted = os.environ.get("GPT2CY_NUM_THREADS")
    if wanted:
        try:
            if not (wanted.isascii() and wanted.strip().isdigit()):
                raise ValueError
            chosen = _checks.integer("GPT2CY_NUM_THREADS", int(wanted), 1, MOST)
        except ValueError:
            raise ValueError(f"GPT2CY_NUM_THREADS: expected an integer from 1 to {MOST}, got {wanted!r}") from None
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


_start()
