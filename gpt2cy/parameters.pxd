# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.memory cimport Arena


cdef class Parameters:
    cdef dict shapes     # by name, in model order
    cdef dict places     # name -> (layer, attribute)
    cdef bint tied
    cdef Arena arena
    cdef read(self, str name)
    cdef dict checked(self, mapping)
    cdef int load(self, mapping) except -1
