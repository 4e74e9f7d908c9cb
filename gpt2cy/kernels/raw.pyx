# SPDX-License-Identifier: Apache-2.0
"""Doors to the drivers for tests and benchmarks: any instruction set, any thread count.

What computes takes ``isa``, and ``n_threads`` but for ``select``, which works on one row; arrays are float32 and
C-contiguous.  ``out``, where given, is the array that takes the result: a benchmark does not want to pay for new
memory.  Shapes are checked here, since nothing below checks them.
"""
import numpy as np

from libc.math cimport INFINITY
from libc.stdint cimport int64_t

from gpt2cy.kernels cimport attention as _attention
from gpt2cy.kernels cimport dispatch
from gpt2cy.kernels cimport gemm as _gemm
from gpt2cy.kernels cimport logits as _logits
from gpt2cy.kernels cimport rows as _rows
from gpt2cy.kernels.memory cimport Arena
from gpt2cy.kernels.packed cimport PackedMatrix
from gpt2cy.kernels.table cimport (
    G2_BLOCK,
    G2_GELU_ERF,
    G2_GELU_TANH,
    G2_LINEAR,
    G2_MAX_HEAD,
    G2_RELU,
    G2_SELECT_SCRATCH,
    fp_mode,
    g2_candidates,
    g2_epilogue,
    g2_fp_enter,
    g2_fp_leave,
    g2_sampling,
    g2_sequence,
    g2_statistics,
)
from gpt2cy.kernels.threads cimport MOST, Team

from gpt2cy.kernels.logits import STATISTICS_DTYPE as STATISTICS

ACTIVATIONS = {None: G2_LINEAR, "gelu_tanh": G2_GELU_TANH, "gelu_erf": G2_GELU_ERF, "relu": G2_RELU}


cdef Team team_of(isa, int n_threads) except *:
    cdef Team team
    if not 1 <= n_threads <= MOST:
        raise ValueError(f"n_threads: expected 1 to {MOST}, got {n_threads}")
    team.table = dispatch.current() if isa is None else dispatch.find(isa)
    team.n_threads = n_threads
    team.owned = 0
    team.region = NULL
    team.worker = 0
    return team


cdef array_for(out, tuple shape):
    """`out`, if it has this shape, or a new array where it is None."""
    if out is None:
        return np.empty(shape, np.float32)
    if out.shape != shape:
        raise ValueError(f"out: expected {shape}, got {out.shape}")
    return out


def pack(const float[:, :] weight not None):
    """A PackedMatrix of weight [K, N]."""
    cdef PackedMatrix packed = PackedMatrix(weight.shape[0], weight.shape[1])
    packed.fill(weight, 0)
    return packed


def gemm(const float[:, ::1] a not None, PackedMatrix w not None, bias=None, activation=None, residual=None,
         isa=None, int n_threads=1, out=None):
    """activation(a w + bias) + residual: [m, N]."""
    cdef Team team = team_of(isa, n_threads)
    cdef const float[::1] bias_view
    cdef const float[:, ::1] residual_view
    cdef float[:, ::1] sums
    cdef g2_epilogue e = g2_epilogue(NULL, ACTIVATIONS[activation], NULL, w.layout.n, NULL, w.layout.n, NULL)
    cdef Arena scratch
    cdef Py_ssize_t m = a.shape[0]
    cdef float *floats
    if m < 1 or a.shape[1] != w.layout.k:
        raise ValueError(f"a: expected [m, {w.layout.k}], got {a.shape[0], a.shape[1]}")
    result = array_for(out, (m, w.layout.n))
    sums = result
    e.out = &sums[0, 0]
    if bias is not None:
        bias_view = bias
        if bias_view.shape[0] != w.layout.n:
            raise ValueError(f"bias: expected [{w.layout.n}]")
        e.bias = &bias_view[0]
    if residual is not None:
        residual_view = residual
        if residual_view.shape[0] != m or residual_view.shape[1] != w.layout.n:
            raise ValueError(f"residual: expected {m, w.layout.n}")
        e.residual = &residual_view[0, 0]
    scratch = Arena(_gemm.matmul_scratch(&team, m, w.layout.k) * sizeof(float))
    floats = scratch.take_floats(_gemm.matmul_scratch(&team, m, w.layout.k))
    cdef const float *data = &a[0, 0]
    with nogil:
        _gemm.matmul(&team, data, w.layout.k, m, &w.layout, &e, floats)
    return result


