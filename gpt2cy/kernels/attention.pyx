# SPDX-License-Identifier: Apache-2.0
"""Causal attention over a ragged batch: keys and values into their blocks, then heads in parallel.

    qkv [n, 3 C]   queries, keys, values of every row, heads side by side
    blocks         64 positions each, of every sequence (csrc/table.h)
    out [n, C]     heads side by side

A task is a few consecutive queries of one head of one sequence; nothing of size [T, T] exists, but for those
who look inside: the last part of this file.
Numbers: csrc/attention.inc.h.
"""
from cython.parallel cimport prange

from libc.math cimport INFINITY
from libc.stdint cimport int64_t

from gpt2cy.kernels.table cimport (
    G2_ATTENTION_SCRATCH,
    G2_BLOCK,
    G2_MAX_ROWS,
    G2_PANEL,
    fp_mode,
    g2_append,
    g2_attention,
    g2_fp_enter,
    g2_fp_leave,
)
from gpt2cy.kernels.threads cimport Region, close_region, open_region, run_tasks, take, workers

cdef enum:
    TASKS_EACH = 8   # tasks for each worker, at least, of as many tiles as that leaves room for

cdef double WORTH_A_TEAM = 1.0e5   # multiply-adds
cdef double APPEND = 32            # so many take as long as putting one key into its block: a line from memory each


cdef struct Job:
    const Team *team
    const g2_sequence *sequences
    const float *qkv
    Py_ssize_t n_heads, head_dim, layer
    float scale
    float *out
    float *scratch
    bint appends     # each task puts its head's keys and values into the blocks first
    Py_ssize_t queries   # of a task
    Region *region


cdef Py_ssize_t blocks_touched(const g2_sequence *s) noexcept nogil:
    """Blocks that a sequence's new rows fall into."""
    return (s.position + s.n_rows - 1) // G2_BLOCK - s.position // G2_BLOCK + 1


cdef void append_one(const Job *job, Py_ssize_t task) noexcept nogil:
    """The new rows of one sequence that fall into one block: no two tasks share a cache line."""
    cdef const g2_sequence *s = job.sequences
    cdef Py_ssize_t first, end, block
    while task >= blocks_touched(s):
        task -= blocks_touched(s)
        s += 1
    block = s.position // G2_BLOCK + task
    first = max(<Py_ssize_t>0, block * G2_BLOCK - s.position)
    end = min(<Py_ssize_t>s.n_rows, (block + 1) * G2_BLOCK - s.position)
    g2_append(job.team.table, s, job.qkv, job.n_heads * job.head_dim, job.head_dim, job.layer * s.layer_stride,
              0, job.n_heads, first, end - first)


cdef void append_some(const Job *job, int worker) noexcept nogil:
    cdef Py_ssize_t task = take(job.region, worker)
    while task >= 0:
        append_one(job, task)
        task = take(job.region, worker)


cdef void append(const Team *team, const g2_sequence *sequences, Py_ssize_t n_sequences, const float *qkv,
                 Py_ssize_t n_heads, Py_ssize_t head_dim, Py_ssize_t layer) noexcept nogil:
    """Keys and values of all new rows into the blocks of `layer`."""
    cdef Region region
    cdef Job job = Job(team, sequences, qkv, n_heads, head_dim, layer, 0.0, NULL, NULL, False, 0, &region)
    cdef Py_ssize_t i, n_tasks = 0, n_rows = 0
    cdef int n
    for i in range(n_sequences):
        n_tasks += blocks_touched(sequences + i)
        n_rows += sequences[i].n_rows
    n = workers(team, <double>n_rows * n_heads * head_dim, WORTH_A_TEAM)
    if n == 1:
        for i in range(n_tasks):
            append_one(&job, i)
    else:
        open_region(&region, n, n_tasks)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            append_some(&job, i)
        close_region(&region)


cdef Py_ssize_t tasks_of(const Job *job, const g2_sequence *s) noexcept nogil:
    """Tasks of one head."""
    return (s.n_rows + job.queries - 1) // job.queries


