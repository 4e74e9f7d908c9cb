# SPDX-License-Identifier: Apache-2.0
"""What is saved loads to the same bits, in every format, over its source and after an interrupted save."""

import os

import formula
import pytest

import gpt2cy
from gpt2cy.weights import atomic, writers

SIZES = (61, 12, 2, 3, 29)


def target(folder, form):
    if form == "gguf":
        pytest.importorskip("gguf")
    return folder / "folder" if form == "safetensors" else folder / "model"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", writers.FORMATS)
def test_round_trip(tmp_path, build, form, bias, same_bits):
    model = build(*SIZES, tie_weights=True, bias=bias)
    path = target(tmp_path, form)
    tokens = formula.tokens(model.config, 2, 29)
    model.save(path, format=form)
    again = gpt2cy.GPT.from_pretrained(path)
    assert again.config.tie_weights
    for name, array in model.state_dict().items():
        same_bits(again.state_dict()[name], array)
    same_bits(again(tokens), model(tokens))
    again.wpe.weight = again.wpe.weight * 2
    again.save(path, format=form)  # over its own source
    same_bits(gpt2cy.GPT.from_pretrained(path)(tokens), again(tokens))


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_an_untied_head(tmp_path, build, form, same_bits):
    model = build(*SIZES, lm_head_bias=False)
    model.save(target(tmp_path, form), format=form)
    again = gpt2cy.GPT.from_pretrained(target(tmp_path, form))
    same_bits(again.lm_head.weight, model.lm_head.weight)
    same_bits(again([1, 2]), model([1, 2]))


@pytest.mark.parametrize("whole", [True, False], ids=["folder", "file"])
def test_loading_finishes_an_interrupted_save(tmp_path, build, monkeypatch, whole, same_bits):
    """The process ends when the record is in place and nothing has been renamed yet."""
    old, new = build(*SIZES, scale=2.0, tie_weights=True), build(61, 12, 4, 3, 29, tie_weights=True)
    old.save_pretrained(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_carry_out", lambda folder: True)
        new.save_pretrained(tmp_path)
    assert atomic.RECORD in os.listdir(tmp_path)
    again = gpt2cy.GPT.from_pretrained(tmp_path if whole else tmp_path / "model.safetensors")
    assert again.config.n_heads == 4
    same_bits(again([1, 2, 3]), new([1, 2, 3]))
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
