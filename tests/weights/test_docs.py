# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/checkpoints.md run, on small files under the names that they use."""

import re
from pathlib import Path

import makers
import pytest
from makers import CONFIG

DOCS = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def test_examples(tmp_path, tensors, monkeypatch, capsys):
    pytest.importorskip("gguf")
    monkeypatch.chdir(tmp_path)
    for name in ("openai-community", "out"):
        (tmp_path / name).mkdir()
    makers.folder(tmp_path / "openai-community" / "gpt2", tensors)
    makers.folder(tmp_path / "my-model", tensors)
    makers.torch_zip(tmp_path / "out" / "ckpt.pt", makers.nanogpt(CONFIG, tensors))
    makers.llmc(tmp_path / "gpt2_124M.bin", CONFIG, tensors)
    makers.gguf(tmp_path / "gpt2.Q8_0.gguf", CONFIG, tensors)
    blocks = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    names = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    said = capsys.readouterr().out
    assert "gelu_erf True" in said
    assert "h.0.attn.c_attn.weight (12, 36) F32" in said
    assert names["wpe"].shape == (32, 12)


def test_every_format_and_field_is_in_the_tables():
    from gpt2cy.weights import hf_config

    text = DOCS.read_text()
    for name in ("safetensors", "pytorch", "nanogpt", "llm.c", "gguf"):
        assert f"| `{name}` |" in text
    for names, _ in hf_config._FIELDS.values():
        assert all(f"`{name}`" in text for name in names)
    for name in (*hf_config.ACTIVATIONS, *hf_config._REFUSED):
        assert f"`{name}`" in text