cdef class Attention:
    """Causal attention of one sequence with all its memory at hand, so that `append` and `attend` can be timed.

    `fill` is what the blocks hold before anything is written to them.
    """
    cdef Team team
    cdef g2_sequence s
    cdef Arena memory
    cdef const float[:, ::1] qkv
    cdef float[:, ::1] sums
    cdef float *scratch
    cdef Py_ssize_t n_heads, head_dim
    cdef float scale
    cdef readonly object out   # [T, C]

    def __cinit__(self, const float[:, ::1] qkv not None, Py_ssize_t n_heads, float scale, isa=None, int n_threads=1,
                  float fill=0.0):
        cdef Py_ssize_t t = qkv.shape[0], c = qkv.shape[1] // 3, i, n_blocks, block_floats, scratch_floats
        cdef Py_ssize_t head_dim = c // n_heads if n_heads > 0 else 0
        if t < 1 or n_heads < 1 or c * 3 != qkv.shape[1] or head_dim * n_heads != c or not 1 <= head_dim <= G2_MAX_HEAD:
            raise ValueError("qkv: expected [T, 3 * n_heads * head_dim]")
        if not 0 < scale < INFINITY:   # the kernel takes the largest product for that of the largest score
            raise ValueError(f"scale: expected a number above 0, got {scale}")
        self.team = team_of(isa, n_threads)
        self.qkv, self.n_heads, self.head_dim, self.scale = qkv, n_heads, head_dim, scale
        self.out = np.empty((t, c), np.float32)
        self.sums = self.out
        n_blocks = (t + G2_BLOCK - 1) // G2_BLOCK
        block_floats = 2 * c * G2_BLOCK + 32
        scratch_floats = _attention.attend_scratch(&self.team)
        self.memory = Arena(n_blocks * ((block_floats + 16) * sizeof(float) + sizeof(float *))
                            + scratch_floats * sizeof(float) + 128)
        self.s.blocks = <float **>self.memory.take(n_blocks * sizeof(float *))
        for i in range(n_blocks):
            self.s.blocks[i] = self.memory.take_floats(block_floats)
            fill_floats(self.s.blocks[i], block_floats, fill)
        self.scratch = self.memory.take_floats(scratch_floats)
        self.s.layer_stride = 0
        self.rows(0, t)

    def rows(self, Py_ssize_t first, Py_ssize_t end):
        """The queries that the next calls are about, with their keys and values."""
        if not 0 <= first < end <= self.qkv.shape[0]:
            raise ValueError(f"cuts: expected increasing positions up to {self.qkv.shape[0]}, got {first} to {end}")
        self.s.position = self.s.row = first
        self.s.n_rows = end - first

    def append(self):
        """Keys and values into their blocks."""
        cdef const float *data = &self.qkv[0, 0]
        with nogil:
            _attention.append(&self.team, &self.s, 1, data, self.n_heads, self.head_dim, 0)

    def may_append(self):
        """Whether attend can do it on the way."""
        return _attention.may_append(&self.team, &self.s, 1, self.head_dim)

    def attend(self, bint appends=False):
        """out = softmax(scale q k^T) v."""
        cdef const float *data = &self.qkv[0, 0]
        cdef float *sums = &self.sums[0, 0]
        if appends and not self.may_append():
            raise ValueError(f"appends: not with {self.s.n_rows} rows and heads of {self.head_dim}")
        with nogil:
            _attention.attend(&self.team, &self.s, 1, data, self.n_heads, self.head_dim, 0, self.scale, sums,
                              self.scratch, appends)


def attention(qkv, n_heads, scale, cuts=(), isa=None, n_threads=1, fill=0.0, appends=False):
    """Causal attention of one sequence qkv [T, 3 C], fed in pieces that end at `cuts`: [T, C].

    appends: whether keys and values get into their blocks on the way, where that can be.
    """
    call = Attention(qkv, n_heads, scale, isa, n_threads, fill)
    first = 0
    for cut in [*cuts, len(qkv)]:
        call.rows(first, cut)
        on_the_way = appends and call.may_append()
        if not on_the_way:
            call.append()
        call.attend(on_the_way)
        first = cut
    return call.out


cdef void fill_floats(float *p, Py_ssize_t n, float value) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        p[i] = value


def layernorm(const float[:, ::1] x not None, const float[::1] gamma not None, beta=None, float eps=1e-5, isa=None,
              int n_threads=1, out=None):
    """[n, C] over its last axis."""
    cdef Team team = team_of(isa, n_threads)
    cdef const float[::1] beta_view
    cdef const float *beta_data = NULL
    cdef float[:, ::1] y
    if x.shape[0] < 1 or x.shape[1] < 1 or gamma.shape[0] != x.shape[1]:
        raise ValueError("gamma: expected [C] of x [n, C]")
    if beta is not None:
        beta_view = beta
        if beta_view.shape[0] != x.shape[1]:
            raise ValueError("beta: expected [C] of x [n, C]")
        beta_data = &beta_view[0]
    result = array_for(out, (x.shape[0], x.shape[1]))
    y = result
    cdef const float *data = &x[0, 0]
    cdef const float *scale = &gamma[0]
    cdef float *normed = &y[0, 0]
    with nogil:
        _rows.layernorm(&team, data, scale, beta_data, eps, normed, x.shape[0], x.shape[1])
    return result


