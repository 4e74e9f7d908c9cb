# SPDX-License-Identifier: Apache-2.0
"""Linear: y = x W + b.

    x [n, in]    W [in, out], packed once (kernels/packed)    b [out]    y [n, out]

Activation and residual are added in the product's epilogue, so a fused layer writes its result once.
"""
import numpy as np

from libc.string cimport memcpy, memset

from gpt2cy.kernels.gemm cimport matmul, matmul_scratch
from gpt2cy.kernels.memory cimport rounded
from gpt2cy.kernels.packed cimport packed_nbytes
from gpt2cy.kernels.table cimport G2_LINEAR, g2_epilogue
from gpt2cy.workspace cimport Workspace, begin_call

from gpt2cy import _checks
from gpt2cy.kernels import host
from gpt2cy.layers.pickling import parts_of, reduced

cdef enum:
    DRAWN_AT_ONCE = 1 << 18   # numbers drawn into one buffer


cdef size_t linear_nbytes(Py_ssize_t in_features, Py_ssize_t out_features, bint bias) noexcept nogil:
    return packed_nbytes(in_features, out_features) + (rounded(out_features * sizeof(float)) if bias else 0)


cdef Arena arena_alone(str names, size_t nbytes):
    """Memory for a layer outside a model; `names` are the arguments that decide how much."""
    host.require_memory(names, {"weights": nbytes}, "them")
    return Arena(nbytes)


cdef int begin_reading(Arena arena) except -1:
    """Nobody assigns weights until `leave_read`; RuntimeError if somebody does."""
    if arena is None:
        raise RuntimeError("this layer was never built")
    return arena.enter_read()


cdef read_vector(Arena arena, const float *data, Py_ssize_t n):
    """A fresh read-only array of data[n]."""
    cdef float[::1] view
    begin_reading(arena)
    try:
        out = np.empty(n, np.float32)
        view = out
        memcpy(&view[0], data, n * sizeof(float))
    finally:
        arena.leave_read()
    out.flags.writeable = False
    return out


cdef int write_vector(float *data, Py_ssize_t n, const float[:] values) except -1:
    cdef Py_ssize_t i
    for i in range(n):
        data[i] = values[i]
    return 0


