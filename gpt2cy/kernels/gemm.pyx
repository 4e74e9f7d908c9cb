# SPDX-License-Identifier: Apache-2.0
"""The matrix product out[m, N] = epilogue(a[m, K] w[K, N]), w packed.

A task is some slivers by some panels, all of K in blocks:

    few rows    a stays in the second-level cache: each block of a panel meets all slivers before the next
                block, and a weight is read from memory once, in order
    many        a does not: a block's slivers stay there while a group of panels passes

Design
------
A sliver is a few rows of a, as many as a register tile has.  Many rows are copied to [K][h] first, together, so
that they are read forwards.  Few are read where they are, unless a tile reads them several times, for parts of a
panel: then the fewer instructions that it needs for a sliver are worth a copy, each worker's own, as to meet for
it would cost more than it gives; with many workers, or few columns for each, it would not be.  Sums of a task wait
between K blocks in float32 tiles of its worker's own, never in `out`, which may be the residual.

Memory and arithmetic overlap only if weights are asked for before they are needed: while a block is
multiplied, the block after it is fetched, evenly over the time of the first slivers (docs/kernels.md).
For that to be the right block, a worker's tasks follow each other in memory: each has an equal share of
them, and takes from the others' when its own is done.

Numbers: every element is one chain over k; K is never split over threads; see csrc/gemm.inc.h.
"""
from cython.parallel cimport prange
from libc.stdint cimport int64_t

from gpt2cy.kernels.table cimport G2_MAX_ROWS, G2_PANEL, fp_mode, g2_expect, g2_fp_enter, g2_fp_leave, g2_table
from gpt2cy.kernels.threads cimport Region, close_region, open_region, run_tasks, take, workers

cdef enum:
    AHEAD_ROWS = 80       # of a panel, 10 KiB: longer than memory takes to answer
    FETCHING = 3          # slivers that share in fetching a block
    K_BLOCK = 768         # a sliver's block, 42 KiB, stays in the first-level cache; a panel's, 96 KiB, in the second
    FEW_ROWS = 16         # up to so many rows wait for memory more than they compute
    K_BLOCK_OF_FEW = 128  # of few rows where vectors are short: several passes through a block, so a small one
    CHUNK_ROWS = 84       # rows of a task
    GROUP_PANELS = 8      # most panels of a task
    NEAR_FLOATS = 250000  # a left matrix of up to 1 MB stays whole in the second-level cache, where that is as large
    COPY_THREADS = 8      # most threads that copy a near left matrix, each for itself
    COPY_COLUMNS = 256    # least columns of w for each thread, where each copies a near left matrix
    TASKS_EACH = 16       # at least this many tasks a thread, so that a slow core holds nobody up
    TILE_FLOATS = (CHUNK_ROWS + G2_MAX_ROWS) * GROUP_PANELS * G2_PANEL

cdef double WORTH_A_TEAM = 2.0e5   # multiply-adds: some 3 microseconds of one core


cdef struct Product:
    const Team *team
    const float *a
    Py_ssize_t lda
    const g2_packed *w
    const g2_epilogue *e
    bint near              # a stays in the second-level cache
    float *slivers         # [n_slivers][K][h], or NULL: rows are read where they are
    Py_ssize_t copy        # floats from one worker's slivers to the next one's; 0: all have the same
    float *tiles           # TILE_FLOATS a thread
    Py_ssize_t height, taller               # rows of a sliver; slivers of one row more
    Py_ssize_t n_slivers, chunk, n_chunks   # slivers; slivers of a task; tasks side by side
    Py_ssize_t n_panels, group, n_groups    # panels; panels of a task; tasks one after the other
    Py_ssize_t k_block, span   # K of a block; panels that take turns within a block
    Region *region


cdef struct Ahead:             # see gemm_tile in csrc/table.h
    const float *start
    Py_ssize_t stride


cdef Py_ssize_t up(Py_ssize_t a, Py_ssize_t b) noexcept nogil:
    """a / b, rounded up."""
    return (a + b - 1) // b


cdef Py_ssize_t copy_floats(Py_ssize_t m, Py_ssize_t k) noexcept nogil:
    """Of slivers, in whole cache lines."""
    return up(m * k, 16) * 16


cdef Py_ssize_t first_row(const Product *p, Py_ssize_t sliver) noexcept nogil:
    """Where a sliver begins: heights differ by one at most."""
    return sliver * p.height + min(sliver, p.taller)


