# SPDX-License-Identifier: Apache-2.0
"""The whole model: tokens in, logits out."""

import math

import numpy as np

from .functions import embedding, layernorm, linear
from .layers import block


def forward(config, params, tokens):
    """Compute the logits of the next token at every position.

    Parameters
    ----------
    config : gpt2cy.GPTConfig, or any object with the same attributes
    params : mapping of str to array
        Weights by their Hugging Face GPT-2 names (``wte.weight``, ``h.0.attn.c_attn.weight``, ...), as
        ``model.state_dict()`` returns them.
    tokens : integers, shape [T] or [B, T]
        Ids below ``vocab_size``; T is at most ``block_size``.

    Returns
    -------
    float64 array, shape [T, V] or [B, T, V]

    Raises
    ------
    KeyError
        If a weight that the configuration asks for is missing. Only the layer norms' biases may be absent.
    ValueError
        If an id, or a position, has no row in its table.

    Examples
    --------
    A model without blocks scores each word against the normalised sum of a token's and a position's vector:

    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(n_layers=0, layer_norm_eps=0.0, tie_weights=True, lm_head_bias=False)
    >>> params = {
    ...     "wte.weight": [[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]],
    ...     "wpe.weight": np.zeros((4, 2)),
    ...     "ln_f.weight": np.ones(2),
    ... }
    >>> forward(config, params, [0, 1])
    array([[ 1., -1.,  0.],
           [-1.,  1.,  0.]])
    """
    return _run(config, params, tokens)


def trace(config, params, tokens):
    """Run :func:`forward` and keep what each stage hands to the next.

    Parameters
    ----------
    config, params, tokens
        As in :func:`forward`.

    Returns
    -------
    dict of str to float64 array
        In the order of computation and under the names of ``gpt2cy.GPT.trace``: ``"embed"`` [..., T, C]; of
        each block i the steps of :func:`block` as ``"h.i.ln_1"`` and so on, up to ``"h.i.resid"``, which is
        what it returns; ``"ln_f"`` [..., T, C]; ``"logits"`` [..., T, V].

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> config = SimpleNamespace(n_layers=0, layer_norm_eps=0.0, tie_weights=True, lm_head_bias=False)
    >>> params = {"wte.weight": np.eye(2), "wpe.weight": np.zeros((4, 2)), "ln_f.weight": np.ones(2)}
    >>> list(trace(config, params, [0, 1]))
    ['embed', 'ln_f', 'logits']
    """
    steps = {}
    _run(config, params, tokens, steps)
    return steps


def _run(config, params, tokens, steps=None):
    """Return the logits; keep what lies between in `steps`, if there is one: it takes much more memory."""
    tokens = np.asarray(tokens)  # [..., T]
    positions = np.arange(tokens.shape[-1])  # [T]
    x = embedding(tokens, params["wte.weight"]) + embedding(positions, params["wpe.weight"])  # [..., T, C]
    if steps is not None:
        steps["embed"] = x
    for layer in range(config.n_layers):
        scale = _attention_scale(config, layer)
        own = _block_params(config, params, layer)
        inside = None if steps is None else {}
        x = block(x, own, config.n_heads, scale, config.activation, config.layer_norm_eps, inside)
        if steps is not None:
            steps |= {f"h.{layer}.{name}": step for name, step in inside.items()}
    gamma, beta = params["ln_f.weight"], params.get("ln_f.bias", 0.0)  # [C]
    x = layernorm(x, gamma, beta, config.layer_norm_eps)  # [..., T, C]
    logits = linear(x, *_head(config, params))  # [..., T, V]
    if steps is not None:
        steps |= {"ln_f": x, "logits": logits}
    return logits


def _attention_scale(config, layer):
    """Return what the scores of this layer are multiplied by."""
    scale = 1.0
    if config.scale_attn_weights:
        scale /= math.sqrt(config.n_embd // config.n_heads)
    if config.scale_attn_by_inverse_layer_idx:
        scale /= layer + 1
    return scale


def _block_params(config, params, layer):
    """Select one block's weights, by their names inside the block."""
    norms = ("ln_1", "ln_2")
    linears = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    names = [f"{name}.weight" for name in norms + linears]
    names += [f"{name}.bias" for name in norms if f"h.{layer}.{name}.bias" in params]
    names += [f"{name}.bias" for name in linears if config.bias]
    return {name: params[f"h.{layer}.{name}"] for name in names}


def _head(config, params):
    """Return the output layer's weight [C, V] and its bias [V] or None. Files store the weight as [V, C]."""
    weight = params["wte.weight" if config.tie_weights else "lm_head.weight"]  # [V, C]
    has_bias = config.lm_head_bias
    if has_bias is None:
        has_bias = config.bias and not config.tie_weights
    return np.transpose(weight), params["lm_head.bias"] if has_bias else None  # [C, V], [V]
