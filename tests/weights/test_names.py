# SPDX-License-Identifier: Apache-2.0
"""Names and shapes: what may differ, what may not, and that one error says it all."""

import dataclasses
import json
import warnings

import makers
import numpy as np
import pytest
from makers import CONFIG, SIZES

import gpt2cy
from gpt2cy import GPT, GPTConfig
from gpt2cy.weights import names, open_checkpoint

UNTIED = GPTConfig(**SIZES, lm_head_bias=False)


def load(tmp_path, tensors, **fields):
    return GPT.from_pretrained(makers.folder(tmp_path, tensors, **fields))


def refused(tmp_path, tensors, **fields):
    with pytest.raises(ValueError) as caught:
        load(tmp_path, tensors, **fields)
    assert str(tmp_path / "model.safetensors") in str(caught.value)
    return str(caught.value)


# ---- prefixes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix", ["", "transformer.", "module.transformer.", "_orig_mod.module.", "_orig_mod."]
)
def test_prefixes_may_be_there_or_not(tmp_path, tensors, gives, prefix):
    gives(makers.folder(tmp_path, makers.prefixed(tensors, prefix)), CONFIG, tensors)


def test_a_prefixed_body_and_a_bare_head(tmp_path, gives):
    tensors = makers.weights(UNTIED)
    head = tensors["lm_head.weight"]
    named = makers.prefixed({n: a for n, a in tensors.items() if n != "lm_head.weight"}) | {
        "lm_head.weight": head
    }
    gives(makers.folder(tmp_path, named, tie_word_embeddings=False), UNTIED, tensors)


def test_the_same_tensor_under_two_names(tmp_path, tensors):
    message = refused(tmp_path, {**tensors, "transformer.wte.weight": tensors["wte.weight"] + 1})
    assert "twice: " in message and " transformer.wte.weight " in message and " wte.weight" in message


def test_a_wrapper_on_some_names_only(tmp_path, tensors):
    wrapped = makers.prefixed(tensors, "module.")
    wrapped["wte.weight"] = wrapped.pop("module.wte.weight")
    message = refused(tmp_path, wrapped)
    assert "unexpected: module.h.0" in message and "to try: take 'module.' off all names" in message


# ---- masks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float32"])
def test_buffers_of_masks_are_ignored(tmp_path, tensors, gives, dtype):
    mask = np.tril(np.ones((1, 1, 32, 32))).astype(dtype)
    masks = {f"h.{i}.attn.bias": mask for i in range(2)}
    masks |= {f"h.{i}.attn.masked_bias": np.array(-1e4, np.float32) for i in range(2)}
    folder = makers.folder(tmp_path, makers.prefixed({**masks, **tensors}))
    gives(folder, CONFIG, tensors)
    with open_checkpoint(folder) as checkpoint:
        assert sorted(checkpoint.ignored) == sorted(makers.prefixed(masks))


def test_a_misspelt_name_is_not_ignored(tmp_path, tensors):
    tensors["h.0.attn.c_atn.bias"] = tensors.pop("h.0.attn.c_attn.bias")
    message = refused(tmp_path, tensors)
    assert "missing: h.0.attn.c_attn.bias [36]" in message
    assert "unexpected: h.0.attn.c_atn.bias [36]" in message


# ---- missing, unexpected, misshapen ----------------------------------------------------------------------


@pytest.mark.parametrize("name", makers.weights())
def test_each_missing_tensor_is_named(tmp_path, tensors, name):
    del tensors[name]
    message = refused(tmp_path, tensors)
    assert message.count("missing: ") == 1 and f"missing: {name} " in message


@pytest.mark.parametrize("name", makers.weights())
def test_each_misshapen_tensor_is_named(tmp_path, tensors, name):
    shape = list(tensors[name].shape)
    wrong = [*shape[:-1], shape[-1] + 1]
    tensors[name] = np.zeros(wrong, np.float32)
    message = refused(tmp_path, tensors)
    assert f"{name}: expected {shape} (" in message and f", found {wrong}" in message
    assert message.count(": expected ") == 1


