# SPDX-License-Identifier: Apache-2.0
"""Answers to a prompt: where the border lies, sums and norms, one computation of the prompt. PPL-04."""

import json
import warnings

import numpy as np
import pytest
from greedy import EOS, VOCAB_SIZE, GreedyTokenizer

import gpt2cy
from gpt2cy.generation import scoring
from gpt2cy.tokenizer import ByteTokenizer

PROMPT = "To be, or not to be, that is"


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def expected_logprob(lm, ids, start):
    rows = log_softmax(lm.model(ids[:-1]))
    return sum(rows[i - 1, ids[i]] for i in range(start, len(ids)))


def test_sums_and_norms(lm):
    answers = [" the question", " not", " to be or not"]
    found = lm.compare(PROMPT, answers)
    n = len(lm.encode(PROMPT))
    assert found.prompt == PROMPT and [answer.text for answer in found.answers] == answers
    for text, answer in zip(answers, found.answers, strict=True):
        ids = lm.encode(PROMPT + text)
        assert list(answer.tokens) == ids[n:] and answer.dropped == 0
        assert answer.logprob == pytest.approx(expected_logprob(lm, ids, n), rel=1e-6)
        assert answer.logprob == sum(answer.token_logprobs)
        assert answer.per_token == answer.logprob / len(answer.tokens)
        assert answer.per_character == answer.logprob / len(text)


def test_best(lm):
    answers = [" the question", " not to be", " or", " x", " to be or not to be"]
    for by in ("logprob", "per_token", "per_character"):
        found = lm.compare(PROMPT, answers, by=by)
        numbers = [getattr(answer, by) for answer in found.answers]
        assert found.best is found.answers[int(np.argmax(numbers))]
        assert [getattr(answer, by) for answer in found.ranking()] == sorted(numbers, reverse=True)
        assert found.to_dict()["best"] == int(np.argmax(numbers))
    assert lm.compare(PROMPT, [" or", " or"]).best is not None
    assert lm.compare(PROMPT, [" or", " or"]).to_dict()["best"] == 0


def test_is_greedy(build):
    model = build(VOCAB_SIZE, 24, 3, 2, 40)
    bias = np.zeros(VOCAB_SIZE, np.float32)
    bias[ord("y")] = 100.0
    model.lm_head.bias = bias
    lm = gpt2cy.LanguageModel(model, GreedyTokenizer())
    found = lm.compare("x", ["yyy", "yyz", "zyy", "y"]).answers
    assert [answer.is_greedy for answer in found] == [True, False, False, True]


def test_the_border_is_one_of_characters(lm):
    """A token of both is the answer's."""
    assert lm.encode("xhe") == [ord("x"), lm.encode("he")[0]]
    merged, plain = lm.compare("xh", ["e", "o"]).answers
    assert list(merged.tokens) == lm.encode("he")
    assert list(plain.tokens) == lm.encode("o")
    assert merged.logprob == pytest.approx(expected_logprob(lm, lm.encode("xhe"), 1), rel=1e-6)
    assert plain.logprob == pytest.approx(expected_logprob(lm, lm.encode("xho"), 2), rel=1e-6)


@pytest.mark.parametrize("spaces", [" ", "  ", "\n", " \t"])
def test_whitespace_at_the_end_of_a_prompt_belongs_to_the_answer(lm, spaces):
    given, moved = lm.compare("x" + spaces, ["be"]), lm.compare("x", [spaces + "be"])
    assert given.answers[0].tokens == moved.answers[0].tokens
    assert given.answers[0].logprob == moved.answers[0].logprob
    assert given.answers[0].per_character == given.answers[0].logprob / 2  # of the answer as it was given


@pytest.mark.parametrize("prompt", ["", "  ", "\n"])
def test_ppl_04_an_empty_prompt_begins_a_document(lm, prompt):
    answer = lm.compare(prompt, ["To be"]).answers[0]
    ids = lm.encode(prompt + "To be")
    assert list(answer.tokens) == ids
    assert answer.logprob == pytest.approx(expected_logprob(lm, [EOS, *ids], 1), rel=1e-6)


def test_an_empty_prompt_without_such_a_token(build):
    lm = gpt2cy.LanguageModel(build(256, 24, 3, 2, 40), ByteTokenizer())
    with pytest.raises(ValueError, match="prompt: expected at least one token; the tokenizer has no eos"):
        lm.compare(" ", ["a"])


def test_ppl_04_too_long_a_prompt_loses_its_beginning_and_says_so(lm):
    """The last block_size tokens before the last one are run: as transformers' users do it by hand."""
    prompt = "x" * 50
    with pytest.warns(UserWarning, match="prompt: its first 12 tokens are left out"):
        found = lm.compare(prompt, ["ab", "yzw"])
    ids = lm.encode(prompt + "yzw")
    assert found.answers[1].dropped == len(ids) - 41 == 12
    assert found.answers[1].logprob == pytest.approx(expected_logprob(lm, ids[-41:], 38), rel=1e-6)
    assert found.answers[0].dropped == 50 + 1 - 41
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lm.compare("x" * 40, ["y"]).answers[0].dropped == 0


