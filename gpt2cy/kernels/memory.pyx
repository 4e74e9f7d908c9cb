# SPDX-License-Identifier: Apache-2.0
"""Aligned memory: one arena holds the weights of a layer or of a whole model.

An arena also knows who uses it: calls that read its weights, or one assignment that writes them.
Memory handed out is never given back before the arena itself goes, so a pointer into it stays good.

What a call needs besides, and a large result, come from a spare block where there is one: new pages have to be
cleared by the system, and on a virtual machine perhaps to be found by its host, which can take longer than the
arithmetic that fills them.
"""
import os

import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport SIZE_MAX


cdef extern from "host.h" nogil:
    void *g2_allocate(size_t nbytes, int huge)
    void g2_free(void *p)

cdef extern from "guard.h" nogil:
    int g2_read_enter(int *state)
    void g2_read_leave(int *state)
    int g2_write_enter(int *state)
    void g2_write_leave(int *state)
    void *g2_swap(void **pointer, void *with_this)


cdef int huge_pages = os.environ.get("GPT2CY_HUGE_PAGES") != "0"   # perf/memory.py shows what they give
cdef long fail_after = -1   # allocations that still succeed; -1: all


def fail_allocations(long after):
    """Let `after` more allocations succeed and all later ones fail; -1 ends it. For tests."""
    global fail_after
    fail_after = after


cdef void *allocate(size_t nbytes) noexcept nogil:
    """64-byte aligned memory, or NULL."""
    global fail_after
    if fail_after >= 0:
        if fail_after == 0:
            return NULL
        fail_after -= 1
    return g2_allocate(nbytes, huge_pages)


cdef void deallocate(void *p) noexcept nogil:
    g2_free(p)


cdef size_t rounded(size_t nbytes) noexcept nogil:
    """nbytes, up to the next multiple of a cache line."""
    return (nbytes + 63) & ~<size_t>63


cdef class Arena:
    """One allocation, handed out from the front in cache lines."""

    def __cinit__(self, size_t nbytes):
        self.base = <char *>allocate(nbytes or 64)
        if self.base == NULL:
            raise MemoryError(f"cannot allocate {nbytes:,} bytes")
        self.nbytes = nbytes

    def __dealloc__(self):
        deallocate(self.base)

    cdef void *take(self, size_t nbytes) except NULL:
        cdef char *p = self.base + self.used
        if nbytes > SIZE_MAX - 63 or rounded(nbytes) > self.nbytes - self.used:
            raise MemoryError(f"arena of {self.nbytes:,} bytes: {nbytes:,} more do not fit")
        self.used += rounded(nbytes)
        return p

    cdef float *take_floats(self, Py_ssize_t count) except NULL:
        return <float *>self.take(<size_t>count * sizeof(float))

    cdef int enter_read(self) except -1:
        if not g2_read_enter(&self.guard):
            raise RuntimeError("weights are being assigned by another thread")
        return 0

    cdef void leave_read(self) noexcept:
        g2_read_leave(&self.guard)

    cdef int enter_write(self) except -1:
        if not g2_write_enter(&self.guard):
            raise RuntimeError("weights cannot be assigned while a call is using them")
        return 0

    cdef void leave_write(self) noexcept:
        g2_write_leave(&self.guard)


cdef class Spare:
    """A block that nobody uses, kept for whoever asks next for as much."""

    def __dealloc__(self):
        deallocate(self.block)

    cdef bint drop(self) noexcept:
        """Give it back to the system; whether there was one."""
        cdef void *block = g2_swap(&self.block, NULL)
        deallocate(block)
        return block != NULL

    cdef void keep(self, void *block, size_t nbytes) noexcept:
        """In place of the one that was here; its first word says how large it is."""
        (<size_t *>block)[0] = nbytes
        deallocate(g2_swap(&self.block, block))

    cdef void *take(self, size_t least, size_t most, size_t *nbytes) noexcept:
        """The block if it has `least` to `most` bytes, or NULL; one that does not goes back to the system."""
        cdef void *block = g2_swap(&self.block, NULL)
        if block == NULL:
            return NULL
        nbytes[0] = (<size_t *>block)[0]
        if least <= nbytes[0] <= most:
            return block
        deallocate(block)
        return NULL


@cython.no_gc   # `home` is there as long as this is, and refers to nothing
cdef class Result:
    """The memory of an array; when the last array on it goes, it becomes the spare block of its home."""

    def __dealloc__(self):
        if self.block != NULL:
            self.home.keep(self.block, self.nbytes)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.block, self.nbytes, 0, flags)

    cdef array(self, tuple shape):
        """Of float32; its shape takes no more than the memory."""
        return np.ndarray(shape, np.float32, self)


cdef Result spare_result(Spare home, size_t nbytes):
    """Memory for a result of so many bytes that is there already, or None."""
    cdef Result result = Result.__new__(Result)
    result.home = home
    result.block = home.take(nbytes, nbytes + nbytes // 4, &result.nbytes)
    return result if result.block != NULL else None


cdef Result new_result(Spare home, size_t nbytes):
    """Memory for a result of so many bytes, or None where it cannot be allocated."""
    cdef Result result = Result.__new__(Result)
    result.home = home
    result.block = allocate(nbytes)
    result.nbytes = nbytes
    return result if result.block != NULL else None