@pytest.mark.parametrize("dtype", ["int64", "int8", "bool", "uint8"])
def test_numbers_that_are_no_floats(tmp_path, tensors, dtype):
    tensors["h.1.mlp.c_fc.weight"] = tensors["h.1.mlp.c_fc.weight"].astype(dtype)
    found = {"int64": "I64", "int8": "I8", "bool": "BOOL", "uint8": "U8"}[dtype]
    message = refused(tmp_path, tensors)
    assert f"h.1.mlp.c_fc.weight: expected floating-point numbers, found {found}" in message


def test_all_problems_come_at_once(tmp_path, tensors):
    del tensors["ln_f.bias"]
    tensors["score.weight"] = np.zeros((2, 12), np.float32)
    tensors["h.0.ln_1.weight"] = tensors["h.0.ln_1.weight"][:5]
    tensors["h.1.attn.c_proj.bias"] = tensors["h.1.attn.c_proj.bias"].astype(np.int64)
    message = refused(tmp_path, tensors)
    for part in (
        "missing: ln_f.bias [12]",
        "unexpected: score.weight [2, 12]",
        "h.0.ln_1.weight: expected [12] (n_embd), found [5]",
        "h.1.attn.c_proj.bias: expected floating",
    ):
        assert part in message  # fmt: skip


def test_a_message_stays_short(tmp_path, tensors):
    message = refused(
        tmp_path, {**tensors, **{f"{'x' * 500}.{i}": np.zeros(1, np.float32) for i in range(5000)}}
    )
    assert len(message) < 5000 and "unexpected: and 4990 more" in message


# ---- shapes that people meet -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["attn.c_attn.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"])
def test_nothing_is_transposed_by_guess(tmp_path, tensors, name):
    tensors[f"h.0.{name}"] = tensors[f"h.0.{name}"].T
    message = refused(tmp_path, tensors)
    found = list(tensors[f"h.0.{name}"].shape)
    assert f"h.0.{name}: expected {found[::-1]} (" in message and f"found {found}" in message
    assert "weights of this format are [in, out]: transpose them" in message


@pytest.mark.parametrize("name", ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"])
def test_every_transpose_matters(tensors, name):
    """The mutation that the comparisons of weights must catch: a doubled or forgotten transpose."""
    right, wrong = GPT(CONFIG), GPT(CONFIG)
    right.load_state_dict(tensors)
    array = tensors[f"h.0.{name}.weight"]
    wrong.load_state_dict({**tensors, f"h.0.{name}.weight": array.T.reshape(array.shape)})
    assert np.abs(right(makers.IDS) - wrong(makers.IDS)).max() > 1e-2


@pytest.mark.parametrize("rows", [60, 62])
def test_the_vocabulary_must_be_the_rows_of_wte(tmp_path, tensors, rows):
    tensors["wte.weight"] = np.zeros((rows, 12), np.float32)
    message = refused(tmp_path, tensors)
    assert f"wte.weight: expected [61, 12] (vocab_size, n_embd), found [{rows}, 12]" in message
    assert "to try: vocab_size" in message


def test_the_heads_rows_must_be_those_of_wte(tmp_path):
    tensors = makers.weights(UNTIED)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:60]
    for tied in (True, False):
        message = refused(tmp_path, tensors, tie_word_embeddings=tied)
        assert "lm_head.weight: expected [61, 12] (vocab_size, n_embd), found [60, 12]" in message


def test_n_inner_that_does_not_fit(tmp_path, tensors):
    message = refused(tmp_path, tensors, n_inner=20)
    assert "h.0.mlp.c_fc.weight: expected [12, 20] (n_embd, n_inner or 4 n_embd), found [12, 48]" in message


@pytest.mark.parametrize("n_inner", [20, 48, None])
def test_n_inner(tmp_path, gives, n_inner):
    config = dataclasses.replace(CONFIG, n_inner=n_inner)
    tensors = makers.weights(config)
    gives(makers.folder(tmp_path, tensors, n_inner=n_inner), config, tensors)


def test_a_vocabulary_grown_by_added_tokens(tmp_path, gives):
    config = dataclasses.replace(CONFIG, vocab_size=62)
    tensors = makers.weights(config)
    model = gives(makers.folder(tmp_path, tensors, vocab_size=62, eos_token_id=99), config, tensors)
    assert model([61]).shape == (1, 62)
    with pytest.raises(ValueError, match="id 62 at .* outside the vocabulary of 62"):
        model([62])


