# SPDX-License-Identifier: Apache-2.0
"""What `save_pretrained` writes, transformers loads: the same bits of weights, the same logits."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from gpt2cy import GPT, GPTConfig

sys.path.append(str(Path(__file__).parents[1] / "golden"))
import formula
from make_golden import hf_logits, hf_model

SIZES = {"vocab_size": 61, "n_embd": 12, "n_heads": 2, "n_layers": 3, "block_size": 29}
TIED = {"tie_weights": True}
CONFIGS = {
    "tied": GPTConfig(**SIZES, **TIED),
    "untied": GPTConfig(**SIZES, lm_head_bias=False),
    "no_bias": GPTConfig(**SIZES, **TIED, bias=False),
    "n_inner": GPTConfig(**SIZES, **TIED, n_inner=101),
    "gelu_erf": GPTConfig(**SIZES, **TIED, activation="gelu_erf"),
    "relu": GPTConfig(**SIZES, **TIED, activation="relu"),
    "inverse_layer": GPTConfig(**SIZES, **TIED, scale_attn_by_inverse_layer_idx=True),
    "unscaled": GPTConfig(**SIZES, **TIED, scale_attn_weights=False),
    "eps": GPTConfig(**SIZES, **TIED, layer_norm_eps=0.1),
    "tiny": GPTConfig.preset("tiny", **TIED),
}


@pytest.mark.parametrize("max_shard_size", ["5GB", 5000])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_transformers_loads_the_same_model(tmp_path, config, max_shard_size):
    model = GPT(config)
    model.load_state_dict(formula.weights(config))
    model.save_pretrained(tmp_path, max_shard_size=max_shard_size)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(theirs, transformers.GPT2LMHeadModel)
    assert not any(info.values()), info

    ours = model.state_dict()
    state = {name.removeprefix("transformer."): tensor for name, tensor in theirs.state_dict().items()}
    for name, tensor in state.items():
        assert tensor.dtype == torch.float32
        if name == "lm_head.weight" and config.tie_weights:
            name = "wte.weight"
        expected = ours.get(name, np.zeros(tensor.shape, np.float32))  # zeros: a bias of a model without
        assert np.array_equal(tensor.numpy().view(np.uint32), expected.view(np.uint32)), name
        assert name in ours or (name.endswith(".bias") and not config.bias)
    assert set(ours) <= set(state)

    tokens = formula.tokens(config, 2, config.block_size)
    logits = hf_logits(theirs.double().eval(), tokens)
    arrays = {name: tensor.float().numpy() for name, tensor in state.items() if name != "lm_head.weight"}
    if not config.tie_weights:
        arrays["lm_head.weight"] = ours["lm_head.weight"]
    assert np.array_equal(logits, hf_logits(hf_model(config, arrays), tokens))  # the same configuration
    np.testing.assert_allclose(model(tokens), logits, atol=1e-5, rtol=1e-4)


def test_an_untied_head_stays_apart(tmp_path):
    config = CONFIGS["untied"]
    GPT(config, seed=0).save_pretrained(tmp_path)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert not torch.equal(theirs.lm_head.weight, theirs.transformer.wte.weight)


def test_what_transformers_saves_again_is_the_same(tmp_path):
    GPT(CONFIGS["tied"], seed=0).save_pretrained(tmp_path / "ours")
    transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "theirs").state_dict()
    ours = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)
