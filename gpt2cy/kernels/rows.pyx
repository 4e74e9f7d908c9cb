# SPDX-License-Identifier: Apache-2.0
"""Row-by-row work in parallel: layer norm, softmax, activations, exp, sums, embedding.

Rows are shared out in chunks of at most CHUNK numbers; few numbers stay on one thread.
Numbers: csrc/rows.inc.h; a row's result does not depend on the chunk it is in.
"""
from cython.parallel cimport prange

from gpt2cy.kernels.table cimport G2_LINE, fp_mode, g2_embed, g2_fp_enter, g2_fp_leave
from gpt2cy.kernels.threads cimport Region, close_region, open_region, take, workers

cdef enum:
    CHUNK = 32768          # numbers of a task
    SIDE_BY_SIDE = 12      # rows that make twos, threes and fours of layer norm (csrc/rows.inc.h)
    TASKS_EACH = 4         # at least this many tasks a thread, where there are rows enough

cdef double WORTH_A_TEAM = 3.0e4   # numbers

cdef enum Op:
    LAYERNORM, SOFTMAX, ACTIVATION, EXP, ADD, EMBED


cdef struct Job:
    const Team *team
    Op op
    const float *x
    float *y
    Py_ssize_t n, width
    const float *gamma
    const float *beta
    float eps
    int kind
    const g2_rows *tokens
    const g2_rows *positions
    const int64_t *ids
    const int64_t *at


cdef void some_rows(const Job *job, Py_ssize_t first, Py_ssize_t end) noexcept nogil:
    """Rows first .. end - 1."""
    cdef const float *x = job.x + first * job.width if job.x != NULL else NULL
    cdef float *y = job.y + first * job.width
    cdef Py_ssize_t n = end - first, i
    cdef fp_mode mode = g2_fp_enter()
    if job.op == LAYERNORM:
        job.team.table.layernorm(x, job.gamma, job.beta, job.eps, y, n, job.width)
    elif job.op == SOFTMAX:
        job.team.table.softmax(x, y, n, job.width)
    elif job.op == ACTIVATION:
        job.team.table.activation(job.kind, x, y, n * job.width)
    elif job.op == EXP:
        job.team.table.exp(x, y, n * job.width)
    elif job.op == ADD:
        for i in range(n * job.width):
            y[i] = x[i] + y[i] if job.kind else x[i]
    else:
        for i in range(n):
            g2_embed(job.tokens, job.ids[first + i], job.positions,
                     job.at[first + i] if job.at != NULL else 0, job.width, y + i * job.width)
    g2_fp_leave(mode)


cdef void some_chunks(const Job *job, Py_ssize_t rows, Region *region, int worker) noexcept nogil:
    cdef Py_ssize_t task = take(region, worker)
    while task >= 0:
        some_rows(job, task * rows, min((task + 1) * rows, job.n))
        task = take(region, worker)


cdef Py_ssize_t task_rows(const Job *job, int n_workers) noexcept nogil:
    """Rows of a task: few tasks, of up to CHUNK numbers; of layer norm, rows that it can take side by side; of single
    numbers, whole cache lines."""
    cdef Py_ssize_t rows = min(CHUNK // job.width, (job.n + TASKS_EACH * n_workers - 1) // (TASKS_EACH * n_workers))
    cdef Py_ssize_t together = SIDE_BY_SIDE if job.op == LAYERNORM else G2_LINE if job.width == 1 else 1
    return max(<Py_ssize_t>1, rows if rows < together else rows // together * together)


cdef void run(const Job *job) noexcept nogil:
    cdef int n = workers(job.team, <double>job.n * job.width, WORTH_A_TEAM)
    cdef Py_ssize_t rows = task_rows(job, n), n_tasks = (job.n + rows - 1) // rows, i
    cdef Region region
    if n == 1:
        some_rows(job, 0, job.n)
    else:
        open_region(&region, n, n_tasks)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            some_chunks(job, rows, &region, i)
        close_region(&region)


cdef Job blank(const Team *team, Op op, const float *x, float *y, Py_ssize_t n, Py_ssize_t width) noexcept nogil:
    return Job(team, op, x, y, n, width, NULL, NULL, 0.0, 0, NULL, NULL, NULL, NULL)


cdef void layernorm(const Team *team, const float *x, const float *gamma, const float *beta, float eps, float *y,
                    Py_ssize_t n, Py_ssize_t width) noexcept nogil:
    """y[n, width]; beta may be NULL; y may be x."""
    cdef Job job = blank(team, LAYERNORM, x, y, n, width)
    job.gamma = gamma
    job.beta = beta
    job.eps = eps
    run(&job)


cdef void softmax(const Team *team, const float *x, float *y, Py_ssize_t n, Py_ssize_t width) noexcept nogil:
    """y[n, width], each row over its width; y may be x."""
    cdef Job job = blank(team, SOFTMAX, x, y, n, width)
    run(&job)


cdef void activation(const Team *team, int kind, const float *x, float *y, Py_ssize_t n) noexcept nogil:
    """y[n]; y may be x."""
    cdef Job job = blank(team, ACTIVATION, x, y, n, 1)
    job.kind = kind
    run(&job)


cdef void exp(const Team *team, const float *x, float *y, Py_ssize_t n) noexcept nogil:
    """y[n]; y may be x."""
    cdef Job job = blank(team, EXP, x, y, n, 1)
    run(&job)


cdef void add(const Team *team, const float *x, float *y, Py_ssize_t n, bint accumulate) noexcept nogil:
    """y[n] = x + y if `accumulate`, else x: what a fused residual does at the end of a product."""
    cdef Job job = blank(team, ADD, x, y, n, 1)
    job.kind = accumulate
    run(&job)


cdef void embed(const Team *team, const g2_rows *tokens, const int64_t *ids, const g2_rows *positions,
                const int64_t *at, float *x, Py_ssize_t n, Py_ssize_t width) noexcept nogil:
    """x[n, width] = tokens[ids], plus positions[at] where `positions` is not NULL; indices are in range."""
    cdef Job job = blank(team, EMBED, NULL, x, n, width)
    job.tokens = tokens
    job.ids = ids
    job.positions = positions
    job.at = at
    run(&job)
