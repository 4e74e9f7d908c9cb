# SPDX-License-Identifier: Apache-2.0
cdef class Arena:
    cdef readonly size_t nbytes
    cdef size_t used
    cdef char *base
    cdef int guard
    cdef void *take(self, size_t nbytes) except NULL
    cdef float *take_floats(self, Py_ssize_t count) except NULL
    cdef int enter_read(self) except -1
    cdef void leave_read(self) noexcept
    cdef int enter_write(self) except -1
    cdef void leave_write(self) noexcept

cdef class Spare:
    cdef void *block
    cdef bint drop(self) noexcept
    cdef void keep(self, void *block, size_t nbytes) noexcept
    cdef void *take(self, size_t least, size_t most, size_t *nbytes) noexcept

cdef class Result:
    cdef Spare home
    cdef void *block
    cdef size_t nbytes
    cdef array(self, tuple shape)

cdef Result spare_result(Spare home, size_t nbytes)
cdef Result new_result(Spare home, size_t nbytes)
cdef void *allocate(size_t nbytes) noexcept nogil
cdef void deallocate(void *p) noexcept nogil
cdef size_t rounded(size_t nbytes) noexcept nogil
