# SPDX-License-Identifier: Apache-2.0
"""GPTConfig: presets and their counts, names and shapes, the memory plan, and every refusal."""

import copy
import dataclasses
import doctest
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy.config
from gpt2cy import GPTConfig

SIZES = ("vocab_size", "n_embd", "n_heads", "n_layers", "block_size")
FLAGS = ("bias", "tie_weights", "scale_attn_weights", "scale_attn_by_inverse_layer_idx")
COUNTS = {
    "tiny": 743_040,
    "small": 3_487_744,
    "medium": 11_139_584,
    "gpt2-small": 163_087_441,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "distilgpt2": 81_912_576,
}

configs = st.builds(
    lambda n_heads, head_dim, **fields: GPTConfig(n_heads=n_heads, n_embd=n_heads * head_dim, **fields),
    n_heads=st.integers(1, 8),
    head_dim=st.integers(1, 256),
    vocab_size=st.integers(1, 300),
    n_layers=st.integers(1, 4),
    block_size=st.integers(1, 200),
    n_inner=st.none() | st.integers(1, 100),
    bias=st.booleans(),
    tie_weights=st.booleans(),
    lm_head_bias=st.none() | st.booleans(),
)


def refused(error, *parts, **fields):
    """Assert that these fields are refused with all parts in the message."""
    with pytest.raises(error) as caught:
        GPTConfig(**fields)
    for part in parts:
        assert part in str(caught.value)


def test_fields_and_defaults():
    assert dataclasses.asdict(GPTConfig()) == {
        "vocab_size": 50257,
        "n_embd": 768,
        "n_heads": 12,
        "n_layers": 12,
        "block_size": 1024,
        "n_inner": None,
        "activation": "gelu_tanh",
        "layer_norm_eps": 1e-5,
        "bias": True,
        "tie_weights": False,
        "lm_head_bias": None,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }


def test_the_five_sizes_are_positional_and_the_rest_is_not():
    config = GPTConfig(61, 12, 2, 3, 32)
    assert [getattr(config, name) for name in SIZES] == [61, 12, 2, 3, 32]
    with pytest.raises(TypeError):
        GPTConfig(61, 12, 2, 3, 32, 48)


def test_is_a_frozen_value():
    config = GPTConfig(61, 12, 2, 3, 32)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.n_embd = 24
    assert config == GPTConfig(61, 12, 2, 3, 32) != GPTConfig(61, 12, 2, 3, 33)
    assert len({config, GPTConfig(61, 12, 2, 3, 32)}) == 1


def test_copies_and_replacement():
    config = GPTConfig(61, 12, 2, 3, 32, n_inner=20, tie_weights=True)
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.copy(config) == copy.deepcopy(config) == config
    assert eval(repr(config)) == config
    assert dataclasses.replace(config, n_heads=np.int64(3)).head_dim == 4
    with pytest.raises(ValueError, match="n_heads"):
        dataclasses.replace(config, n_heads=5)


def test_numpy_scalars_become_plain_ones():
    config = GPTConfig(
        np.int32(61),
        np.uint8(12),
        np.int64(2),
        np.int16(3),
        np.uint64(32),
        n_inner=np.int8(20),
        layer_norm_eps=np.float32(0.5),
        bias=np.True_,
        lm_head_bias=np.False_,
    )
    assert all(type(getattr(config, name)) is int for name in (*SIZES, "n_inner"))
    assert type(config.layer_norm_eps) is float
    assert config.bias is True
    assert config.lm_head_bias is False


def test_examples_in_the_documentation_run():
    result = doctest.testmod(gpt2cy.config)
    assert result.attempted > 0
    assert result.failed == 0


# ---- counts, names and shapes


@pytest.mark.parametrize("name", COUNTS)
def test_presets_have_their_published_counts(name):
    config = GPTConfig.preset(name)
    assert config.n_params == COUNTS[name]
    assert sum(config.parameter_counts().values()) == COUNTS[name]
    assert sum(map(math.prod, config.parameter_shapes().values())) == COUNTS[name]


