# SPDX-License-Identifier: Apache-2.0
"""A model and its tokenizer: what is loaded from where, which pairs fit, and which tokens come next."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import gpt2cy
from gpt2cy import tokenizer
from gpt2cy.tokenizer import ByteTokenizer, Tokenizer
from gpt2cy.tokenizer.added import AddedToken

sys.path.append(str(Path(__file__).parent / "generation"))
from greedy import EOS, VOCAB_SIZE, GreedyTokenizer

VOCAB = {"h": 0, "e": 1, "l": 2, "o": 3, "Ġ": 4, "he": 5, "ll": 6, "<|endoftext|>": 7}
BYTES = (256, 12, 2, 2, 16)
TIED = {"tie_weights": True, "lm_head_bias": False}


class Letters(Tokenizer):
    """Ids of the letters a to e, with a gap at 3, and an end of text."""

    def __init__(self, last=5):
        tokens = {0: b"a", 1: b"b", 2: b"c", 4: b"d", last: b"<end>"}
        super().__init__(tokens, [AddedToken("<end>", last, special=True)], "<end>")

    def _encode_plain(self, text):
        return [{"a": 0, "b": 1, "c": 2, "d": 4}[letter] for letter in text]


@pytest.fixture
def save(build, tmp_path):
    """Save a model of so many ids, with a vocabulary beside it if one is given; its folder."""

    def write(vocab_size, vocab=None):
        build(vocab_size, *BYTES[1:], **TIED).save_pretrained(tmp_path)
        if vocab is not None:
            (tmp_path / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
            (tmp_path / "merges.txt").write_text("h e\nl l\n", encoding="utf-8")
        return tmp_path

    return write


# ---- loading ---------------------------------------------------------------------------------------------


def test_the_tokenizer_beside_the_weights(save):
    pytest.importorskip("tokenizers")
    lm = gpt2cy.load(save(8, VOCAB))
    assert lm.encode("hello") == [5, 6, 3]
    assert lm.decode([5, 6, 3]) == "hello"
    assert lm.encode("<|endoftext|>", allow_special=True) == [7]
    assert (lm.model.config.vocab_size, lm.tokenizer.vocab_size) == (8, 8)
    assert "vocab_size=8" in repr(lm)


def test_a_file_of_weights(save):
    """The tokenizer is looked for in the file's folder."""
    pytest.importorskip("tokenizers")
    folder = save(8, VOCAB)
    lm = gpt2cy.load(str(folder / "model.safetensors"))
    assert lm.encode("hello") == [5, 6, 3]
    ids = np.arange(8)
    np.testing.assert_array_equal(lm.model(ids), gpt2cy.GPT.from_pretrained(folder)(ids))


def test_bytes_for_256_ids(save):
    lm = gpt2cy.load(save(256))
    assert isinstance(lm.tokenizer, ByteTokenizer)


def test_a_tokenizer_is_wanted(save):
    folder = save(255)
    with pytest.raises(FileNotFoundError) as error:
        gpt2cy.load(folder)
    for part in (str(folder), "tokenizer.json", "vocab.json and merges.txt", "tokenizer="):
        assert part in str(error.value)


@pytest.mark.parametrize("given", ["object", "path", "text"])
def test_a_tokenizer_is_given(save, tmp_path_factory, given):
    pytest.importorskip("tokenizers")
    folder, other = save(9), tmp_path_factory.mktemp("other")
    (other / "vocab.json").write_text(json.dumps(VOCAB), encoding="utf-8")
    (other / "merges.txt").write_text("h e\nl l\n", encoding="utf-8")
    source = {"object": tokenizer.load(other), "path": other, "text": str(other)}[given]
    lm = gpt2cy.load(folder, tokenizer=source)
    assert lm.encode("hello") == [5, 6, 3]
    assert given != "object" or lm.tokenizer is source


def test_a_tokenizer_larger_than_the_model(save):
    pytest.importorskip("tokenizers")
    with pytest.raises(ValueError, match="tokenizer: .* at most the model's 7 ids, got 8"):
        gpt2cy.load(save(7, VOCAB))


def test_a_tokenizer_is_refused_before_the_weights_are_read(save, monkeypatch):
    def read(*arguments):
        raise AssertionError("the weights are read")

    monkeypatch.setattr(gpt2cy.weights, "load_into", read)
    with pytest.raises(ValueError, match="tokenizer: expected"):
        gpt2cy.load(save(255), tokenizer=ByteTokenizer())


@pytest.mark.parametrize("value", [5, b"x", gpt2cy.GPT])
def test_what_is_no_tokenizer(save, value):
    with pytest.raises(TypeError, match="^tokenizer: expected a Tokenizer or a path, got (int|bytes|type)$"):
        gpt2cy.load(save(256), tokenizer=value)


@pytest.mark.parametrize("place", ["nowhere", ""])
def test_a_tokenizer_that_is_nowhere(save, place):
    with pytest.raises(FileNotFoundError, match=f"^tokenizer: no such file or folder: '{place}'$"):
        gpt2cy.load(save(256), tokenizer=place)


def test_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model"):
        gpt2cy.load(tmp_path)


def test_kinds_of_arguments(build):
    model = build(*BYTES, **TIED)
    with pytest.raises(TypeError, match="model: expected a GPT, got ByteTokenizer"):
        gpt2cy.LanguageModel(ByteTokenizer(), model)
    with pytest.raises(TypeError, match="tokenizer: expected a Tokenizer, got str"):
        gpt2cy.LanguageModel(model, "gpt2")


