# SPDX-License-Identifier: Apache-2.0
"""The layers of a transformer block: attention mixes positions, the MLP works on each position alone.

Each takes a dict ``steps`` and fills it, in the order of computation, with what lies between.
"""

import numpy as np

from .functions import gelu_erf, gelu_tanh, layernorm, linear, relu, softmax

ACTIVATIONS = {"gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf, "relu": relu}


def attention(x, c_attn_weight, c_attn_bias, c_proj_weight, c_proj_bias, n_heads, scale, steps=None):
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
    steps : dict, optional
        Takes ``q``, ``k``, ``v`` and ``heads`` [..., H, T, D], ``scores`` and ``weights`` [..., H, T, T],
        ``per_head`` [..., H, T, C], which is what each head adds, and ``out``.

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
    scores = np.where(past, scores, -np.inf)  # [..., H, T, T]
    weights = softmax(scores)  # [..., H, T, T]: each row sums to 1
    heads = weights @ v  # [..., H, T, D]
    out = linear(_merge_heads(heads), c_proj_weight, c_proj_bias)  # [..., T, C]
    if steps is not None:
        parts = np.reshape(c_proj_weight, (n_heads, -1, out.shape[-1]))  # [H, D, C]: each head's rows of it
        steps |= {"q": q, "k": k, "v": v, "scores": scores, "weights": weights, "heads": heads}
        steps |= {"per_head": heads @ parts, "out": out}
    return out


def _split_heads(x, n_heads):
    """Turn [..., T, C] into [..., H, T, D]."""
    x = x.reshape(*x.shape[:-1], n_heads, x.shape[-1] // n_heads)  # [..., T, H, D]
    return np.swapaxes(x, -3, -2)  # [..., H, T, D]


def _merge_heads(x):
    """Turn [..., H, T, D] into [..., T, C]."""
    x = np.swapaxes(x, -3, -2)  # [..., T, H, D]
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])  # [..., T, C]


def mlp(x, c_fc_weight, c_fc_bias, c_proj_weight, c_proj_bias, activation="gelu_tanh", steps=None):
    """Multi-layer perceptron: widen, bend, narrow.

    Parameters
    ----------
    x : array, shape [..., C]
    c_fc_weight : array, shape [C, F]
    c_fc_bias : array, shape [F], or None
    c_proj_weight : array, shape [F, C]
    c_proj_bias : array, shape [C], or None
    activation : {"gelu_tanh", "gelu_erf", "relu"}
    steps : dict, optional
        Takes ``pre`` and ``hidden`` [..., F], before and after the activation, and ``out``.

    Returns
    -------
    float64 array, shape [..., C]

    Examples
    --------
    >>> mlp([2.0], [[1.0, -1.0]], None, [[1.0], [1.0]], [0.5], activation="relu")
    array([2.5])
    """
    pre = linear(x, c_fc_weight, c_fc_bias)  # [..., F]
    hidden = ACTIVATIONS[activation](pre)  # [..., F]
    out = linear(hidden, c_proj_weight, c_proj_bias)  # [..., C]
    if steps is not None:
        steps |= {"pre": pre, "hidden": hidden, "out": out}
    return out


def block(x, params, n_heads, scale, activation="gelu_tanh", eps=1e-5, steps=None):
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
    steps : dict, optional
        Takes ``ln_1``, those of :func:`attention` as ``attn.q`` and so on, ``resid_mid``, ``ln_2``, those of
        :func:`mlp` as ``mlp.pre`` and so on, ``resid``.

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

    inside, within = ({}, {}) if steps is not None else (None, None)
    x = np.asarray(x, np.float64)  # [..., T, C]
    ln_1 = norm("ln_1", x)
    x = x + attention(ln_1, *weights("attn.c_attn"), *weights("attn.c_proj"), n_heads, scale, inside)
    ln_2, resid_mid = norm("ln_2", x), x
    x = x + mlp(ln_2, *weights("mlp.c_fc"), *weights("mlp.c_proj"), activation, within)  # [..., T, C]
    if steps is not None:
        steps |= {"ln_1": ln_1, **{f"attn.{name}": step for name, step in inside.items()}}
        steps |= {"resid_mid": resid_mid, "ln_2": ln_2}
        steps |= {**{f"mlp.{name}": step for name, step in within.items()}, "resid": x}
    return x
