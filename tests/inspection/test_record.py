# SPDX-License-Identifier: Apache-2.0
"""A tapped pass: every point is seen, is right, and changes no bit."""

import numpy as np
import pytest

import gpt2cy
from gpt2cy import reference
from gpt2cy.inspection import record

CONFIGS = [
    gpt2cy.GPTConfig(61, 36, 3, 2, 80),
    gpt2cy.GPTConfig(61, 36, 3, 2, 80, tie_weights=True, activation="gelu_erf", n_inner=50),
    gpt2cy.GPTConfig(61, 36, 3, 2, 80, bias=False, activation="relu"),
]


def with_weights(config):
    model = gpt2cy.GPT(config, seed=3)
    rng = np.random.default_rng(4)
    model.load_state_dict(
        {name: rng.normal(0, 0.3, shape) for name, shape in config.parameter_shapes().items()}
    )
    return model


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("length", [1, 15, 70])
def test_tapped_and_plain_logits_are_the_same_bits(config, length):
    model = with_weights(config)
    tokens = np.random.default_rng(5).integers(0, 61, length)
    np.testing.assert_array_equal(record(model, tokens)["logits"], model.forward(tokens))


def test_points_are_named_in_order_and_right():
    model = with_weights(CONFIGS[0])
    tokens = np.arange(20) % 61
    seen = record(model, tokens)
    in_block = ["ln_1", "attn.qkv", "attn.heads", "attn.out", "resid_mid", "ln_2", "mlp.pre", "mlp.hidden"]
    in_block += ["mlp.out", "resid"]
    blocks = [f"h.{i}.{name}" for i in range(2) for name in in_block]
    assert list(seen) == ["embed", *blocks, "ln_f", "logits"]

    truth = reference.trace(model.config, model.state_dict(), tokens)
    for name, other in [("embed", "embed"), ("h.0.resid", "h.0"), ("h.1.resid", "h.1"), ("ln_f", "ln_f")]:
        np.testing.assert_allclose(seen[name], truth[other], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(seen["h.0.ln_1"], model.blocks[0].ln_1(seen["embed"]))
    np.testing.assert_array_equal(seen["h.0.attn.qkv"], model.blocks[0].attn.c_attn(seen["h.0.ln_1"]))
    np.testing.assert_array_equal(seen["h.0.mlp.hidden"], gpt2cy.gelu(seen["h.0.mlp.pre"]))
    np.testing.assert_array_equal(seen["h.0.resid"], seen["h.0.mlp.out"] + seen["h.0.resid_mid"])


def test_bad_input_is_named():
    model = gpt2cy.GPT(CONFIGS[0], seed=0)
    with pytest.raises(ValueError, match="tokens: expected one sequence"):
        record(model, [[1, 2]])
    with pytest.raises(ValueError, match="tokens"):
        record(model, [61])
    with pytest.raises(TypeError):
        record(None, [1])
