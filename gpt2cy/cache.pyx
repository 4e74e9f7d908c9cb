# SPDX-License-Identifier: Apache-2.0
"""KVCache: the keys and values of what a model has read, so that it need not read it again.

    slot     one sequence: its length and a table of blocks
    block    64 positions: how many caches hold it, the positions' ids, then
             [layer][ keys [head][head_dim][64] | values [head][64][head_dim] ];
             copies of a cache share it until one of them writes to it

Blocks come when they are needed and go when the last cache that holds them lets go.  A length advances only
when a call has ended, so an error in between leaves the cache as it was.
"""
import numpy as np

from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

from gpt2cy.kernels.memory cimport allocate, deallocate
from gpt2cy.kernels.table cimport G2_BLOCK, G2_PANEL, g2_sequence

from gpt2cy import _checks
from gpt2cy.config import GPTConfig, exact

cdef extern from "guard.h" nogil:
    int g2_write_enter(int *state)
    void g2_write_leave(int *state)
    int g2_count_up(int *count)
    int g2_count_down(int *count)
    int g2_count(const int *count)

cdef enum:
    IDS = 2 * G2_BLOCK    # floats before a block's data, which hold its ids
    HEADER = 16 + IDS     # the same, and its count before them
    MOST_SLOTS = 1 << 20


cdef Py_ssize_t blocks_for(Py_ssize_t length) noexcept nogil:
    return (length + G2_BLOCK - 1) // G2_BLOCK


cdef int *count_of(float *block) noexcept nogil:
    return <int *>(block - HEADER)


cdef int64_t *ids_of(float *block) noexcept nogil:
    return <int64_t *>(block - IDS)


cdef void release(float *block) noexcept nogil:
    """One holder less; the last one frees."""
    if block != NULL and g2_count_down(count_of(block)) == 0:
        deallocate(block - HEADER)


