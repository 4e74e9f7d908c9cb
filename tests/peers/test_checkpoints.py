# SPDX-License-Identifier: Apache-2.0
"""Files that transformers and torch write, loaded here: their weights to the bit, and their logits.

Run by ``make test-peers`` in an environment that has torch and transformers.
"""

import json

import numpy as np
import pytest
import torch
import transformers

import gpt2cy

TOLERANCE = {"atol": 1e-5, "rtol": 1e-4}
SIZES = {"vocab_size": 61, "n_positions": 32, "n_embd": 12, "n_layer": 2, "n_head": 2}
CONFIGS = {
    "plain": {},
    "untied": {"tie_word_embeddings": False},
    "n_inner": {"n_inner": 20},
    "gelu": {"activation_function": "gelu"},
    "relu": {"activation_function": "relu"},
    "gelu_fast": {"activation_function": "gelu_fast"},
    "gelu_pytorch_tanh": {"activation_function": "gelu_pytorch_tanh"},
    "epsilon": {"layer_norm_epsilon": 1e-3},
    "small epsilon": {"layer_norm_epsilon": 1e-12},
    "unscaled": {"scale_attn_weights": False},
    "inverse layer": {"scale_attn_by_inverse_layer_idx": True},
    "upcast": {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True},
    "heads of one": {"n_head": 12},
}


def hf(**fields):
    """A model of random weights everywhere, in eval mode, and its logits' function."""
    torch.manual_seed(len(str(fields)))
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**SIZES, **fields})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5 + (parameter.ndim == 1))
    return model


def same(source, model):
    """The model of a source has the peer's weights and logits."""
    ours = gpt2cy.GPT.from_pretrained(source)
    state = {name.removeprefix("transformer."): a.float().numpy() for name, a in model.state_dict().items()}
    for name, array in ours.named_parameters():
        np.testing.assert_array_equal(array, state[name])
    tokens = np.random.default_rng(0).integers(0, 61, (2, 32))
    with torch.no_grad():
        expected = model.float()(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(ours(tokens), expected, **TOLERANCE)


@pytest.mark.parametrize("name", CONFIGS)
def test_save_pretrained(tmp_path, name):
    model = hf(**CONFIGS[name])
    model.save_pretrained(tmp_path)
    same(tmp_path, model)


def test_save_pretrained_in_shards(tmp_path):
    model = hf()
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    same(tmp_path, model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(tmp_path, dtype):
    model = hf().to(dtype)
    model.save_pretrained(tmp_path)
    same(tmp_path, model)


OLD = {"_use_new_zipfile_serialization": False}


@pytest.mark.parametrize("options", [{}, OLD, {"pickle_protocol": 4}, OLD | {"pickle_protocol": 4}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["state_dict", "parameters", "body"])
def test_torch_save(tmp_path, options, dtype, kind):
    model = hf().to(dtype)
    model.config.save_pretrained(tmp_path)
    state = {
        "state_dict": model.state_dict(),
        "parameters": dict(model.named_parameters()),  # nn.Parameter, not tensors
        "body": model.transformer.state_dict(),  # without prefix and head
    }[kind]
    torch.save(state, tmp_path / "pytorch_model.bin", **options)
    same(tmp_path, model)


def test_the_old_buffers_of_masks(tmp_path):
    model = hf()
    model.config.save_pretrained(tmp_path)
    state = model.state_dict()
    for i in range(2):
        state[f"transformer.h.{i}.attn.bias"] = torch.tril(torch.ones(32, 32, dtype=torch.uint8))[None, None]
        state[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    torch.save(state, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    same(tmp_path, model)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=str)
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_nanogpt(tmp_path, options, prefix):
    """With an optimizer's state, as train.py saves it; its linear weights are [out, in]."""
    model = hf(activation_function="gelu")
    state = {
        prefix + name: (
            a.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else a
        ).contiguous()
        for name, a in model.state_dict().items()
    }
    state[f"{prefix}lm_head.weight"] = state[f"{prefix}transformer.wte.weight"]
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 12, "block_size": 32, "bias": True, "vocab_size": 61}
    checkpoint = {
        "model": {name: a.clone() if "lm_head" not in name else a for name, a in state.items()},
        "optimizer": optimizer.state_dict(),
        "model_args": {**sizes, "dropout": 0.0},
        "iter_num": 3,
        "best_val_loss": torch.tensor(2.5),
        "config": {"learning_rate": 6e-4, "compile": True, "dataset": "openwebtext"},
    }
    for name, a in checkpoint["model"].items():
        plain = name.removeprefix(prefix)
        turned = plain.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
        model.state_dict()[plain].copy_(a.T if turned else a)  # the step above moved the model's own
    torch.save(checkpoint, tmp_path / "ckpt.pt", **options)
    same(tmp_path / "ckpt.pt", model)


def test_a_whole_module_is_refused(tmp_path):
    model = hf()
    model.config.save_pretrained(tmp_path)
    torch.save(model, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="refused: the pickle names 'transformers"):
        gpt2cy.GPT.from_pretrained(tmp_path)


def test_no_field_that_matters_is_missed():
    """Fields of GPT2Config that we do not know are those that change no logit."""
    from gpt2cy.weights import hf_config

    known = {name for names, _ in hf_config._FIELDS.values() for name in names}
    known |= set(hf_config._REFUSED) | {"activation_function", "model_type"}
    others = set(json.loads(transformers.GPT2Config().to_json_string(use_diff=False))) - known
    harmless = {"reorder_and_upcast_attn", "initializer_range", "use_cache", "architectures", "dtype"}
    harmless |= {"resid_pdrop", "embd_pdrop", "attn_pdrop", "transformers_version"}
    harmless |= {"bos_token_id", "eos_token_id", "pad_token_id"}
    harmless |= {name for name in others if name.startswith("summary_")}  # of other heads than ours
    general = set(json.loads(transformers.PretrainedConfig().to_json_string(use_diff=False)))
    assert others - harmless - general == set()
