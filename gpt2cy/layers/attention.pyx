# SPDX-License-Identifier: Apache-2.0
"""Attention: causal self-attention with all heads in one projection.

    x [n, C]  ->  c_attn [C, 3 C]: q k v side by side
              ->  each head: softmax(scale q k^T) v over the positions up to its own
              ->  heads side by side [n, C]  ->  c_proj [C, C]

Keys and values go to the sequence's blocks first: the cache's where there is one, else the call's own.
"""
import numpy as np

from libc.string cimport memcpy

from gpt2cy.kernels cimport attention as kernel
from gpt2cy.kernels cimport rows
from gpt2cy.kernels.memory cimport Arena
from gpt2cy.kernels.table cimport G2_LINEAR, g2_nearest
from gpt2cy.kernels.threads cimport meet
from gpt2cy.layers.linear cimport arena_alone, linear_nbytes
from gpt2cy.layers.tap cimport ATTN, HEADS, QKV, apart, show
from gpt2cy.workspace cimport Workspace, call_alone, gather_last, keep_last

from gpt2cy import _checks
from gpt2cy.layers.pickling import parts_of, reduced


cdef size_t attention_nbytes(Py_ssize_t n_embd, bint bias) noexcept nogil:
    return linear_nbytes(n_embd, 3 * n_embd, bias) + linear_nbytes(n_embd, n_embd, bias)