cdef Py_ssize_t count_tasks(const Job *job, Py_ssize_t n_sequences) noexcept nogil:
    cdef Py_ssize_t i, n = 0
    for i in range(n_sequences):
        n += tasks_of(job, job.sequences + i) * job.n_heads
    return n


cdef void attend_one(const void *what, int64_t task, float *scratch) noexcept nogil:
    """Some queries of one head; the last ones, which see most keys, come first."""
    cdef const Job *job = <const Job *>what
    cdef const g2_sequence *s = job.sequences
    cdef Py_ssize_t width = job.n_heads * job.head_dim, head, row, part
    cdef g2_attention a
    cdef fp_mode mode
    while task >= tasks_of(job, s) * job.n_heads:
        task -= tasks_of(job, s) * job.n_heads
        s += 1
    head = task // tasks_of(job, s)
    row = (tasks_of(job, s) - 1 - task % tasks_of(job, s)) * job.queries
    part = job.layer * s.layer_stride + head * job.head_dim * G2_BLOCK
    a.q = job.qkv + (s.row + row) * 3 * width + head * job.head_dim
    a.ld_q = 3 * width
    a.n_queries = min(job.queries, s.n_rows - row)
    a.position = s.position + row
    a.blocks = s.blocks
    a.keys = part
    a.values = part + width * G2_BLOCK
    a.head_dim = job.head_dim
    a.scale = job.scale
    a.out = job.out + (s.row + row) * width + head * job.head_dim
    a.ld_out = width
    a.scratch = scratch
    mode = g2_fp_enter()
    if job.appends:
        g2_append(job.team.table, s, job.qkv, width, job.head_dim, job.layer * s.layer_stride, head, 1, 0, s.n_rows)
    job.team.table.attention(&a)
    g2_fp_leave(mode)


cdef void attend_some(const Job *job, int worker) noexcept nogil:
    cdef Py_ssize_t task = take(job.region, worker)
    while task >= 0:
        attend_one(job, task, job.scratch + worker * <Py_ssize_t>G2_ATTENTION_SCRATCH)
        task = take(job.region, worker)


cdef bint may_append(const Team *team, const g2_sequence *sequences, Py_ssize_t n_sequences,
                     Py_ssize_t head_dim) noexcept nogil:
    """Whether attend can append too: each head of each sequence is one task, and reads nothing of another head."""
    cdef Py_ssize_t i
    for i in range(n_sequences):
        if sequences[i].n_rows > team.table.sliver:
            return False
    return head_dim % G2_PANEL == 0


cdef void attend(const Team *team, const g2_sequence *sequences, Py_ssize_t n_sequences, const float *qkv,
                 Py_ssize_t n_heads, Py_ssize_t head_dim, Py_ssize_t layer, float scale, float *out,
                 float *scratch, bint appends) noexcept nogil:
    """out = softmax(scale q k^T) v for every row of every sequence; scratch: attend_scratch floats.

    With `appends`, if may_append says so, the new keys and values get into their blocks on the way: for few rows that
    takes longer than attention.
    """
    cdef Region region
    cdef Job job = Job(team, sequences, qkv, n_heads, head_dim, layer, scale, out, scratch, appends,
                       team.table.queries, &region)
    cdef Py_ssize_t i, n_tasks, least
    cdef double work = 0
    cdef int n
    for i in range(n_sequences):
        work += <double>sequences[i].n_rows * (sequences[i].position + sequences[i].n_rows) * n_heads * head_dim
        if appends:
            work += APPEND * <double>sequences[i].n_rows * n_heads * head_dim
    n = workers(team, work, WORTH_A_TEAM)
    least = TASKS_EACH * (n if team.region == NULL else team.region.n_workers)
    n_tasks = count_tasks(&job, n_sequences)
    while n_tasks < least and job.queries > team.table.sliver:
        job.queries -= team.table.sliver
        n_tasks = count_tasks(&job, n_sequences)
    if n == 1:
        run_tasks(team, attend_one, &job, n_tasks, scratch)
    else:
        open_region(&region, n, n_tasks)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            attend_some(&job, i)
        close_region(&region)


