# SPDX-License-Identifier: Apache-2.0
"""Embedding: row ids[i] of a table.

    ids [...]    weight [num_embeddings, C]    out [..., C]

The table is kept as plain rows, or, where a tied head shares it, as that head's packed matrix [C, V]: one
copy then serves the product (in order) and the lookup (one cache line a number, under 1 % of a forward).
"""
import numpy as np

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from gpt2cy.kernels cimport rows as kernel
from gpt2cy.kernels.memory cimport rounded
from gpt2cy.kernels.table cimport G2_PANEL, g2_rows
from gpt2cy.layers.linear cimport arena_alone, begin_reading, read_vector
from gpt2cy.workspace cimport Workspace, begin_call

from gpt2cy import _checks
from gpt2cy.layers.linear import normal_rows
from gpt2cy.layers.pickling import parts_of, reduced


cdef size_t embedding_nbytes(Py_ssize_t num_embeddings, Py_ssize_t n_embd) noexcept nogil:
    return rounded(<size_t>num_embeddings * n_embd * sizeof(float))


cdef class Embedding:
    """A table of vectors, one a token id or position.

    Parameters
    ----------
    num_embeddings : int
        Rows of the table.
    n_embd : int
        Width C of a row.
    seed : int, optional
        Seed of the initial weights, N(0, 0.02). Without one they differ from run to run.

    Attributes
    ----------
    weight : ndarray of float32, [num_embeddings, C]
        A fresh read-only copy of the table; assign an array of that shape and any float dtype to change it.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, or an id is outside the table.
    MemoryError
        If the weights do not fit the memory that is left.

    Examples
    --------
    >>> import gpt2cy
    >>> table = gpt2cy.Embedding(10, 4, seed=0)
    >>> table([[1, 2, 3]]).shape
    (1, 3, 4)
    """

    def __cinit__(self, num_embeddings, n_embd, *, seed=None, Arena _arena=None, PackedMatrix _matrix=None):
        cdef Py_ssize_t n = _checks.integer("num_embeddings", num_embeddings, 1, _checks.MAX_SIDE)
        cdef Py_ssize_t width = _checks.integer("n_embd", n_embd, 1, _checks.MAX_SIDE)
        _checks.matrix_size("num_embeddings, n_embd", n, width)
        seed = _checks.seed(seed)
        self.num_embeddings = n
        self.n_embd = width
        if _arena is None:
            self.arena = arena_alone("num_embeddings, n_embd", embedding_nbytes(n, width))
        else:
            self.arena = _arena
        self.matrix = _matrix
        if _matrix is None:
            self.plain = self.arena.take_floats(n * width)
            self.table = g2_rows(self.plain, G2_PANEL * width, width, 1)
        else:
            self.table = g2_rows(<float *>_matrix.layout.data, G2_PANEL * width, 1, G2_PANEL)
        if _arena is None:
            self.draw(np.random.default_rng(seed), 0.02)

    cdef int fill(self, const float[:, :] rows, Py_ssize_t first) except -1:
        """Rows first, first + 1, ... of the table."""
        cdef Py_ssize_t i, j
        cdef float *to
        if self.matrix is not None:
            return self.matrix.fill_transposed(rows, first)
        if first < 0 or rows.shape[1] != self.n_embd or first + rows.shape[0] > self.num_embeddings:
            raise ValueError("rows do not fit the table")
        with nogil:
            for i in range(rows.shape[0]):
                to = self.plain + (first + i) * self.n_embd
                if rows.strides[1] == sizeof(float):
                    memcpy(to, &rows[i, 0], self.n_embd * sizeof(float))
                    continue
                for j in range(self.n_embd):
                    to[j] = rows[i, j]
        return 0

    cdef int draw(self, rng, float std) except -1:
        for first, rows in normal_rows(rng, self.num_embeddings, self.n_embd, std):
            self.fill(rows, first)
        return 0

    def __call__(self, ids):
        """Look up the rows of ids.

        Parameters
        ----------
        ids : array_like of int, [...]
            From 0 to num_embeddings - 1.

        Returns
        -------
        ndarray of float32, ids.shape + (C,)

        Raises
        ------
        TypeError, ValueError
            If ids are of the wrong kind, empty or outside the table.
        MemoryError
            If the result does not fit the memory that is left.
        RuntimeError
            If weights are being assigned by another thread.

        Examples
        --------
        >>> import gpt2cy
        >>> table = gpt2cy.Embedding(10, 4, seed=0)
        >>> table(3).shape, table([[1, 2, 3]]).shape
        ((4,), (1, 3, 4))
        """
        cdef const int64_t[::1] flat
        cdef float[:, ::1] view
        cdef Workspace w
        ids = _checks.ids("ids", ids, self.num_embeddings)
        flat = ids.reshape(-1)
        cdef const int64_t *data = &flat[0]
        cdef float *result
        self.arena.enter_read()
        try:
            w = begin_call()
            w.obtain_alone("ids", <size_t>flat.shape[0] * self.n_embd * sizeof(float), 0)
            out = np.empty((*ids.shape, self.n_embd), np.float32)
            view = out.reshape(-1, self.n_embd)
            result = &view[0, 0]
            with nogil:
                kernel.embed(&w.team, &self.table, data, NULL, NULL, result, flat.shape[0], self.n_embd)
        finally:
            self.arena.leave_read()
        return out

    def rows(self, ids):
        """Read single rows without copying the table: the same as calling the layer.

        Parameters, result and errors are those of the call.

        Examples
        --------
        >>> import gpt2cy
        >>> table = gpt2cy.Embedding(10, 4, seed=0)
        >>> bool((table.rows([7, 7]) == table.weight[[7, 7]]).all())
        True
        """
        return self(ids)

    @property
    def weight(self):
        if self.matrix is None:
            table = read_vector(self.arena, self.plain, self.num_embeddings * self.n_embd)
            return table.reshape(self.num_embeddings, self.n_embd)
        begin_reading(self.arena)
        try:
            out = self.matrix.to_array(transposed=True)
        finally:
            self.arena.leave_read()
        out.flags.writeable = False
        return out

    @weight.setter
    def weight(self, value):
        value = _checks.weight("weight", value, (self.num_embeddings, self.n_embd))
        self.arena.enter_write()
        try:
            self.fill(value, 0)
        finally:
            self.arena.leave_write()

    def __reduce__(self):
        return reduced(self, (self.num_embeddings, self.n_embd), {}, {"weight": self.weight})

    def __setstate__(self, state):
        self.weight, = parts_of(self, state, "weight")

    def __sizeof__(self):
        return object.__sizeof__(self) + 4 * self.num_embeddings * self.n_embd

    def __repr__(self):
        return f"Embedding({self.num_embeddings}, {self.n_embd})"