@pytest.mark.parametrize(
    ("name", "overrides", "count"),
    [
        ("tiny", {"tie_weights": True}, 676_992),
        ("tiny", {"lm_head_bias": False}, 742_528),
        ("small", {"tie_weights": True}, 3_356_160),
        ("small", {"lm_head_bias": False}, 3_487_232),
        ("gpt2", {"tie_weights": False}, 163_037_184),
        ("small", {"tie_weights": True, "lm_head_bias": True}, 3_356_160 + 512),
        # Without biases a block loses 9 * n_embd of linear layers and 2 * n_embd betas, ln_f its beta.
        ("gpt2", {"bias": False}, 124_439_808 - 12 * 11 * 768 - 768),
        ("tiny", {"bias": False}, 742_528 - 3 * 11 * 128 - 128),
    ],
)
def test_counts_of_variants(name, overrides, count):
    assert GPTConfig.preset(name, **overrides).n_params == count


@pytest.mark.parametrize(("width", "count"), [(256, 789_760), (768, 7_087_872)])
def test_count_of_one_block(width, count):
    assert GPTConfig(n_embd=width, n_heads=4).parameter_counts()["h.0"] == count


def test_counts_are_in_model_order_and_keep_a_tied_head():
    counts = GPTConfig.preset("gpt2", n_layers=2).parameter_counts()
    assert list(counts) == ["wte", "wpe", "h.0", "h.1", "ln_f", "lm_head"]
    assert counts["wte"] == 50257 * 768
    assert counts["wpe"] == 1024 * 768
    assert counts["ln_f"] == 2 * 768
    assert counts["lm_head"] == 0
    assert GPTConfig.preset("tiny").parameter_counts()["lm_head"] == 512 * 128 + 512


def test_parameter_shapes_are_hugging_face_names_in_model_order():
    config = GPTConfig(61, 12, 2, 1, 32, n_inner=20)
    assert list(config.parameter_shapes().items()) == [
        ("wte.weight", (61, 12)),
        ("wpe.weight", (32, 12)),
        ("h.0.ln_1.weight", (12,)),
        ("h.0.ln_1.bias", (12,)),
        ("h.0.attn.c_attn.weight", (12, 36)),
        ("h.0.attn.c_attn.bias", (36,)),
        ("h.0.attn.c_proj.weight", (12, 12)),
        ("h.0.attn.c_proj.bias", (12,)),
        ("h.0.ln_2.weight", (12,)),
        ("h.0.ln_2.bias", (12,)),
        ("h.0.mlp.c_fc.weight", (12, 20)),
        ("h.0.mlp.c_fc.bias", (20,)),
        ("h.0.mlp.c_proj.weight", (20, 12)),
        ("h.0.mlp.c_proj.bias", (12,)),
        ("ln_f.weight", (12,)),
        ("ln_f.bias", (12,)),
        ("lm_head.weight", (61, 12)),
        ("lm_head.bias", (61,)),
    ]


