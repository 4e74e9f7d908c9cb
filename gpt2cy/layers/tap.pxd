# SPDX-License-Identifier: Apache-2.0
"""A tap sees activations on their way: NULL in plain use, so one test a named point is all it costs.

`visit` may read or change data[n_rows, width] in place; what it leaves is what the model goes on with.

Steps that are fused run apart, so that every point exists.  For a tap that only wants to know when, `fused` keeps
them together: PRE, ATTN and MLP_OUT are then not visited, and data is not to be changed.
"""
from gpt2cy.kernels.threads cimport Team
from gpt2cy.workspace cimport Batch, Buffers

cdef enum Point:
    EMBED       # token plus position                        [n, C]
    LN_1        # first norm of a block                      [n, C]
    QKV         # queries, keys, values before the cache     [n, 3 C]
    HEADS       # heads' outputs side by side; qkv stand     [n, C]
    ATTN        # what attention adds to the residual        [n, C]
    RESID_MID   # residual after attention                   [n, C]
    LN_2        # second norm                                [n, C]
    PRE         # MLP, before the activation                 [n, inner]
    HIDDEN      # MLP, after the activation                  [n, inner]
    MLP_OUT     # what the MLP adds to the residual          [n, C]
    RESID       # residual after the block                   [n, C]
    LN_F        # final norm                                 [n, C]
    LOGITS      # of one sequence, tap.sequence              [n, V]
    POINTS      # how many


ctypedef struct Tap:
    void (*visit)(void *who, int point, int layer, float *data, Py_ssize_t n_rows,
                  Py_ssize_t width) noexcept nogil
    void *who
    const unsigned char *wanted   # [layers, POINTS]: where visit is called; EMBED, LN_F and LOGITS have layer 0
    bint fused                    # whether fused steps stay together
    bint over                     # nothing more is wanted of this pass
    const Team *team              # set by the pass: who computes,
    const Batch *batch            # its sequences,
    const Buffers *buffers        # where its rows are,
    Py_ssize_t sequence           # and whose logits are shown


cdef class Observer:
    cdef Tap tap
    cdef bint logits              # whether it wants them made
    cdef object error             # raised when the pass has left compiled code
    cdef size_t prepare(self, list lengths, list past)


cdef inline void show(const Tap *tap, int point, int layer, float *data, Py_ssize_t n_rows,
                      Py_ssize_t width) noexcept nogil:
    if tap != NULL and tap.wanted[layer * POINTS + point] and not tap.over:
        tap.visit(tap.who, point, layer, data, n_rows, width)


cdef inline bint apart(const Tap *tap) noexcept nogil:
    """Whether fused steps run one by one."""
    return tap != NULL and not tap.fused