cdef class KVCache:
    """Keys and values of past tokens, one slot a sequence.

    Parameters
    ----------
    config : GPTConfig
        Of the model that will use it; `GPT.new_cache` fills it in.
    batch_size : int
        Number of slots, up to 2**20: rows of the batches it will be used with.
    capacity : int, optional
        Most positions of a slot; the model's `block_size` by default.

    Attributes
    ----------
    batch_size, capacity : int
    lengths : list of int
        Positions held by each slot.
    tokens : list of int64 ndarray
        The ids that each slot was computed from.
    nbytes : int
        Bytes of the blocks held now, in steps of 64 positions; a block shared with a copy counts in both.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import gpt2cy
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> cache = model.new_cache()
    >>> logits = model.next_logits([5, 6, 7], cache=cache)
    >>> logits = model.next_logits([8], cache=cache)
    >>> cache.lengths
    [4]
    """

    def __cinit__(self, config, batch_size=1, capacity=None):
        config = exact(config)
        slots = _checks.integer("batch_size", batch_size, 1, MOST_SLOTS)
        most = config.block_size
        if capacity is not None:
            most = _checks.integer("capacity", capacity, 1, config.block_size)
        self.n_layers = config.n_layers
        self.n_heads = config.n_heads
        self.n_embd = config.n_embd
        self.slots = <Slot *>allocate(<size_t>slots * sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError(f"cannot allocate a cache of {slots:,} slots: reduce batch_size")
        memset(self.slots, 0, <size_t>slots * sizeof(Slot))
        self.batch_size = slots
        self.capacity = most

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.slots != NULL:
            for i in range(self.batch_size):
                self.cut(i, 0)
                deallocate(self.slots[i].table)
            deallocate(self.slots)

    cdef Py_ssize_t layer_floats(self) noexcept:
        return 2 * self.n_embd * G2_BLOCK

    cdef size_t block_nbytes(self) noexcept:
        """Count, ids, all layers, and room for a panel that starts in the last head."""
        return (HEADER + <size_t>self.n_layers * self.layer_floats() + G2_PANEL) * sizeof(float)

    cdef float *new_block(self) except NULL:
        cdef float *block = <float *>allocate(self.block_nbytes())
        if block == NULL:
            raise MemoryError(f"cannot allocate {self.block_nbytes():,} bytes for 64 positions of the cache")
        block += HEADER
        count_of(block)[0] = 1
        return block

    cdef void cut(self, Py_ssize_t slot, Py_ssize_t length) noexcept:
        """Keep the first `length` positions."""
        cdef Slot *s = self.slots + slot
        s.length = length
        while s.n_blocks > blocks_for(length):
            s.n_blocks -= 1
            release(s.table[s.n_blocks])

    cdef int enter(self, str name="cache") except -1:
        if not g2_write_enter(&self.busy):
            raise RuntimeError(f"{name}: in use by another call")
        return 0

    cdef void leave(self) noexcept:
        g2_write_leave(&self.busy)

    cdef int reserve(self, Py_ssize_t slot, Py_ssize_t n_new) except -1:
        """Blocks of its own for the next n_new positions of a slot."""
        cdef Slot *s = self.slots + slot
        cdef Py_ssize_t first = s.length // G2_BLOCK, needed = blocks_for(s.length + n_new)
        cdef float *fresh
        cdef void *table
        if needed > s.n_blocks:
            table = allocate(needed * sizeof(float *))
            if table == NULL:
                raise MemoryError(f"cannot allocate a table of {needed:,} blocks for the cache")
            if s.n_blocks:
                memcpy(table, s.table, s.n_blocks * sizeof(float *))
            deallocate(s.table)
            s.table = <float **>table
        if first < s.n_blocks and g2_count(count_of(s.table[first])) > 1:   # only the first can be half full
            fresh = self.new_block()
            memcpy(fresh - IDS, s.table[first] - IDS,
                   (IDS + <size_t>self.n_layers * self.layer_floats()) * sizeof(float))
            release(s.table[first])
            s.table[first] = fresh
        while s.n_blocks < needed:
            s.table[s.n_blocks] = self.new_block()
            s.n_blocks += 1
        return 0

    cdef void describe(self, Py_ssize_t slot, g2_sequence *s) noexcept:
        s.position = self.slots[slot].length
        s.blocks = self.slots[slot].table
        s.layer_stride = self.layer_floats()

    cdef void advance(self, Py_ssize_t slot, Py_ssize_t n_new, const int64_t *ids) noexcept:
        """The positions that reserve made room for are filled, with these ids."""
        cdef Slot *s = self.slots + slot
        cdef Py_ssize_t i
        for i in range(s.length, s.length + n_new):
            ids_of(s.table[i // G2_BLOCK])[i % G2_BLOCK] = ids[i - s.length]
        s.length += n_new

    cdef held(self, Py_ssize_t slot):
        """The ids of a slot, as an int64 array."""
        cdef Slot *s = self.slots + slot
        cdef Py_ssize_t i
        array = np.empty(s.length, np.int64)
        cdef int64_t[::1] view = array
        for i in range(s.length):
            view[i] = ids_of(s.table[i // G2_BLOCK])[i % G2_BLOCK]
        return array

    @property
    def lengths(self):
        return [self.slots[i].length for i in range(self.batch_size)]

    @property
    def tokens(self):
        self.enter()
        try:
            return [self.held(i) for i in range(self.batch_size)]
        finally:
            self.leave()

    @property
    def nbytes(self):
        cdef Py_ssize_t i, count = 0
        for i in range(self.batch_size):
            count += self.slots[i].n_blocks
        return count * self.n_layers * self.layer_floats() * sizeof(float)

    def truncate(self, n):
        """Keep only the first n positions of every slot; shorter slots stay as they are.

        Blocks that hold none of what is left go back to the system, unless a copy of the cache holds them too.

        Parameters
        ----------
        n : int, or list or tuple of one int a slot
            From 0 to the slot's length; a single int, to the longest slot's.

        Raises
        ------
        TypeError, ValueError
            If n is no integer, out of range, or not one a slot; nothing has changed then.
        RuntimeError
            If a call is using the cache.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> cache = model.new_cache(batch_size=2)
        >>> logits = model.next_logits([[1, 2, 3], [4, 5, 6]], cache)
        >>> cache.truncate([1, 3])
        >>> cache.lengths
        [1, 3]
        """
        cdef Py_ssize_t i
        one = not isinstance(n, (list, tuple))
        wanted = [_checks.integer("n", n, 0)] if one else [
            _checks.integer(f"n[{i}]", item, 0) for i, item in enumerate(list(n))]
        if not one and len(wanted) != self.batch_size:
            raise ValueError(f"n: expected {self.batch_size} lengths, one a slot, got {len(wanted)}")
        self.enter()   # nobody else's code runs from here on
        try:
            lengths = self.lengths
            for i in range(1 if one else self.batch_size):
                most = max(lengths) if one else lengths[i]
                if wanted[i] > most:
                    label = "n" if one else f"n[{i}]"
                    raise ValueError(f"{label}: expected an integer from 0 to {most}, got {wanted[i]}")
            for i in range(self.batch_size):
                self.cut(i, min(wanted[0], lengths[i]) if one else wanted[i])
        finally:
            self.leave()

    def reset(self):
        """Forget everything, and give the memory back: the same as ``truncate(0)``.

        Raises
        ------
        RuntimeError
            If a call is using the cache.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> cache = model.new_cache()
        >>> logits = model.next_logits([1, 2, 3], cache)
        >>> cache.reset()
        >>> cache.lengths, cache.nbytes
        ([0], 0)
        """
        self.truncate(0)

    cdef sizes(self):
        """A config of the same layers, heads, width and capacity."""
        return GPTConfig(1, self.n_embd, self.n_heads, self.n_layers, self.capacity)

    cdef size_t wanted(self, Py_ssize_t slot, Py_ssize_t n_new) noexcept:
        """Bytes that reserve would allocate."""
        cdef Slot *s = self.slots + slot
        cdef Py_ssize_t first = s.length // G2_BLOCK, blocks = blocks_for(s.length + n_new) - s.n_blocks
        if blocks < 0:
            blocks = 0
        if first < s.n_blocks and g2_count(count_of(s.table[first])) > 1:
            blocks += 1
        return blocks * self.block_nbytes()

    def copy(self):
        """A cache that goes on from here on its own; blocks are shared until one of the two writes to them.

        Returns
        -------
        KVCache
            Of the same lengths and capacity; nothing done to one of the two shows in the other.

        Raises
        ------
        RuntimeError
            If a call is using the cache.
        MemoryError
            If not even the tables of blocks can be allocated.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> cache = model.new_cache()
        >>> logits = model.next_logits([1, 2, 3], cache)
        >>> branch = cache.copy()
        >>> logits = model.next_logits([4], branch)
        >>> cache.lengths, branch.lengths
        ([3], [4])
        """
        cdef KVCache other = KVCache(self.sizes(), self.batch_size, self.capacity)
        cdef Slot *mine
        cdef Slot *copy
        cdef Py_ssize_t i, j, n
        self.enter()
        try:
            for i in range(self.batch_size):
                mine, copy = self.slots + i, other.slots + i
                n = blocks_for(mine.length)   # an error may have left more, which nobody has written
                if n == 0:
                    continue
                copy.table = <float **>allocate(n * sizeof(float *))
                if copy.table == NULL:
                    raise MemoryError(f"cannot allocate a table of {n:,} blocks for the cache")
                copy.length = mine.length
                copy.n_blocks = n
                for j in range(n):
                    g2_count_up(count_of(mine.table[j]))
                    copy.table[j] = mine.table[j]
        finally:
            self.leave()
        return other

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def __reduce__(self):
        """Of each slot the ids, and the blocks as one array [blocks, floats of a block]."""
        cdef Py_ssize_t i, j, size = self.n_layers * self.layer_floats()
        cdef float[:, ::1] view
        state = []
        self.enter()
        try:
            for i in range(self.batch_size):
                array = np.empty((blocks_for(self.slots[i].length), size), np.float32)
                view = array
                for j in range(view.shape[0]):
                    memcpy(&view[j, 0], self.slots[i].table[j], size * sizeof(float))
                state.append((self.held(i), array))
        finally:
            self.leave()
        return type(self), (self.sizes(), self.batch_size, self.capacity), state

    def __setstate__(self, state):
        cdef Py_ssize_t i, j, length, size = self.n_layers * self.layer_floats()
        cdef const float[:, ::1] view
        cdef const int64_t[::1] ids
        if not isinstance(state, list):
            raise TypeError(f"state: expected a list of {self.batch_size} slots, got {type(state).__name__}")
        slots = []
        for i, slot in enumerate(list(state)):
            if not isinstance(slot, (tuple, list)) or len(slot) != 2:
                raise TypeError(f"state[{i}]: expected a pair of ids and blocks, got {type(slot).__name__}")
            held = _checks.past_ids(f"state[{i}]", slot[0])
            length = _checks.integer(f"state[{i}]: number of ids", len(held), 0, self.capacity)
            array = _checks.weight(f"state[{i}]", slot[1], (blocks_for(length), size))
            slots.append((held, np.array(array, order="C")))
        if len(slots) != self.batch_size:
            raise ValueError(f"state: expected {self.batch_size} slots, got {len(slots)}")
        self.enter()
        try:
            for i in range(self.batch_size):
                ids, view = slots[i]
                self.cut(i, 0)
                if ids.shape[0] == 0:
                    continue
                self.reserve(i, ids.shape[0])
                for j in range(view.shape[0]):
                    memcpy(self.slots[i].table[j], &view[j, 0], size * sizeof(float))
                self.advance(i, ids.shape[0], &ids[0])
        finally:
            self.leave()

    def __sizeof__(self):
        return object.__sizeof__(self) + self.nbytes

    def __repr__(self):
        return (f"KVCache(batch_size={self.batch_size}, capacity={self.capacity}, lengths={self.lengths}, "
                f"nbytes={self.nbytes:,})")
