# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.table cimport g2_table

cdef const g2_table *current() noexcept nogil
cdef const g2_table *find(str isa) except NULL
