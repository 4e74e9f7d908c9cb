# SPDX-License-Identifier: Apache-2.0
"""The functions GPT-2 is made of.

Each takes anything that ``numpy.asarray`` accepts, works in float64 and returns a new array.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def embedding(ids, weight):
    """Look up one row of a table for each id.

    Parameters
    ----------
    ids : integers, shape [...]
        Row numbers, each in ``range(N)``.
    weight : array, shape [N, C]
        The table.

    Returns
    -------
    float64 array, shape [..., C]

    Raises
    ------
    ValueError
        If an id has no row: NumPy alone would count negative ids from the end.

    Examples
    --------
    >>> embedding([2, 0], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    array([[5., 6.],
           [1., 2.]])
    """
    ids = np.asarray(ids)  # [...]
    weight = np.asarray(weight, np.float64)  # [N, C]
    outside = ids[(ids < 0) | (ids >= len(weight))]
    if outside.size:
        raise ValueError(f"ids: {outside[0]} is outside a table of {len(weight)} rows")
    return weight[ids]  # [..., C]


def linear(x, weight, bias=None):
    """Multiply by a matrix and add a bias: ``x @ weight + bias``.

    Parameters
    ----------
    x : array, shape [..., in]
    weight : array, shape [in, out]
        GPT-2 files store their matrices this way round (``torch.nn.Linear`` stores the transpose).
    bias : array, shape [out], optional

    Returns
    -------
    float64 array, shape [..., out]

    Examples
    --------
    >>> linear([1.0, 2.0], [[1.0, 0.0, 3.0], [0.0, 1.0, 4.0]], bias=[0.5, 0.5, 0.5])
    array([ 1.5,  2.5, 11.5])
    """
    x = np.asarray(x, np.float64)  # [..., in]
    y = x @ np.asarray(weight, np.float64)  # [..., out]
    return y if bias is None else y + np.asarray(bias, np.float64)  # [..., out]


def layernorm(x, gamma, beta, eps):
    """Give each row mean 0 and variance 1, then scale by ``gamma`` and shift by ``beta``.

    ``(x - mean) / sqrt(variance + eps) * gamma + beta``; the variance divides by C, not by C - 1, and ``eps``
    is inside the root.

    Parameters
    ----------
    x : array, shape [..., C]
    gamma, beta : array, shape [C]
    eps : float

    Returns
    -------
    float64 array, shape [..., C]

    Notes
    -----
    Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450.

    Examples
    --------
    >>> layernorm([[1.0, 3.0], [10.0, 30.0]], gamma=[1.0, 1.0], beta=[0.0, 5.0], eps=0.0)
    array([[-1.,  6.],
           [-1.,  6.]])
    """
    x = np.asarray(x, np.float64)  # [..., C]
    centred = x - x.mean(axis=-1, keepdims=True)  # [..., C]
    variance = np.square(centred).mean(axis=-1, keepdims=True)  # [..., 1]
    normal = centred / np.sqrt(variance + eps)  # [..., C]
    return normal * np.asarray(gamma, np.float64) + np.asarray(beta, np.float64)  # [..., C]


def gelu_tanh(x):
    """Gaussian error linear unit, the tanh approximation: the activation of every released GPT-2.

    ``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))``; it stays within 5e-4 of :func:`gelu_erf`.

    Parameters
    ----------
    x : array, shape [...]

    Returns
    -------
    float64 array, shape [...]

    Notes
    -----
    Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv:1606.08415.

    Examples
    --------
    >>> gelu_tanh([-1.0, 0.0, 1.0]).round(4)
    array([-0.1588,  0.    ,  0.8412])
    """
    x = np.asarray(x, np.float64)
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_erf(x):
    """Gaussian error linear unit, exact: ``x`` times the normal distribution function at ``x``.

    ``0.5 x (1 + erf(x / sqrt(2)))``

    Parameters
    ----------
    x : array, shape [...]

    Returns
    -------
    float64 array, shape [...]

    Examples
    --------
    >>> gelu_erf([-1.0, 0.0, 1.0]).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    x = np.asarray(x, np.float64)
    return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))


def relu(x):
    """Rectified linear unit: ``max(x, 0)``.

    Parameters
    ----------
    x : array, shape [...]

    Returns
    -------
    float64 array, shape [...]

    Examples
    --------
    >>> relu([-1.0, 0.0, 1.0])
    array([0., 0., 1.])
    """
    return np.maximum(np.asarray(x, np.float64), 0.0)


def softmax(x):
    """Turn each row (last axis) into probabilities: ``exp(x) / sum(exp(x))``.

    Subtracting the row's maximum first changes nothing in the quotient and keeps ``exp`` from overflowing.

    Parameters
    ----------
    x : array, shape [..., N]
        ``-inf`` is allowed, and gets probability 0, as long as the row holds something finite.

    Returns
    -------
    float64 array, shape [..., N]

    Examples
    --------
    >>> softmax([1000.0, 1000.0, -np.inf, 1000.0 + math.log(2.0)]).round(4)
    array([0.25, 0.25, 0.  , 0.5 ])
    """
    x = np.asarray(x, np.float64)  # [..., N]
    powers = np.exp(x - x.max(axis=-1, keepdims=True))  # [..., N]
    return powers / powers.sum(axis=-1, keepdims=True)  # [..., N]