cdef const float *sliver_at(const Product *p, Py_ssize_t sliver, Py_ssize_t k0) noexcept nogil:
    cdef Py_ssize_t row = first_row(p, sliver)
    if p.slivers == NULL:
        return p.a + row * p.lda + k0
    return p.slivers + row * p.w.k + k0 * (first_row(p, sliver + 1) - row)


cdef void pack_one(const Product *p, Py_ssize_t sliver) noexcept nogil:
    cdef Py_ssize_t row = first_row(p, sliver)
    cdef Py_ssize_t height = first_row(p, sliver + 1) - row
    p.team.table.transpose(p.a + row * p.lda, p.lda, height, p.w.k, <float *>sliver_at(p, sliver, 0), height)


cdef void pack_all(const Product *p) noexcept nogil:
    cdef Py_ssize_t sliver
    for sliver in range(p.n_slivers):
        pack_one(p, sliver)


cdef Ahead fetch(const Product *p, Py_ssize_t k0, Py_ssize_t sliver, Py_ssize_t height, Py_ssize_t step,
                 const float *b, Py_ssize_t nth, Py_ssize_t n, bint last_panel) noexcept nogil:
    """What the nth of a task's n slivers fetches meanwhile.

    One sliver alone, that goes through its panel once: the panel, some way on; but nothing with short vectors, as such
    a sliver has few rows then, for which what the processor fetches by itself is enough.  Else the first slivers, the
    panels' block after this one, a share each.  The others, where the slivers do not stay in the cache and the last
    panel passes: themselves, as they will be needed after it.
    """
    cdef const g2_table *table = p.team.table
    cdef Py_ssize_t depth = min(p.k_block, p.w.k - k0)
    cdef Py_ssize_t passes = 1 if height <= table.wide else table.passes
    cdef Py_ssize_t steps = 1 if height <= table.wide else table.steps
    if p.n_slivers == 1 and passes == 1:
        return Ahead(b + AHEAD_ROWS * G2_PANEL, G2_PANEL) if table.passes == 1 else Ahead(NULL, 0)
    n = min(n, <Py_ssize_t>FETCHING)
    if nth < n:
        return Ahead(b + step + depth * G2_PANEL * nth // n, up(G2_PANEL * steps, n * passes))
    if not last_panel or p.near:
        return Ahead(NULL, 0)
    if k0 + depth < p.w.k:
        return Ahead(sliver_at(p, sliver, k0 + depth), up(height * steps, passes))
    return Ahead(sliver_at(p, (sliver + p.chunk) % p.n_slivers, 0), up(height * steps, passes))


cdef void multiply_one(const void *product, int64_t task, float *tiles) noexcept nogil:
    """One task: its panels against its slivers, all of K."""
    cdef const Product *p = <const Product *>product
    cdef Py_ssize_t s0 = task % p.n_chunks * p.chunk, s1 = min(s0 + p.chunk, p.n_slivers)
    cdef Py_ssize_t g0 = task // p.n_chunks * p.group, g1 = min(g0 + p.group, p.n_panels)
    cdef Py_ssize_t k = p.w.k, k0, depth, panel, panel0 = g0, panel1, sliver, row, height, step
    cdef Ahead ahead
    cdef const float *b
    cdef float *tile
    cdef bint packed = p.slivers != NULL
    cdef fp_mode mode = g2_fp_enter()
    while panel0 < g1:
        panel1 = min(panel0 + p.span, g1)
        k0 = 0
        while k0 < k:
            depth = min(p.k_block, k - k0)
            step = (depth if panel1 - panel0 == 1 else k) * G2_PANEL   # to the block after this one
            tile = tiles
            for panel in range(panel0, panel1):
                b = <const float *>p.w.data + (panel * k + k0) * G2_PANEL
                for sliver in range(s0, s1):
                    row = first_row(p, sliver)
                    height = first_row(p, sliver + 1) - row
                    if k0 + depth == k:
                        g2_expect(p.e, height, row, panel * G2_PANEL)
                    ahead = fetch(p, k0, sliver, height, step, b, sliver - s0, s1 - s0, panel == panel1 - 1)
                    p.team.table.gemm_tile(height, depth, sliver_at(p, sliver, k0),
                                           1 if packed else p.lda, height if packed else 1, b, G2_PANEL,
                                           tile, G2_PANEL, k0 > 0, ahead.start, ahead.stride)
                    if k0 + depth == k:
                        p.team.table.gemm_epilogue(p.e, tile, height,
                                                   min(<Py_ssize_t>G2_PANEL, p.w.n - panel * G2_PANEL),
                                                   row, panel * G2_PANEL)
                    if p.k_block < k:   # else the next tile takes this one's place, in the nearest cache
                        tile += height * G2_PANEL
            k0 += depth
        panel0 = panel1
    g2_fp_leave(mode)


cdef void pack_some(const Product *p, int worker) noexcept nogil:
    cdef Py_ssize_t task = take(p.region, worker)
    while task >= 0:
        pack_one(p, task)
        task = take(p.region, worker)


cdef void multiply_some(const Product *p, int worker) noexcept nogil:
    cdef Product own = p[0]
    cdef Py_ssize_t task = take(p.region, worker)
    if p.copy and task >= 0:
        own.slivers += worker * p.copy
        pack_all(&own)
    while task >= 0:
        multiply_one(&own, task, p.tiles + worker * <Py_ssize_t>TILE_FLOATS)
        task = take(p.region, worker)


cdef void plan(Product *p, const Team *team, const float *a, Py_ssize_t lda, Py_ssize_t m,
               const g2_packed *w, const g2_epilogue *e, float *scratch) noexcept nogil:
    cdef Py_ssize_t most = team.table.sliver, n_workers
    p.team = team
    p.a = a
    p.lda = lda
    p.w = w
    p.e = e
    p.tiles = scratch
    p.near = m * w.k <= NEAR_FLOATS
    p.copy = copy_floats(m, w.k) if p.near else 0
    p.slivers = scratch + team.n_threads * <Py_ssize_t>TILE_FLOATS
    if p.near and (team.table.passes == 1 or m <= most or team.n_threads > COPY_THREADS
                   or w.n < team.n_threads * <Py_ssize_t>COPY_COLUMNS):
        p.slivers = NULL
        p.copy = 0
    p.n_slivers = up(m, most)
    p.height = m // p.n_slivers
    p.taller = m % p.n_slivers
    p.n_chunks = up(p.n_slivers, max(1, CHUNK_ROWS // most))
    p.chunk = up(p.n_slivers, p.n_chunks)
    p.n_chunks = up(p.n_slivers, p.chunk)
    p.k_block = up(w.k, up(w.k, K_BLOCK_OF_FEW if team.table.passes > 1 and m <= FEW_ROWS else K_BLOCK))
    p.n_panels = up(w.n, G2_PANEL)
    n_workers = team.n_threads if team.region == NULL else team.region.n_workers   # or those who may help
    p.group = p.n_panels * p.n_chunks // (n_workers * TASKS_EACH)
    p.group = max(1, min(p.group, <Py_ssize_t>GROUP_PANELS))
    p.n_groups = up(p.n_panels, p.group)
    p.span = 1 if p.near else p.group


cdef void matmul(const Team *team, const float *a, Py_ssize_t lda, Py_ssize_t m, const g2_packed *w,
                 const g2_epilogue *e, float *scratch) noexcept nogil:
    """out = epilogue(a w) by the team; scratch: matmul_scratch floats, 64-byte aligned."""
    cdef Product p
    cdef Region region
    cdef Py_ssize_t i, n_tasks
    cdef int n = workers(team, <double>m * w.k * w.n, WORTH_A_TEAM)
    plan(&p, team, a, lda, m, w, e, scratch)
    p.region = &region
    n_tasks = p.n_chunks * p.n_groups
    if p.slivers != NULL and n == 1:
        pack_all(&p)
    elif not p.near:
        open_region(&region, n, p.n_slivers)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            pack_some(&p, i)
    if n == 1:
        run_tasks(team, multiply_one, &p, n_tasks, p.tiles)
    else:
        open_region(&region, n, n_tasks)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            multiply_some(&p, i)
        close_region(&region)


cdef Py_ssize_t matmul_scratch(const Team *team, Py_ssize_t m, Py_ssize_t k) noexcept nogil:
    """Floats of scratch for m rows of depth k."""
    cdef Py_ssize_t copy = copy_floats(m, k), copies = 0
    if team.n_threads <= COPY_THREADS:
        copies = team.n_threads * min(copy, <Py_ssize_t>NEAR_FLOATS)
    return team.n_threads * <Py_ssize_t>TILE_FLOATS + max(copies, copy)
