# SPDX-License-Identifier: Apache-2.0
"""Logits recorded from transformers' ``GPT2LMHeadModel``: the reference and the engine both reproduce them.

``golden/make_golden.py`` wrote the files and says what they hold.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import gpt2cy
from gpt2cy import reference

sys.path.append(str(Path(__file__).parent / "golden"))
import formula

GOLDEN = Path(__file__).parent / "golden"
NAMES = [
    "plain",
    "full_context",
    "one_token",
    "untied",
    "n_inner",
    "inverse_layer",
    "unscaled",
    "unscaled_inverse_layer",
    "gelu_erf",
    "relu",
    "head_dim_1",
    "one_head",
    "eps_1e-5_small",
    "eps_1e-3_small",
    "eps_1e-12_small",
    "long",
]
TOLERANCE = {"atol": 1e-5, "rtol": 1e-4}


class Golden:
    """One file: a configuration, its weights, token ids [B, T] and the logits [B, T, V] they gave."""

    def __init__(self, name):
        with np.load(GOLDEN / f"hf_{name}.npz") as file:
            self.config = gpt2cy.GPTConfig(**json.loads(str(file["config"])))
            self.params = formula.weights(self.config, float(file["scale"]))
            self.tokens = file["tokens"]
            self.logits = file["logits"]
            self.versions = json.loads(str(file["versions"]))

    def reference_logits(self, params):
        return reference.forward(self.config, params, self.tokens)

    def engine_logits(self, params):
        model = gpt2cy.GPT(self.config)
        model.load_state_dict(params)
        return model(self.tokens)


def replace(params, name, values):
    """Copy a state dict with one tensor exchanged."""
    return params | {name: np.ascontiguousarray(values, np.float32)}


def furthest(a, b):
    """Return the largest absolute difference."""
    return np.abs(a - b).max()


@pytest.fixture(scope="module", params=NAMES)
def golden(request):
    return Golden(request.param)


@pytest.fixture(scope="module")
def plain():
    return Golden("plain")


def test_every_file_is_listed():
    assert {path.name for path in GOLDEN.glob("hf_*.npz")} == {f"hf_{name}.npz" for name in NAMES}


def test_files_say_which_versions_wrote_them(golden):
    assert set(golden.versions) == {"torch", "transformers", "numpy"}


def test_reference_agrees(golden):
    np.testing.assert_allclose(golden.reference_logits(golden.params), golden.logits, **TOLERANCE)


def test_engine_agrees(golden):
    logits = golden.engine_logits(golden.params)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, golden.logits, **TOLERANCE)


def test_engine_agrees_on_one_sequence(golden):
    model = gpt2cy.GPT(golden.config)
    model.load_state_dict(golden.params)
    np.testing.assert_allclose(model(golden.tokens[-1]), golden.logits[-1], **TOLERANCE)


# What a loader or a layer might get wrong must be visible in these files, or agreement would prove nothing.


@pytest.mark.parametrize("name", ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"])
@pytest.mark.parametrize("layer", [0, 2])
def test_a_matrix_read_in_the_wrong_order_shows(plain, layer, name):
    key = f"h.{layer}.{name}.weight"
    weight = plain.params[key]  # [in, out]
    wrong = replace(plain.params, key, weight.T.reshape(weight.shape))
    expected = plain.reference_logits(wrong)
    assert furthest(expected, plain.logits) > 1e-2
    np.testing.assert_allclose(plain.engine_logits(wrong), expected, **TOLERANCE)


@pytest.mark.parametrize("name", formula.shapes(Golden("plain").config))
def test_a_forgotten_tensor_shows(plain, name):
    is_gain = ".ln_" in f".{name}" and name.endswith(".weight")
    fresh = np.full_like(plain.params[name], 1.0 if is_gain else 0.0)
    wrong = replace(plain.params, name, fresh)
    expected = plain.reference_logits(wrong)
    assert furthest(expected, plain.logits) > 1e-2
    np.testing.assert_allclose(plain.engine_logits(wrong), expected, **TOLERANCE)


def test_swapped_thirds_of_c_attn_show(plain):
    q, k, v = np.split(plain.params["h.0.attn.c_attn.weight"], 3, axis=1)
    wrong = replace(plain.params, "h.0.attn.c_attn.weight", np.concatenate([k, q, v], axis=1))
    assert furthest(plain.reference_logits(wrong), plain.logits) > 1e-2


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("plain", {"activation": "gelu_erf"}),
        ("gelu_erf", {"activation": "gelu_tanh"}),
        ("relu", {"activation": "gelu_tanh"}),
        ("inverse_layer", {"scale_attn_by_inverse_layer_idx": False}),
        ("unscaled", {"scale_attn_weights": True}),
        ("one_head", {"n_heads": 2}),
        ("eps_1e-3_small", {"layer_norm_eps": 1e-5}),
        ("eps_1e-12_small", {"layer_norm_eps": 1e-5}),
    ],
)
def test_an_ignored_setting_shows(name, change):
    golden = Golden(name)
    ignored = dataclasses.replace(golden.config, **change)
    assert furthest(reference.forward(ignored, golden.params, golden.tokens), golden.logits) > 1e-3
