# SPDX-License-Identifier: Apache-2.0
"""The functions between the layers, on arrays of any shape: gelu, gelu_erf, relu, softmax."""
import numpy as np

from gpt2cy.kernels cimport rows as kernel
from gpt2cy.kernels.table cimport G2_GELU_ERF, G2_GELU_TANH, G2_RELU
from gpt2cy.workspace cimport Workspace, begin_call

from gpt2cy import _checks


cdef elementwise(x, int kind):
    cdef const float[::1] flat
    cdef float[::1] view
    cdef Workspace w
    x = _checks.numbers("x", x)
    flat = x.reshape(-1)
    w = begin_call()
    w.obtain_alone("x", x.nbytes, 0)
    out = np.empty(x.shape, np.float32)
    view = out.reshape(-1)
    cdef const float *data = &flat[0]
    cdef float *result = &view[0]
    with nogil:
        kernel.activation(&w.team, kind, data, result, flat.shape[0])
    return out


def gelu(x):
    """Gaussian error linear unit, tanh form: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

    Parameters
    ----------
    x : array_like
        Any shape and real dtype; computed in float32.

    Returns
    -------
    ndarray of float32, x.shape

    Raises
    ------
    TypeError, ValueError
        If x is empty or not of real numbers.

    Notes
    -----
    Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016). Computed as x / (1 + exp(-2 u)), which is the
    same function without cancellation.

    Examples
    --------
    >>> import gpt2cy
    >>> gpt2cy.gelu([-1.0, 0.0, 1.0]).round(4).tolist()
    [-0.1588..., 0.0, 0.8411...]
    """
    return elementwise(x, G2_GELU_TANH)


def gelu_erf(x):
    """Gaussian error linear unit, exact form: 0.5 x (1 + erf(x / sqrt(2))).

    Parameters, result and errors are those of `gelu`.

    Examples
    --------
    >>> import gpt2cy
    >>> gpt2cy.gelu_erf([-1.0, 0.0, 1.0]).round(4).tolist()
    [-0.1587..., 0.0, 0.8413...]
    """
    return elementwise(x, G2_GELU_ERF)


def relu(x):
    """max(x, 0), NaN kept. Parameters, result and errors are those of `gelu`.

    Examples
    --------
    >>> import gpt2cy
    >>> gpt2cy.relu([-1.0, 2.0]).tolist()
    [0.0, 2.0]
    """
    return elementwise(x, G2_RELU)


def softmax(x):
    """exp(x - max) / sum over the last axis.

    Parameters
    ----------
    x : array_like, [..., n]
        At least one axis, any real dtype; computed in float32.

    Returns
    -------
    ndarray of float32, x.shape

    Raises
    ------
    TypeError, ValueError
        If x is empty, has no axis or is not of real numbers.

    Examples
    --------
    >>> import gpt2cy
    >>> gpt2cy.softmax([[0.0, 0.0], [1000.0, -1000.0]]).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    cdef const float[:, ::1] rows
    cdef float[:, ::1] view
    cdef Workspace w
    x = _checks.numbers("x", x)
    if x.ndim == 0:
        raise ValueError("x: expected shape [..., n], got a single number")
    width = x.shape[x.ndim - 1]
    rows = x.reshape(-1, width)
    w = begin_call()
    w.obtain_alone("x", x.nbytes, 0)
    out = np.empty(x.shape, np.float32)
    view = out.reshape(-1, width)
    cdef const float *data = &rows[0, 0]
    cdef float *result = &view[0, 0]
    with nogil:
        kernel.softmax(&w.team, data, result, rows.shape[0], rows.shape[1])
    return out
