# SPDX-License-Identifier: Apache-2.0
"""MLP: c_proj(activation(c_fc(x))).

    x [n, C]  ->  c_fc [C, inner]  ->  activation  ->  c_proj [inner, C]  ->  [n, C]

The activation runs in the first product's epilogue and the residual in the second's, unless a tap wants to
see them apart: the bits are the same.
"""
import numpy as np

from gpt2cy.kernels cimport rows as kernel
from gpt2cy.kernels.gemm cimport matmul_scratch
from gpt2cy.kernels.memory cimport Arena
from gpt2cy.kernels.table cimport G2_GELU_ERF, G2_GELU_TANH, G2_LINEAR, G2_RELU
from gpt2cy.layers.linear cimport arena_alone, linear_nbytes
from gpt2cy.layers.tap cimport HIDDEN, MLP_OUT, PRE, apart, show
from gpt2cy.workspace cimport Workspace, begin_call

from gpt2cy import _checks
from gpt2cy.config import ACTIVATIONS
from gpt2cy.layers.pickling import parts_of, reduced

KINDS = {"gelu_tanh": G2_GELU_TANH, "gelu_erf": G2_GELU_ERF, "relu": G2_RELU}


cdef size_t mlp_nbytes(Py_ssize_t n_embd, Py_ssize_t n_inner, bint bias) noexcept nogil:
    return linear_nbytes(n_embd, n_inner, bias) + linear_nbytes(n_inner, n_embd, bias)


cdef class MLP:
    """Two linear layers with an activation between them.

    Parameters
    ----------
    n_embd : int
        Width C of a row.
    n_inner : int, optional
        Width between the two layers; 4 C by default.
    activation : {"gelu_tanh", "gelu_erf", "relu"}
        What stands between them.
    bias : bool
        Whether the linear layers have a bias.
    seed : int, optional
        Seed of the initial weights, N(0, 0.02). Without one they differ from run to run.

    Attributes
    ----------
    c_fc, c_proj : Linear
        [C, inner] and [inner, C].
    activation : str

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    MemoryError
        If the weights do not fit the memory that is left.

    Examples
    --------
    >>> import gpt2cy
    >>> mlp = gpt2cy.MLP(8, seed=0)
    >>> mlp.c_fc, mlp([[0.0] * 8]).shape
    (Linear(8, 32, bias=True), (1, 8))
    """

    def __cinit__(self, n_embd, n_inner=None, activation="gelu_tanh", *, bias=True, seed=None, Arena _arena=None):
        cdef Py_ssize_t width = _checks.integer("n_embd", n_embd, 1, _checks.MAX_SIDE)
        cdef Py_ssize_t inner = 4 * width
        cdef bint has_bias = _checks.flag("bias", bias)
        cdef bint alone = _arena is None
        if n_inner is not None:
            inner = _checks.integer("n_inner", n_inner, 1, _checks.MAX_SIDE)
        _checks.matrix_size("n_embd, n_inner", width, inner)
        seed = _checks.seed(seed)
        self.activation = _checks.choice("activation", activation, ACTIVATIONS)
        self.kind = KINDS[self.activation]
        if alone:
            _arena = arena_alone("n_embd, n_inner", mlp_nbytes(width, inner, has_bias))
        self.c_fc = Linear(width, inner, has_bias, _arena=_arena)
        self.c_proj = Linear(inner, width, has_bias, _arena=_arena)
        if alone:
            rng = np.random.default_rng(seed)
            self.c_fc.draw(rng, 0.02)
            self.c_proj.draw(rng, 0.02)

    cdef void run(self, const Team *team, Buffers *b, Py_ssize_t n, bint residual, int layer,
                  const Tap *tap) noexcept nogil:
        """x (+)= c_proj(activation(c_fc(narrow))); b.wide holds the inner rows."""
        cdef Py_ssize_t inner = self.c_fc.out_features
        if not apart(tap):
            self.c_fc.run(team, b.narrow, n, self.kind, NULL, b.wide, NULL, b.scratch)
            show(tap, HIDDEN, layer, b.wide, n, inner)
            self.c_proj.run(team, b.wide, n, G2_LINEAR, b.x if residual else NULL, b.x, NULL, b.scratch)
            return
        self.c_fc.run(team, b.narrow, n, G2_LINEAR, NULL, b.wide, NULL, b.scratch)
        show(tap, PRE, layer, b.wide, n, inner)
        kernel.activation(team, self.kind, b.wide, b.wide, n * inner)
        show(tap, HIDDEN, layer, b.wide, n, inner)
        self.c_proj.run(team, b.wide, n, G2_LINEAR, NULL, b.narrow, NULL, b.scratch)
        show(tap, MLP_OUT, layer, b.narrow, n, self.c_proj.out_features)
        kernel.add(team, b.narrow, b.x, n * self.c_proj.out_features, residual)

    def __call__(self, x):
        """c_proj(activation(c_fc(x))) of each row.

        Parameters
        ----------
        x : array_like, [..., C]
            Any real dtype; computed in float32, NaN and Inf included.

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
        >>> gpt2cy.MLP(4, seed=0)([[0.0] * 4]).tolist()
        [[0.0, 0.0, 0.0, 0.0]]
        """
        cdef const float[:, ::1] rows
        cdef float[:, ::1] view
        cdef Workspace w
        cdef Buffers b
        if self.c_proj is None:
            raise RuntimeError("this layer was never built")
        cdef Py_ssize_t width = self.c_fc.in_features, inner = self.c_fc.out_features, scratch
        x = _checks.rows("x", x, width)
        rows = x.reshape(-1, width)
        cdef Py_ssize_t n = rows.shape[0]
        self.c_fc.arena.enter_read()
        try:
            w = begin_call()
            scratch = matmul_scratch(&w.team, n, max(width, inner))
            w.obtain_alone("x", <size_t>n * width * sizeof(float), (<size_t>n * inner + scratch + 32) * sizeof(float))
            out = np.empty(x.shape, np.float32)
            view = out.reshape(-1, width)
            b.x = &view[0, 0]
            b.narrow = <float *>&rows[0, 0]   # read only: without a tap nothing is written to it
            b.wide = w.take_floats(n * inner)
            b.scratch = w.take_floats(scratch)
            with nogil:
                self.run(&w.team, &b, n, False, 0, NULL)
        finally:
            self.c_fc.arena.leave_read()
        return out

    def __reduce__(self):
        arguments = self.c_fc.in_features, self.c_fc.out_features, self.activation
        return reduced(self, arguments, {"bias": self.c_fc.bias_data != NULL}, {
            "c_fc": self.c_fc.__reduce__()[2], "c_proj": self.c_proj.__reduce__()[2]})

    def __setstate__(self, state):
        for part, value in zip((self.c_fc, self.c_proj), parts_of(self, state, "c_fc", "c_proj")):
            part.__setstate__(value)

    def __sizeof__(self):
        return object.__sizeof__(self) + self.c_fc.__sizeof__() + self.c_proj.__sizeof__()

    def __repr__(self):
        return f"MLP({self.c_fc.in_features}, {self.c_fc.out_features}, {self.activation!r})"
