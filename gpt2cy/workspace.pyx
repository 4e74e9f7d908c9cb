# SPDX-License-Identifier: Apache-2.0
"""Workspace: the scratch memory, the thread team and the ragged batch of one call.

All scratch memory of a pass comes from here.  A call begins one, obtains what it will need, lays its buffers
out, and ends by letting it go, also when an error leaves.  A model keeps one spare block of memory of moderate size, so
that short calls do not ask the system for pages every time.

    Workspace.team      who computes
    Workspace.batch     one descriptor (csrc/table.h: g2_sequence) a sequence; rows are never padded
    Workspace.buffers   x, narrow, wide, scratch: what a Block needs
"""
cimport cython
from libc.stdint cimport SIZE_MAX
from libc.string cimport memcpy

from gpt2cy.kernels.attention cimport attend_scratch
from gpt2cy.kernels.gemm cimport matmul_scratch
from gpt2cy.kernels.memory cimport Spare, allocate, deallocate, rounded
from gpt2cy.kernels.table cimport G2_BLOCK, G2_PANEL
from gpt2cy.kernels.threads cimport join_team, leave_team

from gpt2cy.kernels import host

cdef enum:
    SPARE_BYTES = 64 << 20   # a larger block goes back to the system
    NEAR_BYTES = 4 << 20     # weights of a block that stay in a core's caches from one pass to the next
    ROWS_WORTH_NEAR = 6      # least rows of a part that are worth reading weights for that stay near
    ROWS_WORTH_FAR = 24      # least rows of a part that are worth reading weights for that come from memory


cdef size_t floats(Py_ssize_t count) noexcept nogil:
    return rounded(<size_t>count * sizeof(float))


cdef Py_ssize_t blocks_for(Py_ssize_t length) noexcept nogil:
    return (length + G2_BLOCK - 1) // G2_BLOCK


cdef Py_ssize_t block_floats(Py_ssize_t width) noexcept nogil:
    """Keys and values of one layer, and room for a panel that starts in the last head."""
    return 2 * width * G2_BLOCK + G2_PANEL


cdef Py_ssize_t scratch_floats(const Team *team, Py_ssize_t n, Py_ssize_t deepest) noexcept nogil:
    """For all rows at once, or for parts of them."""
    return max(matmul_scratch(team, n, deepest), attend_scratch(team)) + 32 * team.n_threads


cdef int check_scratch() except -1:
    """A part's scratch is as large as its product's: attention must not need more."""
    cdef Team one
    one.n_threads = 1
    if attend_scratch(&one) > matmul_scratch(&one, 0, 1):
        raise AssertionError("attention's scratch is larger than the least that a product has")
    return 0


check_scratch()


cdef bint divides(const Team *team, Py_ssize_t n, Py_ssize_t width, Py_ssize_t inner) noexcept nogil:
    """Whether workers do better with rows of their own than with a share of each product.

    A row of one's own stays in one's own cache from the first norm to the last sum, and there are two
    meetings a block instead of one a kernel; but every worker reads all the weights.
    """
    cdef Py_ssize_t each = n // team.n_threads
    cdef double weights = (4.0 * width + 2.0 * inner) * width * sizeof(float)
    return team.n_threads > 1 and (each >= ROWS_WORTH_FAR or each >= ROWS_WORTH_NEAR and weights <= NEAR_BYTES)


cdef size_t batch_nbytes(const Team *team, list lengths, Py_ssize_t width, Py_ssize_t inner,
                         bint blocks) except 0:
    """Bytes that lay_out takes, with own_blocks too if `blocks`."""
    cdef Py_ssize_t n = 0, count = 0, length
    for length in lengths:
        n += length
        count += blocks_for(length)
    return shape_nbytes(team, len(lengths), n, count, width, inner, blocks)


cdef size_t shape_nbytes(const Team *team, Py_ssize_t n_sequences, Py_ssize_t n, Py_ssize_t count, Py_ssize_t width,
                         Py_ssize_t inner, bint blocks) except 0:
    """The same of n rows in all and `count` blocks of positions."""
    cdef Py_ssize_t wide = max(3 * width, inner)
    cdef double most = <double>n * (2 * width + 2 * wide)
    if blocks:
        most += <double>count * block_floats(width)
    if most * sizeof(float) > <double>(SIZE_MAX >> 2):
        raise MemoryError(f"a call on {n:,} tokens does not fit this machine's addresses")
    cdef size_t total = residual_nbytes(n_sequences, n, width) + floats(n * wide)
    total += floats(scratch_floats(team, n, max(width, inner)))
    if divides(team, n, width, inner):
        total += rounded(team.n_threads * sizeof(Part))
        total += rounded((n_sequences + team.n_threads) * sizeof(g2_sequence))
    if blocks:
        total += rounded(count * sizeof(float *)) + count * floats(block_floats(width))
    return total


cdef size_t residual_nbytes(Py_ssize_t n_sequences, Py_ssize_t n, Py_ssize_t width) noexcept nogil:
    """Of them, bytes before `wide`: what is still needed when the last block is done."""
    return rounded(n_sequences * sizeof(g2_sequence)) + 2 * floats(n * width)


