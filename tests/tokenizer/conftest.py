# SPDX-License-Identifier: Apache-2.0
"""Vocabularies for the tests: GPT-2's own, and small ones made here."""

import json

import pytest

from gpt2cy import tokenizer


@pytest.fixture(scope="session", params=tokenizer.BACKENDS)
def backend(request):
    """Each back end whose library is installed."""
    pytest.importorskip(request.param)
    return request.param


@pytest.fixture(scope="session")
def gpt2(gpt2_folder, backend):
    """GPT-2's tokenizer by each back end."""
    return tokenizer.load(gpt2_folder, backend)


@pytest.fixture(scope="session")
def both(gpt2_folder):
    """GPT-2's tokenizer by all back ends, to compare them."""
    return [tokenizer.load(gpt2_folder, name) for name in tokenizer.BACKENDS if pytest.importorskip(name)]


VOCAB = {"h": 0, "e": 1, "l": 2, "o": 3, "Ġ": 4, "he": 5, "ll": 6, "<|endoftext|>": 7}


@pytest.fixture
def write_pair(tmp_path):
    """Write vocab.json, merges.txt and other JSON files into a folder."""

    def write(vocab=VOCAB, merges="#version: 0.2\nh e\nl l\n", **others):
        (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
        (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
        for name, content in others.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def write_json(tmp_path):
    """Write a tokenizer.json like GPT-2's, with parts replaced; model=... is merged into the model."""

    def write(model=None, name="tokenizer.json", **parts):
        vocab = {text: i for text, i in VOCAB.items() if i < 7}
        step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        end = {"content": "<|endoftext|>", "id": 7, "special": True, "lstrip": False, "rstrip": False}
        document = {
            "version": "1.0",
            "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
            "padding": None,
            "added_tokens": [{**end, "normalized": False, "single_word": False}],
            "normalizer": None,
            "pre_tokenizer": step,
            "post_processor": step,
            "decoder": step,
            "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", "l l"], **(model or {})},
            **parts,
        }
        (tmp_path / name).write_text(json.dumps(document), encoding="utf-8")
        return tmp_path

    return write
