# SPDX-License-Identifier: Apache-2.0
"""Causal attention over a ragged batch: keys and values into their blocks, then heads in parallel.

    qkv [n, 3 C]   queries, keys, values of every row, heads side by side
    blocks         64 positions each, of every sequence (csrc/table.h)
    out [n, C]     heads side by side

A task is a few consecutive queries of one head of one sequence; nothing of size [T, T] exists.
Numbers: csrc/attention.inc.h.
"""
from cython.parallel cimport prange

from gpt2cy.kernels.table cimport (
    G2_ATTENTION_SCRATCH,
    G2_BLOCK,
    fp_mode,
    g2_append,
    g2_attention,
    g2_fp_enter,
    g2_fp_leave,
)
from gpt2cy.kernels.threads cimport Region, close_region, open_region, take, workers

cdef double WORTH_A_TEAM = 1.0e5   # multiply-adds


cdef struct Job:
    const Team *team
    const g2_sequence *sequences
    Py_ssize_t n_sequences
    const float *qkv
    Py_ssize_t n_heads, head_dim, layer
    float scale
    float *out
    float *scratch
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
              first, end - first)


cdef void append_some(const Job *job, int worker) noexcept nogil:
    cdef Py_ssize_t task = take(job.region, worker)
    while task >= 0:
        append_one(job, task)
        task = take(job.region, worker)


cdef void append(const Team *team, const g2_sequence *sequences, Py_ssize_t n_sequences, const float *qkv,
                 Py_ssize_t n_heads, Py_ssize_t head_dim, Py_ssize_t layer) noexcept nogil:
    """Keys and values of all new rows into the blocks of `layer`."""
    cdef Region region
    cdef Job job = Job(team, sequences, n_sequences, qkv, n_heads, head_dim, layer, 0.0, NULL, NULL, &region)
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


cdef Py_ssize_t tiles_of(const Job *job, const g2_sequence *s) noexcept nogil:
    return (s.n_rows + job.team.table.sliver - 1) // job.team.table.sliver


cdef void attend_one(const Job *job, Py_ssize_t task, int worker) noexcept nogil:
    """One tile of queries of one head; the last tile, which sees most keys, comes first."""
    cdef const g2_sequence *s = job.sequences
    cdef Py_ssize_t width = job.n_heads * job.head_dim, head, row, part
    cdef g2_attention a
    cdef fp_mode mode
    while task >= tiles_of(job, s) * job.n_heads:
        task -= tiles_of(job, s) * job.n_heads
        s += 1
    head = task // tiles_of(job, s)
    row = (tiles_of(job, s) - 1 - task % tiles_of(job, s)) * job.team.table.sliver
    part = job.layer * s.layer_stride + head * job.head_dim * G2_BLOCK
    a.q = job.qkv + (s.row + row) * 3 * width + head * job.head_dim
    a.ld_q = 3 * width
    a.n_queries = min(<Py_ssize_t>job.team.table.sliver, s.n_rows - row)
    a.position = s.position + row
    a.blocks = s.blocks
    a.keys = part
    a.values = part + width * G2_BLOCK
    a.head_dim = job.head_dim
    a.scale = job.scale
    a.out = job.out + (s.row + row) * width + head * job.head_dim
    a.ld_out = width
    a.scratch = job.scratch + worker * <Py_ssize_t>G2_ATTENTION_SCRATCH
    mode = g2_fp_enter()
    job.team.table.attention(&a)
    g2_fp_leave(mode)


cdef void attend_some(const Job *job, int worker) noexcept nogil:
    cdef Py_ssize_t task = take(job.region, worker)
    while task >= 0:
        attend_one(job, task, worker)
        task = take(job.region, worker)


cdef void attend(const Team *team, const g2_sequence *sequences, Py_ssize_t n_sequences, const float *qkv,
                 Py_ssize_t n_heads, Py_ssize_t head_dim, Py_ssize_t layer, float scale, float *out,
                 float *scratch) noexcept nogil:
    """out = softmax(scale q k^T) v for every row of every sequence; scratch: attend_scratch floats."""
    cdef Region region
    cdef Job job = Job(team, sequences, n_sequences, qkv, n_heads, head_dim, layer, scale, out, scratch, &region)
    cdef Py_ssize_t i, n_tasks = 0
    cdef double work = 0
    cdef int n
    for i in range(n_sequences):
        n_tasks += tiles_of(&job, sequences + i) * n_heads
        work += <double>sequences[i].n_rows * (sequences[i].position + sequences[i].n_rows) * n_heads * head_dim
    n = workers(team, work, WORTH_A_TEAM)
    if n == 1:
        for i in range(n_tasks):
            attend_one(&job, i, 0)
    else:
        open_region(&region, n, n_tasks)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            attend_some(&job, i)
        close_region(&region)


cdef Py_ssize_t attend_scratch(const Team *team) noexcept nogil:
    """Floats of scratch for a team."""
    return team.n_threads * <Py_ssize_t>G2_ATTENTION_SCRATCH