# ---- next tokens -----------------------------------------------------------------------------------------


@pytest.fixture
def lm(build):
    """A model of 256 ids that reads bytes; its logits are some units apart."""
    return gpt2cy.LanguageModel(build(*BYTES, **TIED), ByteTokenizer())


def probabilities(logits):
    """In float64."""
    shares = np.exp(logits.astype(np.float64) - logits.max())
    return shares / shares.sum()


def test_next_tokens(lm):
    expected = probabilities(lm.model(list(b"To be"))[-1])
    found = lm.next_tokens("To be", 256)
    assert [token.id for token in found] == list(np.argsort(-expected, kind="stable"))
    np.testing.assert_allclose([token.probability for token in found], np.sort(expected)[::-1], rtol=1e-5)
    assert sum(token.probability for token in found) == pytest.approx(1.0, abs=1e-5)
    for text, token, _ in found:
        assert text == bytes([token]).decode("utf-8", "replace")
    assert lm.next_tokens("To be", k=3) == found[:3]
    assert lm.next_tokens("To be") == found[:10]
    assert {type(value) for value in found[0]} == {str, int, float}


def test_ids_without_a_token_never_come(build):
    """A padded vocabulary and a gap: the likeliest ids are not offered, and have no probability."""
    model = build(9, *BYTES[1:])
    bias = np.zeros(9, np.float32)
    bias[[3, 8]] = 100.0
    model.lm_head.bias = bias
    lm = gpt2cy.LanguageModel(model, Letters())
    logits = model([0, 1])[-1]
    assert set(np.argsort(logits)[-2:]) == {3, 8}
    found = lm.next_tokens("ab", 5)
    assert sorted(token.id for token in found) == [0, 1, 2, 4, 5]
    shares = probabilities(logits[[0, 1, 2, 4, 5]])
    np.testing.assert_allclose([token.probability for token in found], np.sort(shares)[::-1], rtol=1e-5)
    with pytest.raises(ValueError, match="k: expected an integer from 1 to 5, got 6"):
        lm.next_tokens("ab", 6)


def test_of_equal_ones_the_smaller_id_is_first(build):
    model = build(6, *BYTES[1:])
    model.lm_head.weight = np.zeros((12, 6), np.float32)
    model.lm_head.bias = np.array([0, 1, 0, 1, 1, 0], np.float32)
    lm = gpt2cy.LanguageModel(model, Letters())
    assert [token.id for token in lm.next_tokens("a", 5)] == [1, 4, 0, 2, 5]


def test_an_empty_prompt_begins_a_document(build):
    lm = gpt2cy.LanguageModel(build(6, *BYTES[1:]), Letters())
    assert lm.next_tokens("", 5) == lm.next_tokens("<end>", 5, allow_special=True)
    expected = probabilities(lm.model([5])[-1][[0, 1, 2, 4, 5]])
    assert lm.next_tokens("", 1)[0].probability == pytest.approx(expected.max(), rel=1e-5)


def test_special_tokens_are_plain_text_unless_asked_for(build):
    lm = gpt2cy.LanguageModel(build(VOCAB_SIZE, *BYTES[1:]), GreedyTokenizer())
    text = "<|endoftext|>"
    assert lm.encode(text) == list(text.encode())
    assert lm.encode(text, allow_special=True) == [EOS]
    for given, ids in (({}, list(text.encode())), ({"allow_special": True}, [EOS])):
        expected = probabilities(lm.model(ids)[-1])
        found = lm.next_tokens(text, 1, **given)[0]
        assert found.id == expected.argmax()
        assert found.probability == pytest.approx(expected.max(), rel=1e-5)


@pytest.mark.parametrize("text", ["a", "a ", "a  ", " a", "a\n", "a\t\n ", " "])
def test_spaces_are_kept(lm, text):
    """Those of the end too."""
    assert lm.encode(text) == list(text.encode())
    expected = probabilities(lm.model(list(text.encode()))[-1])
    found = lm.next_tokens(text, 256)
    assert [token.id for token in found] == list(np.argsort(-expected, kind="stable"))
    np.testing.assert_allclose([token.probability for token in found], np.sort(expected)[::-1], rtol=1e-5)


def test_an_empty_prompt_without_eos(lm):
    with pytest.raises(ValueError, match="text: expected at least one character"):
        lm.next_tokens("")


def test_nothing_is_cut(lm):
    assert lm.next_tokens("x" * 16, 1)
    with pytest.raises(ValueError, match="text: 17 tokens do not fit the block_size of 16"):
        lm.next_tokens("x" * 17)


@pytest.mark.parametrize("k", [0, -1, 257])
def test_k_out_of_range(lm, k):
    with pytest.raises(ValueError, match=f"k: expected an integer from 1 to 256, got {k}"):
        lm.next_tokens("a", k)


@pytest.mark.parametrize(("text", "k"), [(5, 1), (None, 1), (["a"], 1), ("a", 1.5), ("a", True), ("a", None)])
def test_kinds(lm, text, k):
    with pytest.raises(TypeError, match=r"^(text|k): expected"):
        lm.next_tokens(text, k)


def test_logits_that_are_not_finite(lm):
    rows = np.array(lm.model.wte.weight)
    rows[65, 0] = np.nan
    lm.model.wte.weight = rows
    with pytest.raises(ValueError, match="text: the model's logits for it are not finite; it began with "):
        lm.next_tokens("b")