def normal_rows(rng, Py_ssize_t n, Py_ssize_t width, float std):
    """Yield (first row, rows [r, width]) of n rows of N(0, std), each in the same buffer, drawn in order.

    With std 0 nothing is drawn: the rows are zero.
    """
    cdef Py_ssize_t first, most = max(1, DRAWN_AT_ONCE // width)
    buffer = np.zeros((min(most, n), width), np.float32)
    for first in range(0, n, most):
        rows = buffer[:min(most, n - first)]
        if std > 0:
            rng.standard_normal(out=rows, dtype=np.float32)
            rows *= np.float32(std)
        yield first, rows


cdef class Linear:
    """A linear layer, y = x @ weight + bias.

    Parameters
    ----------
    in_features, out_features : int
        Width of a row of x, and of y.
    bias : bool
        Whether there is a bias.
    seed : int, optional
        Seed of the initial weights, N(0, 0.02); the bias starts at 0. Without one they differ from run to run.

    Attributes
    ----------
    weight : ndarray of float32, [in, out]
        A fresh read-only copy. Assign an array of that shape and of any float dtype to change it.
    bias : ndarray of float32, [out], or None
        Likewise.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    MemoryError
        If the weights do not fit the memory that is left.

    Examples
    --------
    >>> import gpt2cy
    >>> layer = gpt2cy.Linear(3, 2, seed=0)
    >>> layer.weight = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    >>> layer([1.0, 2.0, 3.0]).tolist()
    [4.0, 5.0]
    """

    def __cinit__(self, in_features, out_features, bias=True, *, seed=None, Arena _arena=None,
                  PackedMatrix _matrix=None):
        cdef Py_ssize_t n_in = _checks.integer("in_features", in_features, 1, _checks.MAX_SIDE)
        cdef Py_ssize_t n_out = _checks.integer("out_features", out_features, 1, _checks.MAX_SIDE)
        cdef bint has_bias = _checks.flag("bias", bias)
        _checks.matrix_size("in_features, out_features", n_in, n_out)
        seed = _checks.seed(seed)
        if _matrix is not None and _matrix.shape != (n_in, n_out):
            raise ValueError(f"_matrix: expected {[n_in, n_out]}, got {list(_matrix.shape)}")
        self.in_features = n_in
        self.out_features = n_out
        if _arena is None:
            self.arena = arena_alone("in_features, out_features", linear_nbytes(n_in, n_out, has_bias))
        else:
            self.arena = _arena
        self.matrix = PackedMatrix(n_in, n_out, self.arena) if _matrix is None else _matrix
        if has_bias:
            self.bias_data = self.arena.take_floats(n_out)
            memset(self.bias_data, 0, n_out * sizeof(float))
        if _arena is None:
            self.draw(np.random.default_rng(seed), 0.02)

    cdef int draw(self, rng, float std) except -1:
        for first, rows in normal_rows(rng, self.in_features, self.out_features, std):
            self.matrix.fill(rows, first)
        return 0

    cdef void run(self, const Team *team, const float *x, Py_ssize_t n, int activation, const float *residual,
                  float *out, float **out_rows, float *scratch) noexcept nogil:
        """out[n, out] = activation(x W + b) + residual; out_rows as in g2_epilogue."""
        cdef g2_epilogue e
        e.bias = self.bias_data
        e.activation = activation
        e.residual = residual
        e.ld_residual = self.out_features
        e.out = out
        e.ld_out = self.out_features
        e.out_rows = out_rows
        matmul(team, x, self.in_features, n, &self.matrix.layout, &e, scratch)

    def __call__(self, x):
        """y = x @ weight + bias.

        Parameters
        ----------
        x : array_like, [..., in]
            Any real dtype; computed in float32, NaN and Inf included.

        Returns
        -------
        ndarray of float32, [..., out]

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
        >>> gpt2cy.Linear(3, 2, seed=0)([[0.0, 0.0, 0.0]]).tolist()
        [[0.0, 0.0]]
        """
        cdef const float[:, ::1] rows
        cdef float[:, ::1] view
        cdef Workspace w
        x = _checks.rows("x", x, self.in_features)
        rows = x.reshape(-1, self.in_features)
        cdef Py_ssize_t n = rows.shape[0]
        cdef const float *data = &rows[0, 0]
        cdef float *result
        self.arena.enter_read()
        try:
            w = begin_call()
            w.obtain_alone("x", <size_t>n * self.out_features * sizeof(float),
                           matmul_scratch(&w.team, n, self.in_features) * sizeof(float) + 64)
            out = np.empty((*x.shape[:x.ndim - 1], self.out_features), np.float32)
            view = out.reshape(-1, self.out_features)
            result = &view[0, 0]
            with nogil:
                self.run(&w.team, data, n, G2_LINEAR, NULL, result, NULL, <float *>w.base)
        finally:
            self.arena.leave_read()
        return out

    @property
    def weight(self):
        begin_reading(self.arena)
        try:
            out = self.matrix.to_array()
        finally:
            self.arena.leave_read()
        out.flags.writeable = False
        return out

    @weight.setter
    def weight(self, value):
        if self.arena is None:
            raise RuntimeError("this layer was never built")
        value = _checks.weight("weight", value, (self.in_features, self.out_features))
        self.arena.enter_write()
        try:
            self.put("weight", value)
        finally:
            self.arena.leave_write()

    cdef int put(self, str name, value) except -1:
        """Set a checked weight or bias; the caller has the arena to write."""
        if len(value) != (self.in_features if name == "weight" else self.out_features):
            raise ValueError(f"{name}: does not fit the layer")
        if name == "weight":
            return self.matrix.fill(value, 0)
        return write_vector(self.bias_data, self.out_features, value)

    @property
    def bias(self):
        if self.bias_data == NULL:
            return None
        return read_vector(self.arena, self.bias_data, self.out_features)

    @bias.setter
    def bias(self, value):
        if self.bias_data == NULL:
            raise ValueError("bias: this layer was built without one")
        value = _checks.weight("bias", value, (self.out_features,))
        self.arena.enter_write()
        try:
            self.put("bias", value)
        finally:
            self.arena.leave_write()

    def __reduce__(self):
        arguments = self.in_features, self.out_features, self.bias_data != NULL
        return reduced(self, arguments, {}, {"weight": self.weight, "bias": self.bias})

    def __setstate__(self, state):
        self.weight, bias = parts_of(self, state, "weight", "bias")
        if self.bias_data != NULL:
            self.bias = bias

    def __sizeof__(self):
        return object.__sizeof__(self) + self.matrix.nbytes + 4 * self.out_features * (self.bias_data != NULL)

    def __repr__(self):
        return f"Linear({self.in_features}, {self.out_features}, bias={self.bias_data != NULL})"