@cython.no_gc   # `home` is there as long as this is, and refers to nothing
cdef class Workspace:
    """Scratch memory handed out from the front; closing gives back memory and team."""

    def __dealloc__(self):
        leave_team(&self.team)
        if self.base != NULL and self.home is not None and self.size <= SPARE_BYTES:
            self.home.keep(self.base, self.size)
        else:
            deallocate(self.base)

    cdef int obtain(self, size_t nbytes, Spare home) except -1:
        """At least nbytes, from the spare block at `home`, if there is one that is large enough."""
        cdef size_t size = 0
        cdef void *spare = home.take(nbytes, SIZE_MAX, &size) if home is not None else NULL
        if spare == NULL:
            size = rounded(max(nbytes, sizeof(size_t)))
            spare = allocate(size)
            if spare == NULL:
                raise MemoryError(f"cannot allocate {nbytes:,} bytes of workspace: use fewer or shorter sequences")
        self.base = <char *>spare
        self.size = size
        self.home = home
        return 0

    cdef int obtain_alone(self, str name, size_t result, size_t nbytes) except -1:
        """For a call of one layer on the argument `name`: refused before the result or anything else is allocated."""
        host.require_memory(name, {"result": result, "workspace": nbytes}, "the number of rows")
        return self.obtain(nbytes, None) if nbytes else 0

    cdef void *take(self, size_t nbytes) except NULL:
        cdef char *p = self.base + self.used
        if rounded(nbytes) > self.size - self.used:
            raise MemoryError(f"workspace of {self.size:,} bytes: {nbytes:,} more do not fit")
        self.used += rounded(nbytes)
        return p

    cdef float *take_floats(self, Py_ssize_t count) except NULL:
        return <float *>self.take(<size_t>count * sizeof(float))

    cdef void give_back(self, const void *start) noexcept:
        """What was taken from `start` on is free again."""
        self.used = <const char *>start - self.base

    cdef int lay_out(self, list lengths, Py_ssize_t width, Py_ssize_t inner) except -1:
        """Buffers for sequences of these lengths, each starting at position 0 and without blocks yet."""
        cdef Py_ssize_t i, n = 0, wide = max(3 * width, inner)
        cdef g2_sequence *s
        self.batch.n_sequences = len(lengths)
        self.batch.last_only = False
        self.batch.parts = NULL
        self.batch.sequences = <g2_sequence *>self.take(len(lengths) * sizeof(g2_sequence))
        for i in range(self.batch.n_sequences):
            s = self.batch.sequences + i
            s.row = n
            s.n_rows = lengths[i]
            s.position = 0
            s.blocks = NULL
            s.layer_stride = 0
            n += s.n_rows
        self.batch.n_rows = n
        self.buffers.x = self.take_floats(n * width)
        self.buffers.narrow = self.take_floats(n * width)
        self.buffers.wide = self.take_floats(n * wide)
        self.buffers.scratch = self.take_floats(scratch_floats(&self.team, n, max(width, inner)))
        return 0

    cdef int divide(self, Py_ssize_t width, Py_ssize_t inner) except -1:
        """Where it is worth it, a part of the rows for each worker, once the sequences are described."""
        cdef Py_ssize_t n = self.batch.n_rows, wide = max(3 * width, inner), first = 0, end, i
        cdef int w, n_parts = self.team.n_threads
        cdef Team one = self.team
        cdef Part *part
        cdef g2_sequence *s
        cdef g2_sequence *mine
        cdef float *scratch = self.buffers.scratch
        if not divides(&self.team, n, width, inner):
            return 0
        one.n_threads = 1
        self.batch.parts = <Part *>self.take(n_parts * sizeof(Part))
        mine = <g2_sequence *>self.take((self.batch.n_sequences + n_parts) * sizeof(g2_sequence))
        for w in range(n_parts):
            end = n if w == n_parts - 1 else min(cut(&self.batch, first, n_parts - w, width), n - (n_parts - 1 - w))
            part = self.batch.parts + w
            part.batch = self.batch
            part.batch.parts = NULL
            part.batch.n_rows = end - first
            part.batch.sequences = mine
            part.batch.n_sequences = 0
            for i in range(self.batch.n_sequences):
                s = self.batch.sequences + i
                if s.row < end and s.row + s.n_rows > first:
                    mine.row = max(<Py_ssize_t>s.row, first)
                    mine.n_rows = min(<Py_ssize_t>(s.row + s.n_rows), end) - mine.row
                    mine.position = s.position + mine.row - s.row
                    mine.row -= first
                    mine.blocks = s.blocks
                    mine.layer_stride = s.layer_stride
                    mine += 1
                    part.batch.n_sequences += 1
            part.buffers.x = self.buffers.x + first * width
            part.buffers.narrow = self.buffers.narrow + first * width
            part.buffers.wide = self.buffers.wide + first * wide
            part.buffers.scratch = scratch
            scratch += floats(scratch_floats(&one, end - first, max(width, inner)) - 32) // sizeof(float)
            first = end
        return 0

    cdef int own_blocks(self, Py_ssize_t width) except -1:
        """Key/value blocks of this call alone, the same for every layer: what a call without a cache needs."""
        cdef Py_ssize_t i, j
        cdef g2_sequence *s
        cdef float **table
        cdef Py_ssize_t count = 0
        for i in range(self.batch.n_sequences):
            count += blocks_for(self.batch.sequences[i].n_rows)
        table = <float **>self.take(count * sizeof(float *))
        for i in range(self.batch.n_sequences):
            s = self.batch.sequences + i
            s.blocks = table
            for j in range(blocks_for(s.n_rows)):
                table[j] = self.take_floats(block_floats(width))
            table += blocks_for(s.n_rows)
        return 0