@pytest.mark.parametrize("n_layer", [1, 3, 10**9])
def test_a_number_of_blocks_that_does_not_fit(tmp_path, tensors, n_layer):
    message = refused(tmp_path, tensors, n_layer=n_layer)
    assert "n_layer" in message and str(n_layer) in message


# ---- the head --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": True}])
def test_a_tied_head_is_not_in_the_file(tmp_path, tensors, gives, fields):
    gives(makers.folder(tmp_path, tensors, **fields), CONFIG, tensors)


def test_an_untied_head_that_is_not_in_the_file(tmp_path, tensors):
    message = refused(tmp_path, tensors, tie_word_embeddings=False)
    assert "missing: lm_head.weight [61, 12]" in message
    assert "to try: set tie_word_embeddings to true" in message


def test_a_separate_head(tmp_path, gives):
    tensors = makers.weights(UNTIED)
    gives(makers.folder(tmp_path, tensors, tie_word_embeddings=False), UNTIED, tensors)


def test_a_tied_head_that_is_in_the_file_too(tmp_path, tensors, gives):
    folder = makers.folder(tmp_path, {**tensors, "lm_head.weight": tensors["wte.weight"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gives(folder, CONFIG, tensors)


def test_a_tied_head_that_differs(tmp_path, tensors, gives):
    other = tensors["wte.weight"].copy()
    other[60, 11] += 1
    folder = makers.folder(tmp_path, {**tensors, "lm_head.weight": other})
    with pytest.warns(UserWarning, match=r"lm_head\.weight differs from wte\.weight.*tie_word_embeddings"):
        gives(folder, CONFIG, tensors)


def test_only_the_tied_head_is_in_the_file(tmp_path, tensors, gives):
    named = {"lm_head.weight" if n == "wte.weight" else n: a for n, a in tensors.items()}
    gives(makers.folder(tmp_path, named), CONFIG, tensors)


def test_a_bias_of_the_head_has_no_place(tmp_path, tensors):
    message = refused(tmp_path, {**tensors, "lm_head.bias": np.ones(61, np.float32)})
    assert "unexpected: lm_head.bias [61]" in message


# ---- configuration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(False, False), (True, False), (True, True), (False, True)])
def test_scale_flags(tmp_path, tensors, gives, flags):
    fields = dict(zip(("scale_attn_weights", "scale_attn_by_inverse_layer_idx"), flags, strict=True))
    config = dataclasses.replace(CONFIG, **fields)
    gives(makers.folder(tmp_path, tensors, **fields, reorder_and_upcast_attn=True), config, tensors)


@pytest.mark.parametrize("text", ["", "{", "[1]", "nonsense", '{"n_layer": 1e999}', "[" * 100_000])
def test_a_config_that_is_none(tmp_path, tensors, text):
    makers.folder(tmp_path, tensors)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match="config.json: "):
        GPT.from_pretrained(tmp_path)


def test_no_config(tmp_path, tensors):
    makers.folder(tmp_path, tensors)
    (tmp_path / "config.json").unlink()
    with pytest.raises(
        FileNotFoundError, match="config.json: no such file, but .*model.safetensors needs one"
    ):
        GPT.from_pretrained(tmp_path)


def test_a_refused_field_names_the_file(tmp_path, tensors):
    makers.folder(tmp_path, tensors, add_cross_attention=True)
    with pytest.raises(ValueError, match="config.json: add_cross_attention"):
        GPT.from_pretrained(tmp_path)


def test_a_subclass_comes_back_as_itself(tmp_path, tensors):
    class Mine(gpt2cy.GPT):
        pass

    assert type(Mine.from_pretrained(makers.folder(tmp_path, tensors))) is Mine


def test_gguf_names():
    for name in UNTIED.parameter_shapes():
        assert names.from_gguf(makers.gguf_name(name)) == name


def test_counts(tmp_path):
    """What a file holds is what a configuration counts."""
    for fields, count in (
        ({}, 124_439_808),
        ({"n_layer": 6}, 81_912_576),
        ({"tie_word_embeddings": False}, 163_037_184),
    ):
        (tmp_path / "config.json").write_text(json.dumps(fields))
        config = gpt2cy.weights.hf_config.from_hf(json.loads((tmp_path / "config.json").read_text()))
        assert config.n_params == count