cdef Py_ssize_t attend_scratch(const Team *team) noexcept nogil:
    """Floats of scratch for a team."""
    return team.n_threads * <Py_ssize_t>G2_ATTENTION_SCRATCH


# ---- the same in steps that keep [T, S] numbers, for those who look inside ------------------------------
#
# Of one sequence: scores, weights [H, T, S] with T its new rows and S >= its positions.  Scores are the numbers
# that the kernel goes through; weights are one softmax a row, where the kernel rescales block by block.

cdef enum Step:
    SCORES, WEIGHTS, MIX


cdef struct Steps:
    Step step
    const Team *team
    const g2_sequence *s
    const float *qkv
    Py_ssize_t n_heads, head_dim, layer, n_keys
    float scale
    float *rows                     # [H, T, n_keys]
    const unsigned char *changed    # [H, T]
    float *out                      # [n, C]
    Region *region


cdef void score_tile(const Steps *job, Py_ssize_t head, Py_ssize_t first, Py_ssize_t n) noexcept nogil:
    """Queries first .. first + n - 1 of one head; later keys are -inf."""
    cdef const g2_sequence *s = job.s
    cdef Py_ssize_t width = job.n_heads * job.head_dim, i, j, key = 0, position = s.position + first
    cdef const float *q = job.qkv + (s.row + first) * 3 * width + head * job.head_dim
    cdef Py_ssize_t keys = job.layer * s.layer_stride + head * job.head_dim * G2_BLOCK
    cdef float *rows = job.rows + (head * s.n_rows + first) * job.n_keys
    cdef float tile[G2_MAX_ROWS * G2_PANEL]
    while key < job.n_keys:
        if key < position + n:
            job.team.table.gemm_tile(n, job.head_dim, q, 3 * width, 1,
                                     s.blocks[key // G2_BLOCK] + keys + key % G2_BLOCK, G2_BLOCK, tile, G2_PANEL, 0,
                                     NULL, 0)
        for i in range(n):
            for j in range(min(<Py_ssize_t>G2_PANEL, job.n_keys - key)):
                rows[i * job.n_keys + key + j] = (tile[i * G2_PANEL + j] * job.scale if key + j <= position + i
                                                  else -INFINITY)
        key += G2_PANEL


cdef void weigh_tile(const Steps *job, Py_ssize_t head, Py_ssize_t first, Py_ssize_t n) noexcept nogil:
    """exp(score - maximum) / sum over the keys that a query sees, in place; 0 for the others."""
    cdef Py_ssize_t i, j, seen
    cdef float *row = job.rows + (head * job.s.n_rows + first) * job.n_keys
    for i in range(n):
        seen = job.s.position + first + i + 1
        job.team.table.softmax(row, row, 1, seen)
        for j in range(seen, job.n_keys):
            row[j] = 0
        row += job.n_keys


cdef void mix_rows(const Steps *job, Py_ssize_t head, Py_ssize_t first, Py_ssize_t n) noexcept nogil:
    """weights @ v of n queries: one chain a query, over the keys up to its own."""
    cdef const g2_sequence *s = job.s
    cdef Py_ssize_t width = job.n_heads * job.head_dim, head_dim = job.head_dim, i, j, key, k, end, col = 0
    cdef Py_ssize_t values = job.layer * s.layer_stride + (width + head * head_dim) * G2_BLOCK
    cdef const float *weights = job.rows + (head * s.n_rows + first) * job.n_keys
    cdef float *out = job.out + (s.row + first) * width + head * head_dim
    cdef float tile[G2_MAX_ROWS * G2_PANEL]
    while col < head_dim:
        for i in range(n):
            # What all n see goes in one tile; the rest of a query's chain follows alone.
            key = 0 if i == 0 else s.position + first + 1
            end = s.position + first + i + 1
            while key < end:
                k = min(<Py_ssize_t>G2_BLOCK - key % G2_BLOCK, end - key)
                job.team.table.gemm_tile(
                    n if i == 0 else 1, k, weights + i * job.n_keys + key, job.n_keys, 1,
                    s.blocks[key // G2_BLOCK] + values + key % G2_BLOCK * head_dim + col, head_dim,
                    tile + i * G2_PANEL, G2_PANEL, key > 0, NULL, 0)
                key += k
        for i in range(n):
            for j in range(min(<Py_ssize_t>G2_PANEL, head_dim - col)):
                out[i * width + col + j] = tile[i * G2_PANEL + j]
        col += G2_PANEL


cdef void mix_tile(const Steps *job, Py_ssize_t head, Py_ssize_t first, Py_ssize_t n) noexcept nogil:
    """mix_rows of those whose weights have changed."""
    cdef const unsigned char *changed = job.changed + head * job.s.n_rows + first
    cdef Py_ssize_t i = 0, run
    while i < n:
        run = 0
        while i + run < n and changed[i + run]:
            run += 1
        if run:
            mix_rows(job, head, first + i, run)
        i += run + 1


cdef void step_one(const Steps *job, Py_ssize_t task) noexcept nogil:
    """One tile of queries of one head."""
    cdef Py_ssize_t height = job.team.table.sliver, tiles = (job.s.n_rows + height - 1) // height
    cdef Py_ssize_t first = task % tiles * height, n = min(height, <Py_ssize_t>job.s.n_rows - first)
    cdef fp_mode mode = g2_fp_enter()
    if job.step == SCORES:
        score_tile(job, task // tiles, first, n)
    elif job.step == WEIGHTS:
        weigh_tile(job, task // tiles, first, n)
    else:
        mix_tile(job, task // tiles, first, n)
    g2_fp_leave(mode)


cdef void step_some(const Steps *job, int worker) noexcept nogil:
    cdef Py_ssize_t task = take(job.region, worker)
    while task >= 0:
        step_one(job, task)
        task = take(job.region, worker)


cdef void run_steps(Steps *job) noexcept nogil:
    cdef Region region
    cdef Py_ssize_t height = job.team.table.sliver, i
    cdef Py_ssize_t n_tasks = (job.s.n_rows + height - 1) // height * job.n_heads
    cdef int n = workers(job.team, <double>job.n_heads * job.s.n_rows * job.n_keys * job.head_dim, WORTH_A_TEAM)
    if n == 1:
        for i in range(n_tasks):
            step_one(job, i)
    else:
        job.region = &region
        open_region(&region, n, n_tasks)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            step_some(job, i)
        close_region(&region)


cdef void scores(const Team *team, const g2_sequence *s, const float *qkv, Py_ssize_t n_heads, Py_ssize_t head_dim,
                 Py_ssize_t layer, float scale, float *rows, Py_ssize_t n_keys) noexcept nogil:
    """rows[H, T, n_keys] = scale q k^T of one sequence, to the bit what attend goes through; -inf for later keys."""
    cdef Steps job = Steps(SCORES, team, s, qkv, n_heads, head_dim, layer, n_keys, scale, rows, NULL, NULL, NULL)
    run_steps(&job)


cdef void weigh(const Team *team, const g2_sequence *s, Py_ssize_t n_heads, float *rows,
                Py_ssize_t n_keys) noexcept nogil:
    """Scores rows[H, T, n_keys] to weights, in place."""
    cdef Steps job = Steps(WEIGHTS, team, s, NULL, n_heads, 1, 0, n_keys, 0.0, rows, NULL, NULL, NULL)
    run_steps(&job)


cdef void mix(const Team *team, const g2_sequence *s, Py_ssize_t n_heads, Py_ssize_t head_dim, Py_ssize_t layer,
              const float *rows, const unsigned char *changed, float *out, Py_ssize_t n_keys) noexcept nogil:
    """out[n, C] = weights rows[H, T, n_keys] @ v, where changed[H, T] is set; keys later than a query count for 0."""
    cdef Steps job = Steps(MIX, team, s, NULL, n_heads, head_dim, layer, n_keys, 0.0, <float *>rows, changed, out, NULL)
    run_steps(&job)
