# SPDX-License-Identifier: Apache-2.0
"""Block: x = x + attn(ln_1(x)), then x = x + mlp(ln_2(x)), in place on the residual stream.

Two ways to share that out, of the same bits.  With few rows all workers share each product's columns: a weight is
read by one of them.  With more, each worker takes rows of its own through the whole block (Workspace.divide):
they stay in its caches.  All meet when everybody's keys and values are there, and at the end; who is early helps.

    b.x       [n, C]                the residual stream, read and written
    b.narrow  [n, C]                ln_1(x), heads, ln_2(x)
    b.wide    [n, max(3 C, inner)]  qkv, then the MLP's inner rows
"""
import numpy as np

from cython.parallel cimport prange
from libc.string cimport memcpy

from gpt2cy.kernels.memory cimport Arena
from gpt2cy.kernels.threads cimport all_here, close_region, meet, note, open_region, workers
from gpt2cy.layers.attention cimport attention_nbytes
from gpt2cy.layers.layernorm cimport layernorm_nbytes
from gpt2cy.layers.linear cimport arena_alone
from gpt2cy.layers.mlp cimport mlp_nbytes
from gpt2cy.layers.tap cimport LN_1, LN_2, RESID, RESID_MID, apart, show
from gpt2cy.workspace cimport Part, Workspace, call_alone

from gpt2cy import _checks
from gpt2cy.config import exact
from gpt2cy.layers.pickling import parts_of, reduced