def softmax(const float[:, ::1] x not None, isa=None, int n_threads=1, out=None):
    """[n, width] over its last axis."""
    cdef Team team = team_of(isa, n_threads)
    cdef float[:, ::1] y
    if x.shape[0] < 1 or x.shape[1] < 1:
        raise ValueError("x: expected [n, width], not empty")
    result = array_for(out, (x.shape[0], x.shape[1]))
    y = result
    cdef const float *data = &x[0, 0]
    cdef float *shares = &y[0, 0]
    with nogil:
        _rows.softmax(&team, data, shares, x.shape[0], x.shape[1])
    return result


def activation(const float[::1] x not None, kind, isa=None, int n_threads=1, out=None):
    """gelu_tanh, gelu_erf or relu of x [n]; kind "exp" gives exp."""
    cdef Team team = team_of(isa, n_threads)
    cdef float[::1] y
    cdef int code = -1 if kind == "exp" else ACTIVATIONS[kind]
    if x.shape[0] < 1:
        raise ValueError("x: expected [n], not empty")
    result = array_for(out, (x.shape[0],))
    y = result
    cdef const float *data = &x[0]
    cdef float *values = &y[0]
    with nogil:
        if code < 0:
            _rows.exp(&team, data, values, x.shape[0])
        else:
            _rows.activation(&team, code, data, values, x.shape[0])
    return result


def statistics(const float[:, ::1] x not None, targets=None, isa=None, int n_threads=1):
    """Fields of g2_statistics, each [n], of logits [n, V]; targets [n] are ids, or -1 for none."""
    cdef Team team = team_of(isa, n_threads)
    cdef Py_ssize_t n = x.shape[0], width = x.shape[1]
    if n < 1 or width < 1:
        raise ValueError("x: expected [n, V], not empty")
    wanted = np.full(n, -1, np.int64) if targets is None else np.array(targets, np.int64)
    if wanted.shape != (n,) or wanted.min() < -1 or wanted.max() >= width:
        raise ValueError(f"targets: expected [{n}] of -1 to {width - 1}")
    result = np.zeros(n, STATISTICS)
    cdef const int64_t[::1] ids = wanted
    cdef char[:, ::1] room = result.view(np.int8).reshape(n, -1)
    cdef const float *data = &x[0, 0]
    cdef const int64_t *of = &ids[0]
    cdef g2_statistics *out = <g2_statistics *>&room[0, 0]
    with nogil:
        _logits.statistics(&team, data, n, width, of, out)
    return result


def top(const float[:, ::1] x not None, Py_ssize_t k, isa=None, int n_threads=1):
    """For each row of x [n, V] the ids of its k largest logits, in their order: a list of arrays."""
    cdef Team team = team_of(isa, n_threads)
    cdef Py_ssize_t n = x.shape[0], width = x.shape[1]
    if n < 1 or width < 1 or k < 1:
        raise ValueError("x: expected [n, V], not empty; k: expected >= 1")
    k = min(k, width)
    best, counts = np.empty((n, k), np.int64), np.empty(n, np.int64)
    cdef int64_t[:, ::1] ids_view = best
    cdef int64_t[::1] found_view = counts
    cdef const float *data = &x[0, 0]
    cdef int64_t *ids = &ids_view[0, 0]
    cdef int64_t *found = &found_view[0]
    with nogil:
        _logits.top(&team, data, n, width, k, ids, found)
    return [best[i, :counts[i]] for i in range(n)]


def select(const float[::1] x not None, float inverse_temperature=1.0, int64_t top_k=0, double top_p=1.0,
           float min_p=0.0, double typical_p=1.0, isa=None, draws=()):
    """What may be drawn from one row x [V]: weights [V], and the id drawn for each u of `draws`."""
    cdef Team team = team_of(isa, 1)
    cdef Py_ssize_t n = x.shape[0], i
    if n < 1 or any(not 0 <= u < 1 for u in draws):
        raise ValueError("x: expected [V], not empty; draws: expected numbers in [0, 1)")
    cdef g2_sampling how = g2_sampling(inverse_temperature, top_k, top_p, min_p, typical_p)
    cdef g2_candidates found
    cdef Arena memory = Arena(G2_SELECT_SCRATCH(n) * sizeof(float) + 64)
    cdef float *scratch = memory.take_floats(G2_SELECT_SCRATCH(n))
    cdef const float *data = &x[0]
    cdef fp_mode mode = g2_fp_enter()
    cdef int64_t first = team.table.select(data, n, &how, scratch, &found)
    g2_fp_leave(mode)
    if first < 0:
        raise FloatingPointError(f"x: no largest logit ({first})")
    weights, ids = np.zeros(n, np.float32), np.empty(len(draws), np.int64)
    cdef float[::1] dense = weights
    for i in range(found.n):
        dense[found.ids[i] if found.ids != NULL else i] = found.weights[i]
    for i, u in enumerate(draws):
        ids[i] = team.table.draw(&found, u)
    return weights, ids
