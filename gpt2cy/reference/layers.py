# SPDX-License-Identifier: Apache-2.0
"""The layers of a transformer block: attention mixes positions, the MLP works on each position alone."""

import numpy as np

from .functions import gelu_erf, gelu_tanh, layernorm, linear, relu, softmax

ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf, "relu": relu}


def attention(x, c_attn_weight, c_attn_bias, c_proj_weight, c_proj_bias, n_heads, scale):
    """Causal multi-head self-attention: each position averages the values of itself and of those before it.

    Every head compares its query with the keys, ``softmax(scale * q @ k.T)``, and takes the values in that
    proportion. Head h owns columns ``h * D`` to ``(h + 1) * D`` of q, of k and of v.

    Parameters
    ----------
    x : array, shape [..., T, C]
    c_attn_weight : array, shape [C, 3C]
        Makes queries, keys and values, in this order, in one product.
    c_attn_bias : array, shape [3C], or None
    c_proj_weight : array, shape [C, C]
        Mixes the heads' answers.
    c_proj_bias : array, shape [C], or None
    n_heads : int
        Must divide C.
    scale : float
        Multiplies the scores; ``1 / sqrt(C / n_heads)`` in GPT-2.

    Returns
    -------
    float64 array, shape [..., T, C]

    Notes
    -----
    Vaswani et al., "Attention Is All You Need", arXiv:1706.03762, section 3.2.

    Examples
    --------
    With queries and keys of zero the scores are equal, so each position gets the mean of what came so far:

    >>> c_attn = [[0.0, 0.0, 1.0]]
    >>> attention([[3.0], [5.0], [10.0]], c_attn, None, [[1.0]], None, n_heads=1, scale=1.0)
    array([[3.],
           [4.],
           [6.]])
    """
    qkv = linear(x, c_attn_weight, c_attn_bias)  # [..., T, 3C]
    q, k, v = (_split_heads(part, n_heads) for part in np.split(qkv, 3, axis=-1))  # 3 x [..., H, T, D]
    scores = scale * (q @ np.swapaxes(k, -1, -2))  # [..., H, T, T]: row = query, column = key
    past = np.tri(scores.shape[-1], dtype=bool)  # [T, T]: True where key <= query
    mixture = softmax(np.where(past, scores, -np.inf))  # [..., H, T, T]: each row sums to 1
    return linear(_merge_heads(mixture @ v), c_proj_weight, c_proj_bias)  # [..., T, C]


def _split_heads(x, n_heads):
    """Turn [..., T, C] into [..., H, T, D]."""
    x = x.reshape(*x.shape[:-1], n_heads, x.shape[-1] // n_heads)  # [..., T, H, D]
    return np.swapaxes(x, -3, -2)  # [..., H, T, D]


def _merge_heads(x):
    """Turn [..., H, T, D] into [..., T, C]."""
    x = np.swapaxes(x, -3, -2)  # [..., T, H, D]
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])  # [..., T, C]


def mlp(x, c_fc_weight, c_fc_bias, c_proj_weight, c_proj_bias, activation="gelu_tanh"):
    """Multi-layer perceptron: widen, bend, narrow.

    Parameters
    ----------
    x : array, shape [..., C]
    c_fc_weight : array, shape [C, F]
    c_fc_bias : array, shape [F], or None
    c_proj_weight : array, shape [F, C]
    c_proj_bias : array, shape [C], or None
    activation : {"gelu_tanh", "gelu_erf", "relu"}

    Returns
    -------
    float64 array, shape [..., C]

    Examples
    --------
    >>> mlp([2.0], [[1.0, -1.0]], None, [[1.0], [1.0]], [0.5], activation="relu")
    array([2.5])
    """
    hidden = linear(x, c_fc_weight, c_fc_bias)  # [..., F]
    hidden = ACTIVATIONS[activation](hidden)  # [..., F]
    return linear(hidden, c_proj_weight, c_proj_bias)  # [..., C]


def block(x, params, n_heads, scale, activation="gelu_tanh", eps=1e-5):
    """Run one transformer block: attention, then the MLP, each on normalised rows and added back to ``x``.

    Parameters
    ----------
    x : array, shape [..., T, C]
    params : mapping of str to array
        ``ln_1.weight`` [C], ``attn.c_attn.weight`` [C, 3C], ``attn.c_proj.weight`` [C, C],
        ``ln_2.weight`` [C], ``mlp.c_fc.weight`` [C, F], ``mlp.c_proj.weight`` [F, C], and a ``.bias`` for
        each of them; an absent bias counts as 0.
    n_heads, scale
        As in :func:`attention`.
    activation
        As in :func:`mlp`.
    eps : float
        Of both layer norms.

    Returns
    -------
    float64 array, shape [..., T, C]

    Examples
    --------
    Whatever the two layers add is added to ``x`` itself, so with weights of 0 a block changes nothing:

    >>> names = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    >>> shapes = [2, (2, 6), (2, 2), 2, (2, 8), (8, 2)]
    >>> params = {f"{name}.weight": np.zeros(shape) for name, shape in zip(names, shapes)}
    >>> block([[1.0, 2.0], [3.0, 4.0]], params, n_heads=1, scale=1.0)
    array([[1., 2.],
           [3., 4.]])
    """

    def weights(name):
        return params[f"{name}.weight"], params.get(f"{name}.bias")

    def norm(name, x):
        gamma, beta = weights(name)
        return layernorm(x, gamma, 0.0 if beta is None else beta, eps)  # [..., T, C]

    x = np.asarray(x, np.float64)  # [..., T, C]
    x = x + attention(norm("ln_1", x), *weights("attn.c_attn"), *weights("attn.c_proj"), n_heads, scale)
    return x + mlp(norm("ln_2", x), *weights("mlp.c_fc"), *weights("mlp.c_proj"), activation)  # [..., T, C]
