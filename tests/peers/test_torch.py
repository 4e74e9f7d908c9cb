# SPDX-License-Identifier: Apache-2.0
"""Each layer alone beside torch in float64: the reference to rounding, the float32 engine to its tolerance.

Run by ``make test-peers`` in an environment that has torch.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import gpt2cy
from gpt2cy import reference

EXACT = {"atol": 1e-12, "rtol": 1e-12}
FLOAT32 = {"atol": 1e-5, "rtol": 1e-5}

SHAPES = [(7,), (1, 7), (2, 3, 7)]
ATTENTIONS = [(1, 1, 1), (5, 12, 2), (5, 12, 12), (64, 20, 5), (65, 20, 5), (131, 70, 2)]  # T, C, H


@pytest.fixture
def rng():
    return np.random.default_rng(1729)


def normal(rng, *shape, std=1.0):
    """Random numbers that float32 holds exactly, so that all sides start from the same ones."""
    return rng.normal(0.0, std, shape).astype(np.float32).astype(np.float64)


def t(array):
    return torch.tensor(array, dtype=torch.float64)


def check(expected, from_reference, from_engine):
    """Compare torch's result with the reference's and with the engine's."""
    assert from_engine.dtype == np.float32
    np.testing.assert_allclose(from_reference, expected.numpy(), **EXACT)
    np.testing.assert_allclose(from_engine, expected.numpy(), **FLOAT32)


@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_embedding(rng, shape):
    weight = normal(rng, 11, 6)
    ids = rng.integers(0, 11, shape)
    layer = gpt2cy.Embedding(11, 6)
    layer.weight = weight
    check(F.embedding(torch.tensor(ids), t(weight)), reference.embedding(ids, weight), layer(ids))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("out_features", [1, 5, 33, 70])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear(rng, shape, out_features, has_bias):
    x, weight, bias = normal(rng, *shape), normal(rng, 7, out_features), normal(rng, out_features)
    layer = gpt2cy.Linear(7, out_features, bias=has_bias)
    layer.weight = weight
    if has_bias:
        layer.bias = bias
    expected = F.linear(t(x), t(weight).T, t(bias) if has_bias else None)
    check(expected, reference.linear(x, weight, bias if has_bias else None), layer(x))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("eps", [1e-5, 1e-12, 0.5])
def test_layernorm(rng, shape, eps):
    x, gamma, beta = normal(rng, *shape), normal(rng, 7), normal(rng, 7)
    layer = gpt2cy.LayerNorm(7, eps=eps)
    layer.gamma, layer.beta = gamma, beta
    expected = F.layer_norm(t(x), (7,), t(gamma), t(beta), eps)
    check(expected, reference.layernorm(x, gamma, beta, eps), layer(x))


@pytest.mark.parametrize("width", [1, 15, 16, 17, 64, 100])
def test_layernorm_widths(rng, width):
    x = normal(rng, 4, width)
    expected = F.layer_norm(t(x), (width,), eps=1e-5)
    check(expected, reference.layernorm(x, 1.0, 0.0, 1e-5), gpt2cy.LayerNorm(width)(x))


@pytest.mark.parametrize(
    ("approximate", "twin", "engine"),
    [("tanh", reference.gelu_tanh, "gelu"), ("none", reference.gelu_erf, "gelu_erf")],
)
def test_gelu(approximate, twin, engine):
    x = np.linspace(-12.0, 12.0, 2049).astype(np.float32).astype(np.float64)
    check(F.gelu(t(x), approximate=approximate), twin(x), getattr(gpt2cy, engine)(x))


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 16), (2, 3, 100)])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_softmax(rng, shape, spread):
    x = normal(rng, *shape, std=spread)
    check(F.softmax(t(x), dim=-1), reference.softmax(x), gpt2cy.softmax(x))


@pytest.mark.parametrize(("time", "width", "n_heads"), ATTENTIONS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_causal_attention(rng, time, width, n_heads, batch):
    head_dim = width // n_heads
    x = normal(rng, *batch, time, width)
    shapes = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    weights = [normal(rng, *shape, std=1.0 / math.sqrt(width)) for shape in shapes]
    c_attn, c_attn_bias, c_proj, c_proj_bias = (t(values) for values in weights)

    qkv = t(x) @ c_attn + c_attn_bias  # [..., T, 3C]
    q, k, v = (part.unflatten(-1, (n_heads, head_dim)).transpose(-3, -2) for part in qkv.split(width, dim=-1))
    heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [..., H, T, D]
    expected = heads.transpose(-3, -2).flatten(-2) @ c_proj + c_proj_bias  # [..., T, C]

    layer = gpt2cy.Attention(width, n_heads)
    layer.c_attn.weight, layer.c_attn.bias, layer.c_proj.weight, layer.c_proj.bias = weights
    check(expected, reference.attention(x, *weights, n_heads, 1.0 / math.sqrt(head_dim)), layer(x))


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("gelu_erf", F.gelu),
        ("relu", F.relu),
    ],
)
@pytest.mark.parametrize("n_inner", [None, 5, 37])
def test_mlp(rng, activation, function, n_inner):
    inner = n_inner or 4 * 6
    x, b1, b2 = normal(rng, 4, 6), normal(rng, inner), normal(rng, 6)
    w1, w2 = normal(rng, 6, inner, std=0.5), normal(rng, inner, 6, std=0.5)
    layer = gpt2cy.MLP(6, n_inner, activation=activation)
    layer.c_fc.weight, layer.c_fc.bias, layer.c_proj.weight, layer.c_proj.bias = w1, b1, w2, b2
    expected = function(t(x) @ t(w1) + t(b1)) @ t(w2) + t(b2)
    check(expected, reference.mlp(x, w1, b1, w2, b2, activation), layer(x))
