# SPDX-License-Identifier: Apache-2.0
"""LayerNorm: y = (x - mean) / sqrt(variance + eps) * gamma + beta, over the last axis.

    x [n, C]    gamma, beta [C]    y [n, C]    the variance is the biased one
"""
import numpy as np

from libc.string cimport memset

from gpt2cy.kernels cimport rows as kernel
from gpt2cy.kernels.memory cimport rounded
from gpt2cy.kernels.table cimport g2_nearest
from gpt2cy.layers.linear cimport arena_alone, read_vector, write_vector
from gpt2cy.workspace cimport Workspace, begin_call

from gpt2cy import _checks
from gpt2cy.layers.pickling import parts_of, reduced


cdef size_t layernorm_nbytes(Py_ssize_t n_embd, bint bias) noexcept nogil:
    return rounded(n_embd * sizeof(float)) * (2 if bias else 1)


cdef class LayerNorm:
    """Layer normalisation over the last axis.

    Parameters
    ----------
    n_embd : int
        Width C of a row.
    eps : float
        Added to the variance inside the root, positive.
    bias : bool
        Whether there is a beta.

    Attributes
    ----------
    gamma, beta : ndarray of float32, [C]
        Scale (starts at 1) and shift (starts at 0; None without one): fresh read-only copies, assign to change.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    MemoryError
        If the weights do not fit the memory that is left.

    Examples
    --------
    >>> import gpt2cy
    >>> norm = gpt2cy.LayerNorm(4, eps=1e-12)
    >>> norm([1.0, 1.0, 3.0, 3.0]).round(4).tolist()
    [-1.0, -1.0, 1.0, 1.0]
    """

    def __cinit__(self, n_embd, eps=1e-5, *, bias=True, Arena _arena=None):
        cdef Py_ssize_t n = _checks.integer("n_embd", n_embd, 1, _checks.MAX_SIDE), i
        cdef bint has_beta = _checks.flag("bias", bias)
        self.eps = _checks.epsilon("eps", eps)
        self.eps_data = g2_nearest(self.eps, False)
        self.n_embd = n
        self.arena = arena_alone("n_embd", layernorm_nbytes(n, has_beta)) if _arena is None else _arena
        self.gamma_data = self.arena.take_floats(n)
        for i in range(n):
            self.gamma_data[i] = 1.0
        if has_beta:
            self.beta_data = self.arena.take_floats(n)
            memset(self.beta_data, 0, n * sizeof(float))

    cdef void run(self, const Team *team, const float *x, Py_ssize_t n, float *y) noexcept nogil:
        """y[n, C]; y may be x."""
        kernel.layernorm(team, x, self.gamma_data, self.beta_data, self.eps_data, y, n, self.n_embd)

    def __call__(self, x):
        """Normalise each row.

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
        >>> gpt2cy.LayerNorm(2)([[5.0, 5.0]]).tolist()
        [[0.0, 0.0]]
        """
        cdef const float[:, ::1] rows
        cdef float[:, ::1] view
        cdef Workspace w
        x = _checks.rows("x", x, self.n_embd)
        rows = x.reshape(-1, self.n_embd)
        cdef const float *data = &rows[0, 0]
        cdef float *result
        self.arena.enter_read()
        try:
            w = begin_call()
            w.obtain_alone("x", x.nbytes, 0)
            out = np.empty(x.shape, np.float32)
            view = out.reshape(-1, self.n_embd)
            result = &view[0, 0]
            with nogil:
                self.run(&w.team, data, rows.shape[0], result)
        finally:
            self.arena.leave_read()
        return out

    @property
    def gamma(self):
        return read_vector(self.arena, self.gamma_data, self.n_embd)

    @gamma.setter
    def gamma(self, value):
        self.assign("gamma", value)

    @property
    def beta(self):
        return None if self.beta_data == NULL else read_vector(self.arena, self.beta_data, self.n_embd)

    @beta.setter
    def beta(self, value):
        if self.beta_data == NULL:
            raise ValueError("beta: this layer was built without one")
        self.assign("beta", value)

    cdef int assign(self, str name, value) except -1:
        if self.arena is None:
            raise RuntimeError("this layer was never built")
        value = _checks.weight(name, value, (self.n_embd,))
        self.arena.enter_write()
        try:
            self.put(name, value)
        finally:
            self.arena.leave_write()
        return 0

    cdef int put(self, str name, value) except -1:
        """Set a checked gamma or beta; the caller has the arena to write."""
        if len(value) != self.n_embd:
            raise ValueError(f"{name}: does not fit the layer")
        return write_vector(self.gamma_data if name == "gamma" else self.beta_data, self.n_embd, value)

    def __reduce__(self):
        options = {"bias": self.beta_data != NULL}
        return reduced(self, (self.n_embd, self.eps), options, {"gamma": self.gamma, "beta": self.beta})

    def __setstate__(self, state):
        self.gamma, beta = parts_of(self, state, "gamma", "beta")
        if self.beta_data != NULL:
            self.beta = beta

    def __sizeof__(self):
        return object.__sizeof__(self) + 4 * self.n_embd * (1 + (self.beta_data != NULL))

    def __repr__(self):
        return f"LayerNorm({self.n_embd}, eps={self.eps})"