def test_parameter_shapes_follow_tying_and_bias():
    tied = GPTConfig(61, 12, 2, 2, 32, tie_weights=True).parameter_shapes()
    assert not [name for name in tied if name.startswith("lm_head")]
    assert "h.1.mlp.c_proj.bias" in tied
    bare = GPTConfig(61, 12, 2, 2, 32, bias=False).parameter_shapes()
    assert not [name for name in bare if name.endswith(".bias")]
    assert bare["lm_head.weight"] == (61, 12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("head_bias", [None, False, True])
def test_head_bias_is_resolved(bias, tied, head_bias):
    config = GPTConfig(61, 12, 2, 2, 32, bias=bias, tie_weights=tied, lm_head_bias=head_bias)
    expected = (bias and not tied) if head_bias is None else head_bias
    assert config.lm_head_bias is head_bias
    assert config.has_lm_head_bias is expected
    assert ("lm_head.bias" in config.parameter_shapes()) is expected


def test_derived_sizes():
    config = GPTConfig(61, 12, 3, 2, 32)
    assert (config.head_dim, config.inner, config.n_inner) == (4, 48, None)
    assert GPTConfig(61, 12, 3, 2, 32, n_inner=7).inner == 7


@given(configs)
def test_counts_agree_with_shapes(config):
    shapes = config.parameter_shapes()
    counts = config.parameter_counts()
    assert config.n_params == sum(counts.values()) == sum(map(math.prod, shapes.values()))
    for part, count in counts.items():
        assert count == sum(math.prod(s) for name, s in shapes.items() if name.startswith(part + "."))


# ---- presets


def test_unknown_preset_lists_those_that_exist():
    with pytest.raises(ValueError, match=r"name: expected one of .*, got str 'huge'") as caught:
        GPTConfig.preset("huge")
    for name in COUNTS:
        assert repr(name) in str(caught.value)


def test_preset_name_is_text():
    with pytest.raises(TypeError, match=r"name: .*got None"):
        GPTConfig.preset(None)


def test_preset_overrides_are_checked():
    assert GPTConfig.preset("gpt2", n_layers=1).n_layers == 1
    with pytest.raises(ValueError, match="n_heads"):
        GPTConfig.preset("gpt2", n_heads=5)
    with pytest.raises(TypeError, match="n_head"):
        GPTConfig.preset("gpt2", n_head=12)


# ---- refusals


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [True, 2.0, "12", [12], np.float64(2.0), np.True_, 12j])
def test_sizes_must_be_integers(name, value):
    refused(TypeError, f"{name}: expected an integer", f"got {type(value).__name__}", **{name: value})
    refused(TypeError, f"{name}: expected an integer", "got None", **{name: None})


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -2, -(10**30)])
def test_sizes_must_be_positive(name, value):
    refused(ValueError, f"{name}: expected an integer >= 1", f"got {value}", **{name: value})


@pytest.mark.parametrize(
    ("n_embd", "n_heads", "nearest"),
    [(12, 5, "4 and 6"), (12, 0, "1"), (12, -2, "1"), (12, 13, "12"), (768, 7, "6 and 8"), (1013, 2, "1013")],
)
def test_heads_must_divide_the_width(n_embd, n_heads, nearest):
    message = f"n_heads: expected an integer >= 1 that divides n_embd ({n_embd}), got {n_heads}"
    refused(ValueError, message + f"; nearest valid: {nearest}", n_embd=n_embd, n_heads=n_heads)


def test_zero_width_names_both_fields():
    refused(
        ValueError, "n_embd: expected an integer >= 1 that n_heads (1) divides, got 0", n_embd=0, n_heads=1
    )


def test_heads_of_one_to_256():
    assert GPTConfig(n_embd=12, n_heads=12).head_dim == 1
    assert GPTConfig(n_embd=256, n_heads=1).head_dim == 256
    message = "n_heads: expected n_embd / n_heads (1024 / 2) to be at most 256, got 2; nearest valid: 4"
    refused(ValueError, message, n_embd=1024, n_heads=2)


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), (4.0, TypeError), (True, TypeError)]
)
def test_inner_width(value, error):
    refused(error, "n_inner: expected an integer", str(value), n_inner=value)


@pytest.mark.parametrize("name", [*SIZES, "n_inner"])
@pytest.mark.parametrize("value", [2**60, 2**64, 10**5000], ids=["2**60", "2**64", "10**5000"])
def test_sizes_beyond_63_bits_of_bytes(name, value):
    refused(ValueError, name, "got", **{name: value})


def test_a_product_of_sizes_beyond_63_bits():
    refused(
        ValueError,
        "vocab_size=2147483648",
        "n_embd=536870912",
        "got",
        vocab_size=2**31,
        n_embd=2**29,
        n_heads=2**29,
    )


@pytest.mark.parametrize("value", ["gelu", "GELU_TANH", "", "gelu_tanh "])
def test_unknown_activation(value):
    refused(
        ValueError,
        "activation: expected one of 'gelu_tanh', 'gelu_erf', 'relu', got str",
        value,
        activation=value,
    )


def test_activation_is_text():
    refused(TypeError, "activation: expected one of", "got None", activation=None)


@pytest.mark.parametrize("value", [1e-12, 1e-3, 1, 1.0, np.float32(1e-5), np.int64(1), 10**30])
def test_layer_norm_eps_may_be_any_positive_number(value):
    assert GPTConfig(layer_norm_eps=value).layer_norm_eps == float(value)


