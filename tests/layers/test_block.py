# SPDX-License-Identifier: Apache-2.0
"""Block alone."""

import formula
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy
from gpt2cy import reference


def random_block(config, layer_idx=0):
    """A block with the weights of golden/formula.py, and those weights by their names inside it."""
    block = gpt2cy.Block(config, layer_idx)
    prefix = f"h.{layer_idx}."
    params = {
        name.removeprefix(prefix): values
        for name, values in formula.weights(config).items()
        if name.startswith(prefix)
    }
    for name, values in params.items():
        *path, kind = name.split(".")
        layer = block
        for part in path:
            layer = getattr(layer, part)
        if isinstance(layer, gpt2cy.LayerNorm):
            kind = {"weight": "gamma", "bias": "beta"}[kind]
        setattr(layer, kind, values)
    return block, params


@given(
    n_heads=st.integers(1, 4),
    head_dim=st.integers(1, 20),
    inner=st.none() | st.integers(1, 100),
    activation=st.sampled_from(["gelu_tanh", "gelu_erf", "relu"]),
    bias=st.booleans(),
    inverse=st.booleans(),
    length=st.integers(1, 70),
    batch=st.integers(0, 3),
    eps=st.sampled_from([1e-5, 1e-3]),
)
def test_agrees_with_the_reference(n_heads, head_dim, inner, activation, bias, inverse, length, batch, eps):
    config = gpt2cy.GPTConfig(
        7,
        n_heads * head_dim,
        n_heads,
        3,
        100,
        n_inner=inner,
        activation=activation,
        bias=bias,
        scale_attn_by_inverse_layer_idx=inverse,
        layer_norm_eps=eps,
    )
    block, params = random_block(config, 2)
    shape = (batch, length) if batch else (length,)
    x = np.random.default_rng(length).standard_normal((*shape, config.n_embd), np.float32)
    scale = head_dim**-0.5 / (3 if inverse else 1)
    result = block(x)
    assert result.dtype == np.float32
    expected = reference.block(x, params, n_heads, scale, activation, eps)
    # A row of two numbers that happen to be close has a variance of rounding errors: compare at its size.
    np.testing.assert_allclose(result, expected, rtol=2e-4, atol=5e-5 * max(1.0, np.abs(expected).max()))


def test_attributes():
    block = gpt2cy.Block(gpt2cy.GPTConfig(7, 12, 3, 2, 9, n_inner=20), 1)
    assert block.layer_idx == 1
    assert block.attn.n_heads == 3
    assert block.mlp.c_fc.weight.shape == (12, 20)
    assert block.ln_1.n_embd == block.ln_2.n_embd == 12
    assert repr(block) == "Block(1: Attention(12, n_heads=3), MLP(12, 20, 'gelu_tanh'))"
    for name in ("ln_1", "attn", "ln_2", "mlp", "layer_idx"):
        with pytest.raises(AttributeError):
            setattr(block, name, getattr(block, name))


def test_causal_to_the_bit(same_bits):
    block, _ = random_block(gpt2cy.GPTConfig(7, 24, 3, 1, 100))
    x = np.random.default_rng(1).standard_normal((100, 24), np.float32)
    whole = block(x)
    for length in (1, 64, 65):
        same_bits(block(x[:length]), whole[:length])
    same_bits(block(np.stack([x[::-1], x]))[1], whole)


def test_x_in_any_form(form):
    block, _ = random_block(gpt2cy.GPTConfig(7, 6, 2, 1, 9))
    x = np.arange(24, dtype=np.float32).reshape(4, 6) ** 2 / 8
    np.testing.assert_array_equal(block(form(x)), block(x))


def test_seeds():
    config = gpt2cy.GPTConfig(7, 12, 3, 2, 9)
    same = [gpt2cy.Block(config, seed=1).mlp.c_fc.weight for _ in range(2)]
    np.testing.assert_array_equal(*same)
    assert (gpt2cy.Block(config).mlp.c_fc.weight != gpt2cy.Block(config).mlp.c_fc.weight).any()


@pytest.mark.parametrize(
    "x", [None, "text", [], np.ones(12), np.empty((0, 12)), np.ones((3, 7)), np.ones((1, 1, 1, 12))]
)
def test_what_is_not_rows(x):
    with pytest.raises((TypeError, ValueError), match=r"^x: expected"):
        gpt2cy.Block(gpt2cy.GPTConfig(7, 12, 3, 2, 9))(x)


@pytest.mark.parametrize(
    "name, arguments", [("config", (None,)), ("config", ({"n_embd": 8},)), ("config", (12, 3))]
)
def test_config_is_checked(name, arguments):
    with pytest.raises(TypeError, match=rf"^{name}: expected a GPTConfig"):
        gpt2cy.Block(*arguments)


@pytest.mark.parametrize("layer_idx", [-1, 2, None, 1.0, True, 2**70])
def test_layer_idx_is_checked(layer_idx):
    with pytest.raises((TypeError, ValueError), match=r"^layer_idx: expected an integer from 0 to 1"):
        gpt2cy.Block(gpt2cy.GPTConfig(7, 12, 3, 2, 9), layer_idx)
