# SPDX-License-Identifier: Apache-2.0
"""Observer: the tap of one pass; EDITS: what is in force where a pass begins.

The model knows no more than this of those who look inside it (gpt2cy/inspection).
"""
from contextvars import ContextVar

# Outer to inner, of this thread or asyncio task.  A pass asks gpt2cy.inspection what they mean, if there are any.
EDITS = ContextVar("gpt2cy.edits", default=())


cdef class Observer:
    """Whoever sees the activations of one pass; made anew for each."""

    def __cinit__(self):
        self.logits = True

    cdef size_t prepare(self, list lengths, list past):
        """Told the rows of each sequence, and how many positions its cache holds: bytes that it will allocate."""
        return 0
