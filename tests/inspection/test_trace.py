# SPDX-License-Identifier: Apache-2.0
"""Traces: every activation is named, is right, is a copy, and changes no bit."""

import math
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest

import gpt2cy
from gpt2cy import reference
from gpt2cy.kernels import dispatch

SIZES = (61, 36, 3, 2, 200)
OPTIONS = {
    "plain": {},
    "tied": {"tie_weights": True, "activation": "gelu_erf", "n_inner": 50},
    "no bias": {"bias": False, "activation": "relu"},
    "unscaled": {"scale_attn_weights": False},
    "inverse": {"scale_attn_by_inverse_layer_idx": True},
}
TOKENS = np.random.default_rng(5).integers(0, 61, 130)
IN_BLOCK = [
    "ln_1", "attn.q", "attn.k", "attn.v", "attn.scores", "attn.weights", "attn.heads", "attn.per_head",
    "attn.out", "resid_mid", "ln_2", "mlp.pre", "mlp.hidden", "mlp.out", "resid",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(build):
    return build(*SIZES)


def test_names_are_in_order_of_computation(model):
    first = [f"h.0.{name}" for name in IN_BLOCK]
    second = [f"h.1.{name}" for name in IN_BLOCK]
    expected = ["embed", "resid.0", *first, "resid.1", *second, "resid.2", "ln_f", "logits"]
    assert model.trace_names() == expected
    assert list(model.trace([1, 2])) == expected


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("length", [1, 15, 70])
def test_everything_is_what_the_reference_says(build, options, length):
    model = build(*SIZES, **options)
    tokens = TOKENS[:length]
    seen = model.trace(tokens)
    truth = reference.trace(model.config, model.state_dict(), tokens)
    assert [name for name in seen if not name.startswith("resid.")] == list(truth)
    for name, expected in truth.items():
        assert seen[name].dtype == np.float32
        limit = 2e-5 * np.abs(expected[np.isfinite(expected)]).max()
        np.testing.assert_allclose(seen[name], expected, rtol=2e-5, atol=limit, err_msg=name)
    for i in range(3):
        assert seen[f"resid.{i}"] is seen["embed" if i == 0 else f"h.{i - 1}.resid"]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("length", [1, 15, 130])
def test_traced_logits_are_the_plain_ones_on_every_isa(build, isa, options, length, same_bits):
    dispatch.use(isa)
    model = build(*SIZES, **options)
    same_bits(model.trace(TOKENS[:length])["logits"], model(TOKENS[:length]))


def test_every_activation_is_the_same_on_every_fused_isa(model, fused_isa, same_bits):
    dispatch.use("ref")
    expected = model.trace(TOKENS)
    dispatch.use(fused_isa)
    for threads in (1, 2):
        gpt2cy.set_num_threads(threads)
        for name, array in model.trace(TOKENS).items():
            same_bits(array, expected[name])


def test_steps_are_the_layers_own(model):
    """To the bit: what a layer gives for the activation before it is the one after it."""
    seen = model.trace(TOKENS)
    for i, block in enumerate(model.blocks):
        at = f"h.{i}"
        np.testing.assert_array_equal(seen[f"{at}.ln_1"], block.ln_1(seen[f"resid.{i}"]))
        qkv = block.attn.c_attn(seen[f"{at}.ln_1"])
        side_by_side = [np.hstack(list(seen[f"{at}.attn.{name}"])) for name in "qkv"]
        np.testing.assert_array_equal(np.hstack(side_by_side), qkv)
        heads = np.hstack(list(seen[f"{at}.attn.heads"]))
        np.testing.assert_array_equal(seen[f"{at}.attn.out"], block.attn.c_proj(heads))
        np.testing.assert_array_equal(seen[f"{at}.resid_mid"], seen[f"{at}.attn.out"] + seen[f"resid.{i}"])
        np.testing.assert_array_equal(seen[f"{at}.mlp.pre"], block.mlp.c_fc(seen[f"{at}.ln_2"]))
        np.testing.assert_array_equal(seen[f"{at}.mlp.hidden"], gpt2cy.gelu(seen[f"{at}.mlp.pre"]))
        np.testing.assert_array_equal(seen[f"{at}.mlp.out"], block.mlp.c_proj(seen[f"{at}.mlp.hidden"]))
        np.testing.assert_array_equal(seen[f"{at}.resid"], seen[f"{at}.mlp.out"] + seen[f"{at}.resid_mid"])
    np.testing.assert_array_equal(seen["logits"], model.lm_head(seen["ln_f"]))


def chain(a, b):
    """Fused multiply-adds in float32, in order, each rounded once."""
    total = np.float32(0)
    for x, y in zip(a, b, strict=True):
        total = np.float32(float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(total))))
    return total


