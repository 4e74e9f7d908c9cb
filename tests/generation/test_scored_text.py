# SPDX-License-Identifier: Apache-2.0
"""A text's score: the table, its sums, words, and what JSON takes."""

import json
import math

import numpy as np
import pytest
from greedy import EOS, VOCAB_SIZE, GreedyTokenizer

import gpt2cy
from gpt2cy.tokenizer import ByteTokenizer

TEXT = "To be, or not to be né  the question\n"


def test_the_table(lm):
    score = lm.score(TEXT, top=3)
    ids, offsets = lm.tokenizer.encode_with_offsets(TEXT)
    scores = lm.model.score_many([ids], top=3)[0]
    assert len(score) == len(ids) == score.n_scored + 1
    np.testing.assert_array_equal(score.ids, ids)
    np.testing.assert_array_equal(score.offsets, offsets)
    np.testing.assert_array_equal(score.logprobs[1:], scores.logprobs)
    np.testing.assert_allclose(score.surprisals[1:], -scores.logprobs / math.log(2), rtol=1e-6)
    np.testing.assert_allclose(score.entropies[1:], scores.entropies / math.log(2), rtol=1e-6)
    np.testing.assert_array_equal(score.ranks[1:], scores.ranks)
    np.testing.assert_array_equal(score.top_ids[1:], scores.top_ids)
    assert math.isnan(score.logprobs[0]) and score.ranks[0] == -1 and (score.top_ids[0] == -1).all()
    for i, row in enumerate(score):
        assert row == score[i]
        assert row[:4] == (ids[i], lm.tokenizer.token_text(ids[i]), *offsets[i])
    assert score[0][4:] == (None, None, None, None, ())
    assert score[-1] == score[len(score) - 1]
    row = score[3]
    assert (row.logprob, row.rank) == (score.logprobs[3], score.ranks[3])
    assert [choice.id for choice in row.top] == score.top_ids[3].tolist()
    assert [choice.text for choice in row.top] == [lm.tokenizer.token_text(i) for i in score.top_ids[3]]
    with pytest.raises(IndexError):
        score[len(score)]


def test_sums(lm):
    score = lm.score(TEXT)
    n = score.n_scored
    assert score.logprob == math.fsum(score.logprobs[1:].tolist())
    assert score.bits == pytest.approx(-score.logprob / math.log(2), rel=1e-12)
    first = len(lm.tokenizer.decode_bytes(score.ids[:1]))
    assert score.n_bytes == len(TEXT.encode()) - first
    assert score.bits_per_byte == pytest.approx(score.bits / score.n_bytes, rel=1e-12)
    assert score.perplexity == pytest.approx(math.exp(-score.logprob / n), rel=1e-12)
    assert score.perplexity == lm.model.perplexity(score.ids)


def test_bos(lm):
    """The first token is scored behind the end of the document before; the others see it too."""
    score = lm.score(TEXT, bos=True)
    assert score.n_scored == len(score)
    expected = lm.model.token_logprobs([EOS, *lm.encode(TEXT)])
    np.testing.assert_array_equal(score.logprobs, expected)
    assert score.bits_per_byte == pytest.approx(score.bits / len(TEXT.encode()), rel=1e-12)
    assert score[0].logprob == expected[0]


def test_bos_without_such_a_token(build):
    lm = gpt2cy.LanguageModel(build(256, 24, 3, 2, 40), ByteTokenizer())
    with pytest.raises(ValueError, match="bos: the tokenizer has no token to put before a text"):
        lm.score("ab", bos=True)
    assert lm.score("ab").n_scored == 1


def test_several_texts_are_each_alone(lm):
    texts = [TEXT, "x", "To be " * 30, "né"]
    for score, text in zip(lm.score(texts, top=2, stride=7), texts, strict=True):
        alone = lm.score(text, top=2, stride=7)
        assert score.to_dict() == alone.to_dict()


def test_long_texts_use_windows(lm):
    text = "To be or not to be, " * 20
    score = lm.score(text, stride=5)
    assert len(score) > 3 * 40
    np.testing.assert_array_equal(score.logprobs[1:], lm.model.token_logprobs(score.ids, stride=5))


def test_progress_adds_up_to_what_is_scored(lm):
    """Windows of a long text are told of as they come; so are texts that begin alike, which run apart."""
    for texts in ([TEXT * 40], [TEXT * 2 + end for end in "abc"], ["x"]):
        counts = []
        scores = lm.score(texts, progress=counts.append)
        assert sum(counts) == sum(score.n_scored for score in scores)
        assert len(counts) > 3 or len(texts[0]) < len(TEXT) * 40


def test_one_token(lm):
    score = lm.score("x")
    assert (len(score), score.n_scored, score.bits) == (1, 0, 0.0)
    assert math.isnan(score.perplexity) and math.isnan(score.bits_per_byte)
    assert json.loads(json.dumps(score.to_dict(), allow_nan=False))["perplexity"] is None


def test_special_tokens_are_plain_text_unless_allowed(lm):
    text = "a<|endoftext|>b"
    assert EOS not in lm.score(text).ids
    assert lm.score(text, allow_special=True).ids.tolist() == [97, EOS, 98]


