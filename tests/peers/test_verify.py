# SPDX-License-Identifier: Apache-2.0
"""gpt2cy verify beside transformers: it agrees, and a model that is another one does not."""

import numpy as np
import pytest

import gpt2cy
from gpt2cy import verify
from gpt2cy.kernels import dispatch

pytest.importorskip("transformers")


@pytest.fixture
def folder(build, tmp_path, monkeypatch):
    monkeypatch.setattr(dispatch, "available", lambda: [dispatch.isa()])
    build(61, 36, 3, 2, 80, tie_weights=True).save_pretrained(tmp_path)
    return tmp_path


def beside_transformers(report):
    return next(check for check in report.checks if check.against == "transformers")


def test_agrees(folder):
    check = beside_transformers(verify.verify(folder))
    assert check.passed and 0 < check.difference < check.allowed / 3


def test_another_model_does_not(folder, monkeypatch):
    class Other(gpt2cy.GPT):
        def forward(self, tokens, cache=None):
            return super().forward(np.asarray(tokens) // 2, cache)

    monkeypatch.setattr(verify, "GPT", Other)
    assert beside_transformers(verify.verify(folder)).passed is False


def test_a_single_file_is_left_out(folder):
    check = beside_transformers(verify.verify(folder / "model.safetensors"))
    assert check.passed is None and "only a folder" in check.note