@pytest.mark.parametrize(
    "value",
    [0, 0.0, -0.0, -1e-5, math.nan, math.inf, -math.inf, "1e-5", "", 1e-40, 1e39, 10**400, np.float32("nan")],
)
def test_layer_norm_eps_out_of_range(value):
    refused(ValueError, "layer_norm_eps: expected a", "got", layer_norm_eps=value)


@pytest.mark.parametrize("value", [None, True, [1e-5], b"1e-5", 1j])
def test_layer_norm_eps_is_a_number(value):
    refused(TypeError, "layer_norm_eps: expected a finite number > 0, got", layer_norm_eps=value)


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", None, 1.0])
def test_flags_are_true_or_false(name, value):
    refused(TypeError, f"{name}: expected True or False, got", str(value), **{name: value})


@pytest.mark.parametrize("value", [0, 1, "yes"])
def test_head_bias_is_none_or_a_flag(value):
    refused(TypeError, "lm_head_bias: expected True or False, got", lm_head_bias=value)


# ---- memory plan


def test_memory_plan_of_an_untied_model():
    config = GPTConfig(61, 12, 2, 3, 200, n_inner=20)
    plan = config.memory_plan(batch=2, seq_len=65)
    # Panels of 32 columns: 36 -> 64, 12 -> 32, 20 -> 32, 61 -> 64; vectors end at a multiple of 64 bytes.
    block = 4 * (12 * 64 + 12 * 32 + 12 * 32 + 20 * 32) + 6 * 64 + 192 + 128
    embeddings = 2944 + 9600
    assert plan["weights"] == embeddings + 3 * block + 2 * 64 + 4 * 12 * 64 + 256
    assert plan["cache"] == 2 * 128 * 2 * 3 * 12 * 4
    assert plan["logits"] == 2 * 65 * 61 * 4
    assert plan["workspace"] == gpt2cy.config.workspace_bytes(config, 2, 65)
    assert list(plan) == ["weights", "cache", "workspace", "logits", "total"]
    assert plan["total"] == sum(plan[key] for key in list(plan)[:-1])


def test_memory_plan_of_a_tied_model_has_one_packed_embedding():
    tied = GPTConfig(61, 12, 2, 3, 200, tie_weights=True).memory_plan()["weights"]
    untied = GPTConfig(61, 12, 2, 3, 200, lm_head_bias=False).memory_plan()["weights"]
    assert untied - tied == 2944


def test_memory_plan_is_close_to_the_parameters():
    plan = GPTConfig.preset("gpt2").memory_plan()
    assert 0 <= plan["weights"] - 4 * COUNTS["gpt2"] < 1e-3 * plan["weights"]
    assert plan["cache"] == 1024 * 2 * 12 * 768 * 4


def test_memory_plan_grows_linearly_with_the_batch():
    config = GPTConfig.preset("tiny")
    one, three = config.memory_plan(1), config.memory_plan(3)
    assert three["weights"] == one["weights"]
    for purpose in ("cache", "workspace", "logits"):
        assert three[purpose] == 3 * one[purpose]


def test_memory_plan_arguments():
    config = GPTConfig.preset("tiny")
    assert config.memory_plan() == config.memory_plan(np.int64(1), np.int64(128))
    with pytest.raises(ValueError, match="seq_len: 129 tokens do not fit the block_size of 128"):
        config.memory_plan(seq_len=129)
    with pytest.raises(ValueError, match="seq_len: expected an integer >= 1, got 0"):
        config.memory_plan(seq_len=0)
    with pytest.raises(ValueError, match="batch: expected an integer >= 1, got 0"):
        config.memory_plan(batch=0)
    with pytest.raises(TypeError, match=r"batch: expected an integer >= 1, got float 1\.0"):
        config.memory_plan(batch=1.0)


@given(configs, st.integers(1, 5), st.integers(1, 200))
def test_memory_plan_covers_what_is_stored(config, batch, seq_len):
    seq_len = min(seq_len, config.block_size)
    plan = config.memory_plan(batch, seq_len)
    assert all(type(n_bytes) is int and n_bytes > 0 for n_bytes in plan.values())
    assert plan["weights"] >= 4 * config.n_params
    assert plan["cache"] >= batch * seq_len * 2 * config.n_layers * config.n_embd * 4
    assert config.memory_plan()["weights"] == plan["weights"]