cdef class Attention:
    """Causal multi-head self-attention.

    Parameters
    ----------
    n_embd : int
        Width C of a row.
    n_heads : int
        Heads H; must divide C into heads of at most 256.
    bias : bool
        Whether the two projections have a bias.
    scale_attn_weights : bool
        Whether scores are divided by the root of the head's width.
    scale_attn_by_inverse_layer_idx : bool
        Whether scores are divided by `layer_idx` + 1 too.
    layer_idx : int
        Which block this is in, from 0.
    seed : int, optional
        Seed of the initial weights, N(0, 0.02). Without one they differ from run to run.

    Attributes
    ----------
    c_attn, c_proj : Linear
        [C, 3 C] and [C, C].
    n_heads, head_dim : int
    scale : float
        What scores are multiplied by.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    MemoryError
        If the weights do not fit the memory that is left.

    Examples
    --------
    >>> import gpt2cy
    >>> attention = gpt2cy.Attention(8, n_heads=2, seed=0)
    >>> attention.head_dim, attention([[[0.0] * 8] * 3]).shape
    (4, (1, 3, 8))
    """

    def __cinit__(self, n_embd, n_heads, *, bias=True, scale_attn_weights=True,
                  scale_attn_by_inverse_layer_idx=False, layer_idx=0, seed=None, Arena _arena=None):
        width = _checks.integer("n_embd", n_embd)
        self.head_dim = _checks.heads(width, _checks.integer("n_heads", n_heads))
        self.n_heads = width // self.head_dim
        cdef double divisor = self.head_dim if _checks.flag("scale_attn_weights", scale_attn_weights) else 1.0
        layer_idx = _checks.integer("layer_idx", layer_idx, 0, _checks.MAX_SIDE)
        if _checks.flag("scale_attn_by_inverse_layer_idx", scale_attn_by_inverse_layer_idx):
            divisor *= (layer_idx + 1.0) * (layer_idx + 1.0)
        self.scale = g2_nearest(divisor, True)
        self.scaling = {
            "scale_attn_weights": scale_attn_weights,
            "scale_attn_by_inverse_layer_idx": scale_attn_by_inverse_layer_idx,
            "layer_idx": layer_idx,
        }
        cdef bint has_bias = _checks.flag("bias", bias)
        cdef bint alone = _arena is None
        seed = _checks.seed(seed)
        if alone:
            _checks.matrix_size("n_embd", width, 4 * width)
            _arena = arena_alone("n_embd", attention_nbytes(width, has_bias))
        self.c_attn = Linear(width, 3 * width, has_bias, _arena=_arena)
        self.c_proj = Linear(width, width, has_bias, _arena=_arena)
        if alone:
            rng = np.random.default_rng(seed)
            self.c_attn.draw(rng, 0.02)
            self.c_proj.draw(rng, 0.02)

    cdef void run(self, const Team *team, Batch *batch, Buffers *b, bint residual, Py_ssize_t layer,
                  const Tap *tap) noexcept nogil:
        """x (+)= c_proj(heads(c_attn(narrow))); appends to the blocks; wide and narrow are overwritten."""
        cdef Py_ssize_t n = batch.n_rows, width = self.c_proj.in_features
        cdef bint together = (team.region == NULL and not (batch.last_only and n > batch.n_sequences)
                              and kernel.may_append(team, batch.sequences, batch.n_sequences, self.head_dim))
        self.c_attn.run(team, b.narrow, n, G2_LINEAR, NULL, b.wide, NULL, b.scratch)
        show(tap, QKV, <int>layer, b.wide, n, 3 * width)
        if not together:
            kernel.append(team, batch.sequences, batch.n_sequences, b.wide, self.n_heads, self.head_dim, layer)
        if team.region != NULL:   # others have put theirs in
            meet(team, b.scratch)
        if batch.last_only and n > batch.n_sequences:
            keep_last(batch)
        kernel.attend(team, batch.sequences, batch.n_sequences, b.wide, self.n_heads, self.head_dim, layer, self.scale,
                      b.narrow, b.scratch, together)
        if batch.last_only and n > batch.n_sequences:
            n = gather_last(batch, b, width)
        show(tap, HEADS, <int>layer, b.narrow, n, width)
        if not apart(tap):
            self.c_proj.run(team, b.narrow, n, G2_LINEAR, b.x if residual else NULL, b.x, NULL, b.scratch)
            return
        self.c_proj.run(team, b.narrow, n, G2_LINEAR, NULL, b.wide, NULL, b.scratch)
        show(tap, ATTN, <int>layer, b.wide, n, width)
        rows.add(team, b.wide, b.x, n * width, residual)

    def __call__(self, x):
        """Attend within each sequence.

        Parameters
        ----------
        x : array_like, [T, C] or [B, T, C]
            Any real dtype; computed in float32, NaN and Inf included.
            A row sees itself and the rows before it.

        Returns
        -------
        ndarray of float32, x.shape

        Raises
        ------
        TypeError, ValueError
            If x is not of real numbers, of another shape, or empty.
        MemoryError
            If result and workspace do not fit the memory that is left.
        RuntimeError
            If weights are being assigned by another thread.

        Examples
        --------
        >>> import gpt2cy
        >>> gpt2cy.Attention(4, 2, seed=0)([[0.0] * 4] * 3).shape
        (3, 4)
        """
        cdef const float[:, ::1] flat
        cdef float[:, ::1] view
        cdef Workspace w
        if self.c_proj is None:
            raise RuntimeError("this layer was never built")
        cdef Py_ssize_t width = self.c_proj.in_features
        x, lengths = _checks.sequences("x", x, width)
        flat = x.reshape(-1, width)
        cdef const float *data = &flat[0, 0]
        cdef float *result
        self.c_attn.arena.enter_read()
        try:
            w = call_alone(lengths, width, 0)
            out = np.empty(x.shape, np.float32)
            view = out.reshape(-1, width)
            result = &view[0, 0]
            with nogil:
                memcpy(w.buffers.narrow, data, flat.shape[0] * width * sizeof(float))
                self.run(&w.team, &w.batch, &w.buffers, False, 0, NULL)
                memcpy(result, w.buffers.x, flat.shape[0] * width * sizeof(float))
        finally:
            self.c_attn.arena.leave_read()
        return out

    def __reduce__(self):
        arguments = self.c_proj.in_features, self.n_heads
        return reduced(self, arguments, {"bias": self.c_attn.bias_data != NULL, **self.scaling}, {
            "c_attn": self.c_attn.__reduce__()[2], "c_proj": self.c_proj.__reduce__()[2]})

    def __setstate__(self, state):
        for part, value in zip((self.c_attn, self.c_proj), parts_of(self, state, "c_attn", "c_proj")):
            part.__setstate__(value)

    def __sizeof__(self):
        return object.__sizeof__(self) + self.c_attn.__sizeof__() + self.c_proj.__sizeof__()

    def __repr__(self):
        return f"Attention({self.c_proj.in_features}, n_heads={self.n_heads})"