def test_scores_are_one_chain_and_then_the_scale(model, fused_isa):
    dispatch.use(fused_isa)
    seen = model.trace(TOKENS[:20], "h.1.attn.*")
    q, k = seen["h.1.attn.q"], seen["h.1.attn.k"]
    scale = np.float32(1 / math.sqrt(12))
    for head in range(3):
        for query in range(20):
            row = seen["h.1.attn.scores"][head, query]
            expected = [chain(q[head, query], k[head, key]) * scale for key in range(query + 1)]
            np.testing.assert_array_equal(row[: query + 1], expected)
            assert np.isneginf(row[query + 1 :]).all()


def test_weights_times_values_are_the_heads(build):
    """Within rounding: the kernel rescales block by block, the weights are one softmax."""
    for scale in (0.1, 1.0, 10.0):
        model = build(*SIZES, scale=scale)
        seen = model.trace(TOKENS, "h.*.attn.*")
        for i in range(2):
            weights, v, heads = (seen[f"h.{i}.attn.{name}"] for name in ("weights", "v", "heads"))
            np.testing.assert_array_equal(weights, np.where(np.tri(130, dtype=bool), weights, 0))
            np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
            error = np.abs(weights.astype(np.float64) @ v - heads)
            assert error.max() <= 1e-6 * np.abs(v).max()


def test_what_heads_add_makes_up_what_attention_adds(model):
    seen = model.trace(TOKENS, "h.0.attn.*")
    total = seen["h.0.attn.per_head"].astype(np.float64).sum(axis=0) + model.blocks[0].attn.c_proj.bias
    np.testing.assert_allclose(seen["h.0.attn.out"], total, atol=1e-5)
    alone = np.zeros((130, 36), np.float32)
    alone[:, 12:24] = seen["h.0.attn.heads"][1]
    by_layer = model.blocks[0].attn.c_proj(alone) - model.blocks[0].attn.c_proj(np.zeros((1, 36)))
    np.testing.assert_allclose(seen["h.0.attn.per_head"][1], by_layer, atol=1e-5)


# ---- batches, ragged lists, caches


def test_a_batch_is_its_sequences(model, same_bits):
    tokens = np.stack([TOKENS[:70], TOKENS[60:]])
    seen = model.trace(tokens)
    alone = [model.trace(row) for row in tokens]
    for name, array in seen.items():
        assert array.shape == (2, *alone[0][name].shape)
        for row in range(2):
            same_bits(array[row], alone[row][name])
    same_bits(model.trace(tokens[:1], "h.1.attn.k")["h.1.attn.k"], alone[0]["h.1.attn.k"][None])


def test_sequences_of_different_lengths_are_lists(model, same_bits):
    sequences = [TOKENS[:5], TOKENS[5:75].tolist(), [3]]
    seen = model.trace(sequences)
    for i, sequence in enumerate(sequences):
        for name, array in model.trace(sequence).items():
            same_bits(seen[name][i], array)


def test_with_a_cache_new_positions_and_all_keys(model, same_bits):
    whole = model.trace(TOKENS)
    cache = model.new_cache()
    model(TOKENS[:67], cache)
    seen = model.trace(TOKENS[67:], cache=cache)
    assert cache.lengths == [130]
    for name, array in seen.items():
        axis = 1 if ".attn." in name and not name.endswith("out") else 0
        same_bits(array, np.take(whole[name], range(67, 130), axis=axis))
    model.trace([1], "embed", cache=cache)  # the cache is written even where only the beginning is wanted
    again = model.new_cache()
    model(TOKENS, again)
    model([1], again)
    same_bits(model.next_logits([2], cache), model.next_logits([2], again))


def test_slots_of_different_lengths(model, same_bits):
    cache = model.new_cache(2)
    model(np.stack([TOKENS[:70], TOKENS[:70]]), cache)
    cache.truncate([70, 66])
    seen = model.trace([TOKENS[70:73], TOKENS[66:69]], ["*.scores", "*.weights"], cache=cache)
    whole = model.trace(TOKENS, ["*.scores", "*.weights"])
    for name, array in seen.items():
        assert array.shape == (2, 3, 3, 73)
        same_bits(array[0], whole[name][:, 70:73, :73])
        same_bits(array[1], whole[name][:, 66:69, :73])
    caches = [model.new_cache(), model.new_cache()]
    model.forward_many([TOKENS[:70], TOKENS[:66]], caches)
    seen = model.trace([TOKENS[70:73], TOKENS[66:70]], "h.1.attn.weights", cache=caches)["h.1.attn.weights"]
    assert [array.shape for array in seen] == [(3, 3, 73), (3, 4, 70)]
    same_bits(seen[1], whole["h.1.attn.weights"][:, 66:70, :70])


# ---- what was asked for


def test_patterns(model):
    assert list(model.trace([1], "h.*.attn.weights")) == ["h.0.attn.weights", "h.1.attn.weights"]
    assert list(model.trace([1], ["logits", "h.1.mlp.*", "embed"])) == [
        "embed", "h.1.mlp.pre", "h.1.mlp.hidden", "h.1.mlp.out", "logits",
    ]  # fmt: skip
    assert list(model.trace([1], "resid.*")) == ["resid.0", "resid.1", "resid.2"]
    assert list(model.trace([1], "h.[1].attn.?")) == ["h.1.attn.q", "h.1.attn.k", "h.1.attn.v"]