cdef double cost(const g2_sequence *s, Py_ssize_t first, Py_ssize_t end, Py_ssize_t width) noexcept nogil:
    """Of rows first .. end - 1, in multiply-adds by width: 12 width for the products, 2 a key and query.

    Those of attention count one and a half times: they are that much slower.
    """
    cdef double rows = end - first, position = s.position + first - s.row
    return rows * (12.0 * width + 1.5 * (2 * position + rows))


cdef Py_ssize_t cut(const Batch *batch, Py_ssize_t first, int parts, Py_ssize_t width) noexcept nogil:
    """Where the next part ends, which begins at row `first`, if `parts` parts are to cost the same."""
    cdef double left = 0
    cdef Py_ssize_t i, start, low, high, middle
    cdef const g2_sequence *s
    for i in range(batch.n_sequences):
        s = batch.sequences + i
        if s.row + s.n_rows > first:
            left += cost(s, max(<Py_ssize_t>s.row, first), s.row + s.n_rows, width)
    left /= parts
    for i in range(batch.n_sequences):
        s = batch.sequences + i
        if s.row + s.n_rows <= first:
            continue
        low = max(<Py_ssize_t>s.row, first)
        high = s.row + s.n_rows
        if cost(s, low, high, width) < left:
            left -= cost(s, low, high, width)
            continue
        start = low
        while high - low > 1:   # the last end that still fits
            middle = (low + high) // 2
            if cost(s, start, middle, width) <= left:
                low = middle
            else:
                high = middle
        return max(low, first + 1)
    return batch.n_rows


def parts_of(list lengths, list positions, Py_ssize_t width, Py_ssize_t inner, int n_threads):
    """Of each part of a batch its first row, and [row, n_rows, position] of its sequences. For tests."""
    cdef Workspace w = Workspace.__new__(Workspace)
    cdef Py_ssize_t i, j
    cdef g2_sequence *s
    w.team.n_threads = n_threads
    w.obtain(batch_nbytes(&w.team, lengths, width, inner, False), None)
    w.lay_out(lengths, width, inner)
    for i in range(w.batch.n_sequences):
        w.batch.sequences[i].position = positions[i]
    w.divide(width, inner)
    parts = []
    for i in range(n_threads if w.batch.parts != NULL else 0):
        sequences = []
        for j in range(w.batch.parts[i].batch.n_sequences):
            s = w.batch.parts[i].batch.sequences + j
            sequences.append([s.row, s.n_rows, s.position])
        parts.append((<Py_ssize_t>(w.batch.parts[i].buffers.x - w.buffers.x) // width, sequences))
    return parts


cdef void keep_last(Batch *batch) noexcept nogil:
    """From here on each sequence is its last row, where that stands: its keys and values are in the blocks."""
    cdef Py_ssize_t i, before
    cdef g2_sequence *s
    for i in range(batch.n_sequences):
        s = batch.sequences + i
        before = s.n_rows - 1
        s.row += before
        s.position += before
        s.n_rows = 1


cdef Py_ssize_t gather_last(Batch *batch, Buffers *b, Py_ssize_t width) noexcept nogil:
    """After keep_last, the rows that are left move to the front: their number."""
    cdef Py_ssize_t i, row
    for i in range(batch.n_sequences):   # forwards: a row moves up or stays
        row = batch.sequences[i].row
        if row != i:
            memcpy(b.x + i * width, b.x + row * width, width * sizeof(float))
            memcpy(b.narrow + i * width, b.narrow + row * width, width * sizeof(float))
            batch.sequences[i].row = i
    batch.n_rows = batch.n_sequences
    return batch.n_rows


cdef Workspace begin_call():
    """A workspace that has the team, if it is free, and no memory yet."""
    cdef Workspace w = Workspace.__new__(Workspace)
    join_team(&w.team)
    return w


cdef Workspace call_alone(list lengths, Py_ssize_t width, Py_ssize_t inner):
    """A call of one layer outside a model: buffers, and key/value blocks of its own."""
    cdef Workspace w = begin_call()
    w.obtain_alone("x", floats(sum(lengths) * width), batch_nbytes(&w.team, lengths, width, inner, True))
    w.lay_out(lengths, width, inner)
    w.own_blocks(width)
    w.divide(width, inner)
    return w