cdef class Block:
    """One transformer block.

    Parameters
    ----------
    config : GPTConfig
        The sizes and flags of the model it is for.
    layer_idx : int
        Which block it is, from 0.
    seed : int, optional
        Seed of the initial weights, N(0, 0.02). Without one they differ from run to run.

    Attributes
    ----------
    ln_1, ln_2 : LayerNorm
    attn : Attention
    mlp : MLP

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    MemoryError
        If the weights do not fit the memory that is left.

    Examples
    --------
    >>> import gpt2cy
    >>> block = gpt2cy.Block(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> block.attn.n_heads, block([[0.0] * 128] * 5).shape
    (4, (5, 128))
    """

    def __cinit__(self, config, layer_idx=0, *, seed=None, Arena _arena=None):
        config = exact(config)
        cdef Py_ssize_t width = config.n_embd, inner = config.inner
        cdef bint bias = config.bias
        self.config = config
        cdef bint alone = _arena is None
        self.layer_idx = _checks.integer("layer_idx", layer_idx, 0, config.n_layers - 1)
        seed = _checks.seed(seed)
        if alone:
            _arena = arena_alone("config", 2 * layernorm_nbytes(width, bias) + attention_nbytes(width, bias)
                                 + mlp_nbytes(width, inner, bias))
        self.ln_1 = LayerNorm(width, config.layer_norm_eps, bias=bias, _arena=_arena)
        self.attn = Attention(
            width, config.n_heads, bias=bias, scale_attn_weights=config.scale_attn_weights,
            scale_attn_by_inverse_layer_idx=config.scale_attn_by_inverse_layer_idx, layer_idx=layer_idx, _arena=_arena)
        self.ln_2 = LayerNorm(width, config.layer_norm_eps, bias=bias, _arena=_arena)
        self.mlp = MLP(width, inner, config.activation, bias=bias, _arena=_arena)
        if alone:
            self.draw(np.random.default_rng(seed), 0.02)

    cdef int draw(self, rng, float std) except -1:
        self.attn.c_attn.draw(rng, std)
        self.attn.c_proj.draw(rng, std)
        self.mlp.c_fc.draw(rng, std)
        self.mlp.c_proj.draw(rng, std)
        return 0

    cdef void run(self, const Team *team, Batch *batch, Buffers *b, const Tap *tap) noexcept nogil:
        if batch.parts != NULL and not batch.last_only and not apart(tap) and workers(team, 1.0, 0.0) > 1:
            self.run_parts(team, batch, b, tap)
            show(tap, RESID, <int>self.layer_idx, b.x, batch.n_rows, self.ln_1.n_embd)   # all are here
        else:
            self.run_rows(team, batch, b, tap)

    cdef void run_parts(self, const Team *team, Batch *batch, Buffers *b, const Tap *tap) noexcept nogil:
        """Each worker its rows, from ln_1 to the last sum."""
        cdef Region region
        cdef int i, n = team.n_threads
        open_region(&region, n, 0)
        for i in prange(n, schedule="static", chunksize=1, num_threads=n):
            self.run_part(team, batch, b, &region, i, tap)
        close_region(&region)

    cdef void run_part(self, const Team *team, Batch *batch, Buffers *b, Region *region, int worker,
                       const Tap *tap) noexcept nogil:
        """The tap, which changes nothing, sees the part of the thread that called."""
        cdef Team alone = Team(team.table, 1, 0, NULL, worker)
        cdef Part *part = batch.parts + worker
        note(region, worker)
        if all_here(region):
            alone.region = region
            self.run_rows(&alone, &part.batch, &part.buffers, tap if worker == 0 else NULL)
            meet(&alone, part.buffers.scratch)
        elif worker == 0:   # OpenMP has given fewer threads than it was asked for
            self.run_rows(&alone, batch, b, tap)
            note(region, worker)

    cdef void run_rows(self, const Team *team, Batch *batch, Buffers *b, const Tap *tap) noexcept nogil:
        cdef Py_ssize_t n = batch.n_rows, width = self.ln_1.n_embd
        cdef int layer = <int>self.layer_idx
        self.ln_1.run(team, b.x, n, b.narrow)
        show(tap, LN_1, layer, b.narrow, n, width)
        self.attn.run(team, batch, b, True, self.layer_idx, tap)
        n = batch.n_rows   # fewer, where only the last rows are wanted
        show(tap, RESID_MID, layer, b.x, n, width)
        self.ln_2.run(team, b.x, n, b.narrow)
        show(tap, LN_2, layer, b.narrow, n, width)
        self.mlp.run(team, b, n, True, layer, tap)
        show(tap, RESID, layer, b.x, n, width)

    def __call__(self, x):
        """x + attn(ln_1(x)), and to that its mlp(ln_2(.)).

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
        >>> block = gpt2cy.Block(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> block([[0.0] * 128] * 3).shape
        (3, 128)
        """
        cdef const float[:, ::1] flat
        cdef float[:, ::1] view
        cdef Workspace w
        if self.mlp is None:
            raise RuntimeError("this block was never built")
        cdef Py_ssize_t width = self.ln_1.n_embd, inner = self.mlp.c_fc.out_features
        x, lengths = _checks.sequences("x", x, width)
        flat = x.reshape(-1, width)
        cdef const float *data = &flat[0, 0]
        cdef float *result
        self.ln_1.arena.enter_read()
        try:
            w = call_alone(lengths, width, inner)
            out = np.empty(x.shape, np.float32)
            view = out.reshape(-1, width)
            result = &view[0, 0]
            with nogil:
                memcpy(w.buffers.x, data, flat.shape[0] * width * sizeof(float))
                self.run(&w.team, &w.batch, &w.buffers, NULL)
                memcpy(result, w.buffers.x, flat.shape[0] * width * sizeof(float))
        finally:
            self.ln_1.arena.leave_read()
        return out

    def __reduce__(self):
        return reduced(self, (self.config, self.layer_idx), {}, {
            name: getattr(self, name).__reduce__()[2] for name in ("ln_1", "attn", "ln_2", "mlp")})

    def __setstate__(self, state):
        names = "ln_1", "attn", "ln_2", "mlp"
        for name, value in zip(names, parts_of(self, state, *names)):
            getattr(self, name).__setstate__(value)

    def __sizeof__(self):
        parts = self.ln_1, self.attn, self.ln_2, self.mlp
        return object.__sizeof__(self) + sum(part.__sizeof__() for part in parts)

    def __repr__(self):
        return f"Block({self.layer_idx}: {self.attn!r}, {self.mlp!r})"