def test_load_06_alternatives_without_a_token(build):
    """A padded vocabulary: its rows count, and have no text; a limit leaves them out."""
    model = build(VOCAB_SIZE + 3, 24, 3, 2, 40)
    bias = np.zeros(VOCAB_SIZE + 3, np.float32)
    bias[VOCAB_SIZE + 1] = 30.0
    model.lm_head.bias = bias
    lm = gpt2cy.LanguageModel(model, GreedyTokenizer())
    row = lm.score("To be", top=2)[1]
    assert row.top[0][:2] == (VOCAB_SIZE + 1, None) and row.top[1].text is not None
    limited = lm.score("To be", top=2, vocab_limit=lm.tokenizer.vocab_size)[1]
    assert limited.top[0].id == row.top[1].id
    assert limited.logprob > row.logprob + 20


# ---- words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("To be, or not", [("To", 0, 2, 1), ("be,", 2, 7, 2), ("or", 7, 9, 2), ("not", 9, 13, 1)]),
        ("To be", [("To", 0, 2, 1), ("be", 2, 5, 1)]),
        ("  To", [("To", 0, 4, 2)]),  # whitespace in front belongs to the first word
        ("To \n", [("To", 0, 4, 3)]),  # and at the end to the last
        ("   ", [("", 0, 3, 2)]),
        ("x, y", [("x,", 0, 3, 2), ("y", 3, 4, 1)]),  # a token that ends in a space
        ("a the question", [("a", 0, 1, 1), ("the question", 1, 14, 1)]),  # a token of two words
        ("né  be", [("né", 0, 2, 3), ("be", 2, 6, 3)]),  # parts of a character; two spaces
        ("a\n\nb", [("a", 0, 1, 1), ("b", 1, 4, 2)]),
        ("a\u3000b", [("a", 0, 1, 1), ("b", 1, 3, 4)]),  # whitespace of three bytes
    ],
)
def test_words(lm, text, words):
    found = lm.score(text).words()
    assert [(word.text, word.start, word.end, word.n_tokens) for word in found] == words


def test_sums_of_words(lm):
    score = lm.score(TEXT, bos=True)
    words = score.words()
    assert sum(word.n_tokens for word in words) == len(score)
    assert math.fsum(word.logprob for word in words) == pytest.approx(score.logprob, rel=1e-12)
    assert math.fsum(word.surprisal for word in words) == pytest.approx(score.bits, rel=1e-12)
    assert "".join(TEXT[word.start : word.end] for word in words) == TEXT
    without = lm.score(TEXT).words()
    assert without[0].logprob is None and without[0].surprisal is None
    assert all(word.logprob is not None for word in without[1:])


def test_words_of_gpt2(gpt2_lm):
    text = "It's  unbelievable, isn't it?\n\n\tNo: naïve 東京 \U0001f600\U0001f600!  "
    words = gpt2_lm.score(text, bos=True).words()
    assert [word.text for word in words] == text.split()
    assert "".join(text[word.start : word.end] for word in words) == text
    assert max(word.n_tokens for word in words) > 3


# ---- to_dict, arguments ----------------------------------------------------------------------------------


def test_to_dict_is_json(lm):
    score = lm.score(TEXT, top=2)
    found = score.to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["text"] == TEXT and len(found["tokens"]) == len(score)
    assert found["tokens"][0]["logprob"] is None and found["tokens"][0]["top"] == []
    assert found["tokens"][5]["surprisal"] == score.surprisals[5]
    assert found["tokens"][5]["top"][1]["id"] == score.top_ids[5, 1]


@pytest.mark.parametrize(
    ("text", "options", "error", "message"),
    [
        ("", {}, ValueError, "text: expected at least one character"),
        (["a", ""], {}, ValueError, r"text\[1\]: expected at least one character"),
        (["a", 5], {}, TypeError, r"text\[1\]: expected text"),
        (5, {}, TypeError, "text: expected text"),
        (b"ab", {}, TypeError, "text: expected text .str. or a list of texts, got bytes"),
        (bytearray(b"ab"), {}, TypeError, "text: expected text .str. or a list of texts, got bytearray"),
        ([b"ab"], {}, TypeError, r"text\[0\]: expected text .str., got bytes b'ab'"),
        ([], {}, ValueError, "text: expected at least one text, got none"),
        ([""], {}, ValueError, r"text\[0\]: expected at least one character"),
        ("a\ud800", {}, ValueError, "text: expected Unicode text, got a lone surrogate"),
        ("ab", {"stride": 40}, ValueError, "stride: expected an integer from 1 to 39, got 40"),
        ("ab", {"top": -1}, ValueError, "top: expected"),
        ("ab", {"bos": 1}, TypeError, "bos: expected True or False"),
        ("ab", {"progress": 5}, TypeError, "progress: expected a function or None, got int"),
        ("ab", {"allow_special": "no"}, TypeError, "allow_special: expected True or False"),
        ("xb", {"vocab_limit": 97}, ValueError, r"text: id 98 at \[1\] is outside the vocab_limit of 97"),
        (["xb"], {"vocab_limit": 97}, ValueError, r"text\[0\]: id 98 at \[1\] is outside the vocab_limit"),
    ],
)
def test_arguments(lm, text, options, error, message):
    with pytest.raises(error, match=message):
        lm.score(text, **options)