@pytest.mark.parametrize("name", ["embed", "h.0.attn.weights", "h.1.ln_1", "h.1.resid", "ln_f", "logits"])
def test_one_name_alone_is_the_same(model, name, same_bits):
    """Also where the pass ends with it."""
    same_bits(model.trace(TOKENS, name)[name], model.trace(TOKENS)[name])


def test_only_what_was_asked_for_takes_memory(build):
    model = build(4000, 32, 2, 3, 512)
    tokens = np.arange(400)
    model.trace(tokens, "h.1.mlp.hidden")
    tracemalloc.start()
    try:
        model.trace(tokens, "h.1.mlp.hidden")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 400 * 128 * 4 <= peak < 2 * 400 * 128 * 4  # logits would take 6 MB, attention's weights 1.3 MB


def test_what_does_not_fit_is_refused_before(model, monkeypatch):
    monkeypatch.setattr("gpt2cy.kernels.host.available_memory", lambda: 74 << 20)
    tokens = np.stack([TOKENS] * 200)
    assert model.trace(tokens, "h.0.ln_1")["h.0.ln_1"].shape == (200, 130, 36)
    with pytest.raises(MemoryError, match=r"^tokens: .*activations 77 MiB.*reduce .* what is traced"):
        model.trace(tokens, "h.*.attn.scores")


def test_arrays_are_the_callers(model):
    seen = model.trace(TOKENS[:4])
    kept = {name: array.copy() for name, array in seen.items()}
    for array in seen.values():
        assert array.flags.owndata
    seen["h.0.resid"][...] = 7
    again = model.trace(TOKENS[:4])
    for name, array in kept.items():
        np.testing.assert_array_equal(again[name], array)


# ---- what it costs those who do not look

FORWARDS = """
import sys, gpt2cy
gpt2cy.set_num_threads(1)
model = gpt2cy.GPT(gpt2cy.GPTConfig(61, 32, 2, 4, 32), seed=0)
for _ in range(int(sys.argv[1])):
    model.next_logits([3])
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind here")
def test_a_pass_that_nobody_sees_pays_for_null_tests_alone(tmp_path):
    """Instructions of a block outside of kernels: some 500 with 13 null tests; a visit would be thousands."""
    environment = os.environ | {
        "GPT2CY_ISA": "base", "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip

    def counts(n):
        out = tmp_path / f"callgrind.{n}"
        watched = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
        command = [*watched, sys.executable, "-c", FORWARDS, str(n)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        command = ["callgrind_annotate", "--threshold=100", out]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = dict.fromkeys(("layers", "inspection"), 0)
        for count, folder in re.findall(r"^ *([\d,]+) .*\[.*/gpt2cy/(\w+)/[^/]+\]$", text, re.MULTILINE):
            if folder in found:
                found[folder] += int(count.replace(",", ""))
        return found

    once, often = counts(1), counts(101)
    assert often["inspection"] == once["inspection"]
    assert 100 < (often["layers"] - once["layers"]) / 100 / 4 < 1000


# ---- bad input


def test_unmatched_patterns_are_named_with_their_neighbours(model):
    with pytest.raises(ValueError, match=r"^names: 'h\.0\.mlp\.hiden' matches no .*h\.0\.mlp\.hidden"):
        model.trace([1], ["embed", "h.0.mlp.hiden"])
    with pytest.raises(ValueError, match=r"^names: 'h\.2\.\*' matches no"):
        model.trace([1], "h.2.*")
    with pytest.raises(ValueError, match=r"^names: '' matches no .*trace_names\(\)"):
        model.trace([1], "")
    with pytest.raises(ValueError, match=r"^names: expected at least one"):
        model.trace([1], [])
    for names in (3, [3], None, [None]):
        with pytest.raises(TypeError, match=r"^names: expected"):
            model.trace([1], names)


def test_bad_tokens_and_caches_are_named(model):
    for tokens in ([61], [], [[1], []], [[1, 2], [61]], [0] * 201):
        with pytest.raises(ValueError, match=r"^tokens"):
            model.trace(tokens)
    for tokens in ("abc", None, [1.5], [[1], [2, 3.5]]):
        with pytest.raises(TypeError, match=r"^tokens"):
            model.trace(tokens)
    with pytest.raises(TypeError, match=r"^cache: expected a KVCache"):
        model.trace([1], cache=3)
    with pytest.raises(ValueError, match=r"^cache: expected one slot"):
        model.trace([1], cache=model.new_cache(2))
    with pytest.raises(ValueError, match=r"^caches: expected 2"):
        model.trace([[1], [2, 3]], cache=[model.new_cache()])


def test_a_cache_that_is_full_stays_as_it_was(model):
    cache = model.new_cache(capacity=10)
    model(TOKENS[:8], cache)
    with pytest.raises(ValueError, match="do not fit"):
        model.trace(TOKENS[:3], "embed", cache=cache)
    assert cache.lengths == [8]
