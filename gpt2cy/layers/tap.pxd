# SPDX-License-Identifier: Apache-2.0
"""A tap sees activations on their way: NULL in plain use, so one test a named point is all it costs.

`visit` may read or change data[n_rows, width] in place; what it leaves is what the model goes on with.

Steps that are fused run apart, so that every point exists.  For a tap that only wants to know when, `fused` keeps
them together: PRE, ATTN and MLP_OUT are then not visited, and data is not to be changed.
"""

cdef enum Point:
    EMBED       # token plus position                        [n, C]
    LN_1        # first norm of a block                      [n, C]
    QKV         # queries, keys, values before the cache     [n, 3 C]
    HEADS       # heads' outputs side by side                [n, C]
    ATTN        # what attention adds to the residual        [n, C]
    RESID_MID   # residual after attention                   [n, C]
    LN_2        # second norm                                [n, C]
    PRE         # MLP, before the activation                 [n, inner]
    HIDDEN      # MLP, after the activation                  [n, inner]
    MLP_OUT     # what the MLP adds to the residual          [n, C]
    RESID       # residual after the block                   [n, C]
    LN_F        # final norm                                 [n, C]


ctypedef struct Tap:
    void (*visit)(void *who, int point, int layer, float *data, Py_ssize_t n_rows,
                  Py_ssize_t width) noexcept nogil
    void *who
    bint fused   # whether fused steps stay together


cdef inline void show(const Tap *tap, int point, int layer, float *data, Py_ssize_t n_rows,
                      Py_ssize_t width) noexcept nogil:
    if tap != NULL:
        tap.visit(tap.who, point, layer, data, n_rows, width)


cdef inline bint apart(const Tap *tap) noexcept nogil:
    """Whether fused steps run one by one."""
    return tap != NULL and not tap.fused
