# SPDX-License-Identifier: Apache-2.0
"""config.json: what is honoured, what is refused, and the way back."""

import math

import pytest

from gpt2cy import GPTConfig
from gpt2cy.weights.hf_config import ACTIVATIONS, from_hf, to_hf

TINY = {"n_layer": 2, "n_head": 2, "n_embd": 12, "vocab_size": 61, "n_positions": 32}


def test_absent_fields_take_their_defaults():
    assert from_hf({}) == from_hf({"model_type": "gpt2"}) == GPTConfig.preset("gpt2")


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("vocab_size", 62, "vocab_size"),
        ("n_embd", 24, "n_embd"),
        ("n_head", 3, "n_heads"),
        ("n_layer", 1, "n_layers"),
        ("n_positions", 9, "block_size"),
        ("n_inner", 20, "n_inner"),
        ("n_inner", None, "n_inner"),
        ("layer_norm_epsilon", 1e-3, "layer_norm_eps"),
        ("layer_norm_epsilon", 1, "layer_norm_eps"),
        ("tie_word_embeddings", False, "tie_weights"),
        ("scale_attn_weights", False, "scale_attn_weights"),
        ("scale_attn_by_inverse_layer_idx", True, "scale_attn_by_inverse_layer_idx"),
    ],
)
def test_fields(field, value, name):
    assert getattr(from_hf({**TINY, field: value}), name) == value


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    assert from_hf({**TINY, "activation_function": name}).activation == ACTIVATIONS[name]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reorder_and_upcast_attn", True),
        ("n_ctx", 7),
        ("attn_pdrop", 0.5),
        ("resid_pdrop", "nonsense"),
        ("eos_token_id", 10**6),
        ("torch_dtype", "float16"),
        ("initializer_range", 3),
        ("a_field_of_tomorrow", [1]),
        ("add_cross_attention", False),
        ("pruned_heads", {}),
    ],
)
def test_fields_that_change_nothing(field, value):
    assert from_hf({**TINY, field: value}) == from_hf(TINY)


def test_other_names_of_the_sizes():
    others = {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 12,
        "max_position_embeddings": 32,
    }
    assert from_hf({**others, "vocab_size": 61}) == from_hf(TINY)
    assert from_hf({**TINY, **others}) == from_hf(TINY)
    with pytest.raises(ValueError, match="n_embd is 12; hidden_size is 24"):
        from_hf({**TINY, "hidden_size": 24})


def test_n_ctx_stands_in_for_absent_positions():
    without = {name: value for name, value in TINY.items() if name != "n_positions"}
    assert from_hf({**without, "n_ctx": 7}).block_size == 7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt_neo"}, "model_type: expected \"gpt2\", got 'gpt_neo'"),
        ({"model_type": None}, "model_type"),
        ({"activation_function": "silu"}, "activation_function: expected one of gelu_new, .* got 'silu'"),
        ({"activation_function": ["gelu"]}, "activation_function: .* got list"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_norm_epsilon": "1e-5"}, "layer_norm_epsilon"),
        ({"layer_norm_epsilon": 0}, "layer_norm_epsilon"),
        ({"layer_norm_epsilon": -1e-5}, "layer_norm_epsilon"),
        ({"layer_norm_epsilon": math.nan}, "layer_norm_epsilon"),
        ({"layer_norm_epsilon": None}, "layer_norm_epsilon"),
        ({"n_head": 5}, r"n_head: expected an integer >= 1 that divides n_embd \(12\), got 5"),
        ({"n_head": 0}, "n_head: .*n_embd"),
        ({"n_head": -2}, "n_head: .*n_embd"),
        ({"n_embd": 0, "n_head": 1}, "n_embd: .*n_head"),
        ({"n_layer": 0}, "n_layer: "),
        ({"n_layer": 2.0}, "n_layer: "),
        ({"n_layer": True}, "n_layer: "),
        ({"n_positions": None}, "n_positions: "),
        ({"n_inner": 0}, "n_inner: "),
        ({"vocab_size": "61"}, "vocab_size: "),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: "),
        ({"n_layer": 10**40}, "n_layer: "),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(ValueError, match=message) as caught:
        from_hf({**TINY, **fields}, "some/config.json")
    assert str(caught.value).startswith("some/config.json: ")


def test_all_refused_fields_are_named_at_once():
    with pytest.raises(ValueError) as caught:
        from_hf({"model_type": "bert", "add_cross_attention": True, "activation_function": "tanh"})
    assert all(name in str(caught.value) for name in ("bert", "add_cross_attention", "tanh"))


@pytest.mark.parametrize("fields", [None, [], "gpt2", 3])
def test_no_object(fields):
    with pytest.raises(ValueError, match="config.json: expected an object"):
        from_hf(fields)


@pytest.mark.parametrize(
    "config",
    [
        GPTConfig.preset("gpt2"),
        GPTConfig(61, 12, 2, 2, 32, lm_head_bias=False, activation="relu", n_inner=20, layer_norm_eps=1e-12),
        GPTConfig(61, 12, 2, 2, 32, tie_weights=True, activation="gelu_erf", scale_attn_weights=False),
        GPTConfig(
            61, 12, 2, 2, 32, tie_weights=True, scale_attn_by_inverse_layer_idx=True, lm_head_bias=False
        ),
    ],
)
def test_there_and_back(config):
    fields = to_hf(config)
    assert from_hf(fields) == GPTConfig(
        **{name: getattr(config, name) for name in config.__dataclass_fields__} | {"lm_head_bias": False}
    )
    assert fields["model_type"] == "gpt2"


def test_special_ids_lie_within_the_vocabulary():
    assert to_hf(GPTConfig.preset("tiny"))["eos_token_id"] is None
    assert "eos_token_id" not in to_hf(GPTConfig.preset("gpt2"))