def test_ppl_04_an_answer_is_never_cut(lm):
    with pytest.warns(UserWarning, match="left out"):
        assert len(lm.compare("xx", ["y" * 40]).answers[0].tokens) == 40
    with pytest.raises(ValueError, match=r"answers\[1\]: 41 tokens do not fit the block_size of 40"):
        lm.compare("x", ["y", "y" * 41])


def test_order_does_not_matter_and_the_prompt_is_computed_once(lm, monkeypatch):
    prompt = "To be or not to be " * 4
    answers = [f"{chr(97 + i)}{'xy' * (i % 4)}" for i in range(20)]
    alone = [lm.compare(prompt, [answer]).answers[0] for answer in answers]
    rows = []

    def score_rows(model, sequences, *rest):
        rows.append(sum(map(len, sequences)))
        return run(model, sequences, *rest)

    run = scoring.score_rows
    monkeypatch.setattr(scoring, "score_rows", score_rows)
    assert list(lm.compare(prompt, answers).answers) == alone
    assert sum(rows) < len(lm.encode(prompt)) + 20 * 10
    assert list(lm.compare(prompt, answers[::-1]).answers) == alone[::-1]


def test_gpt2s_spaces(gpt2_lm):
    """A space belongs to the word after it, wherever prompt and answer are cut."""
    expected = gpt2_lm.compare("The sky is", [" blue", " not blue at all"]).answers
    assert [len(answer.tokens) for answer in expected] == [1, 4]
    found = gpt2_lm.compare("The sky is ", ["blue", "not blue at all"]).answers
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    assert [answer.logprob for answer in found] == [answer.logprob for answer in expected]
    whole = gpt2_lm.score("The sky is not blue at all")
    assert expected[1].token_logprobs == tuple(whole.logprobs[-4:].tolist())


def test_gpt2_begins_a_document_behind_the_end_of_another(gpt2_lm):
    """PPL-04: an empty context is [50256]."""
    answer = gpt2_lm.compare("", ["Hello world"]).answers[0]
    scores = gpt2_lm.model.score_many([[50256, *gpt2_lm.encode("Hello world")]])[0]
    assert answer.token_logprobs == tuple(scores.logprobs.tolist())
    assert answer.logprob == gpt2_lm.score("Hello world", bos=True).logprob


def test_special_tokens_are_plain_text_unless_asked_for(lm):
    """In the prompt and in the answer: the characters of a special token, not its id."""
    text = "<|endoftext|>"
    plain = lm.compare("x" + text, [text]).answers[0]
    assert list(plain.tokens) == list(text.encode())
    assert plain.logprob == pytest.approx(expected_logprob(lm, lm.encode("x" + text * 2), 14), rel=1e-6)
    special = lm.compare("x" + text, [text], allow_special=True).answers[0]
    assert special.tokens == (EOS,)
    assert special.logprob == pytest.approx(expected_logprob(lm, [120, EOS, EOS], 2), rel=1e-6)


def test_logits_that_are_not_finite(build):
    """The message counts an answer's tokens."""
    model = build(256, 24, 3, 2, 40)
    weight = model.wte.weight.copy()
    weight[ord("b")] = np.nan
    model.wte.weight = weight
    lm = gpt2cy.LanguageModel(model, ByteTokenizer())
    with pytest.raises(
        FloatingPointError, match=r"^answers\[1\]: the logits before token 1 are not finite; it"
    ):
        lm.compare("xxx", ["aa", "ba"])


def test_to_dict_is_json(lm):
    found = lm.compare(PROMPT, [" be", " not"]).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == {"prompt", "by", "best", "answers"}
    assert found["answers"][0]["is_greedy"] in (True, False)


@pytest.mark.parametrize(
    ("prompt", "answers", "options", "error", "message"),
    [
        ("x", ["a", ""], {}, ValueError, r"answers\[1\]: expected at least one character, got none"),
        ("x", [], {}, ValueError, "answers: expected at least one, got none"),
        ("x", "ab", {}, TypeError, "answers: expected a list of texts, got str"),
        ("x", None, {}, TypeError, "answers: expected a list of texts, got NoneType"),
        ("x", b"ab", {}, TypeError, "answers: expected a list of texts, got bytes"),
        ("x", ["a"], {"vocab_limit": 0}, ValueError, "vocab_limit: expected an integer from 1 to 270, got 0"),
        (
            "x",
            ["a"],
            {"vocab_limit": 97},
            ValueError,
            r"answers\[0\]: id 97 at \[0\] is outside the vocab_limit",
        ),
        ("xy", [" ", "!c"], {"vocab_limit": 99}, ValueError, r"answers\[1\]: id 99 at \[1\] is outside the"),
        ("x", ["a", 5], {}, TypeError, r"answers\[1\]: expected text"),
        (5, ["a"], {}, TypeError, "prompt: expected text"),
        ("x", ["a\udc00"], {}, ValueError, r"answers\[0\]: expected Unicode text"),
        ("x", ["a"], {"by": "sum"}, ValueError, "by: expected one of 'logprob', 'per_token'"),
    ],
)
def test_arguments(lm, prompt, answers, options, error, message):
    with pytest.raises(error, match=message):
        lm.compare(prompt, answers, **options)
