# SPDX-License-Identifier: Apache-2.0
"""GPT-2's own vocabulary: published ids, both back ends alike, and nothing lost on the way back."""

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Published ids of GPT-2's encoding.
PUBLISHED = {
    "Hello world": [15496, 995],
    "hello world": [31373, 995],
    "0" * 16: [25645],
    "0" * 17: [8269, 10535, 830],
    "": [],
    " ?": [5633],
    "y is ?": [88, 318, 5633],
}

EXACT = [
    "a .", "do n't", " x", "x ", "\r\n", "\t\t", "a\u00a0b", "🙂", "👩\u200d👩\u200d👧", "e\u0301", "é",
    "\x00\x85\u2028", "  a  b  ", "\n\n\n", "we'll've 's", "'S 'LL", "\uff11\uff12 ³ Ⅳ", "\ufeffx",
    "\U000e0001\U0010ffff", "Ġ Ċ", "<|endoftext|>",
]  # fmt: skip


def random_texts(count):
    """Texts of all planes, with runs of white space, contractions and numbers."""
    rng = random.Random(1729)
    words = ["the", " a", "don't", "we'll", "'re", " 2024", "3.14", "...", "\t", "\r\n", "<|", "ß", "日本"]

    def character():
        limit = rng.choice([0x80, 0x800, 0x3000, 0x10000, 0x110000])
        code = rng.randrange(limit)
        return chr(code) if not 0xD800 <= code < 0xE000 else "?"

    def piece():
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(words)
        if kind < 0.6:
            return rng.choice(" \n\t\u00a0\u3000") * rng.randrange(1, 9)
        return character()

    return ["".join(piece() for _ in range(rng.randrange(1, 40))) for _ in range(count)]


TEXTS = random_texts(1000)


@pytest.mark.parametrize("text", PUBLISHED, ids=ascii)
def test_published_ids(gpt2, text):
    assert gpt2.encode(text) == PUBLISHED[text]


def test_sizes(gpt2):
    assert (gpt2.vocab_size, gpt2.eos_id) == (50257, 50256)
    assert gpt2.special_tokens == {"<|endoftext|>": 50256}
    assert "50257" in repr(gpt2)


def test_both_back_ends_give_the_same(both):
    first, second = both
    for text in [*TEXTS, *EXACT]:
        assert first.encode(text) == second.encode(text), ascii(text)
        assert first.encode_with_offsets(text) == second.encode_with_offsets(text), ascii(text)


def test_every_character_is_cut_alike(both):
    """The libraries bring their own tables of letters, numbers and white space."""
    first, second = both
    for code in range(0, 0x110000, 7):
        if not 0xD800 <= code < 0xE000:
            text = f"a{chr(code)}1{chr(code)} {chr(code)}."
            assert first.encode(text) == second.encode(text), hex(code)


@pytest.mark.slow
def test_every_character_there_is(both):
    first, second = both
    for code in [*range(0xD800), *range(0xE000, 0x110000)]:
        text = f"a{chr(code)}1{chr(code)} {chr(code)}."
        assert first.encode(text) == second.encode(text), hex(code)


def test_there_and_back(gpt2):
    for text in [*TEXTS, *EXACT]:
        ids = gpt2.encode(text)
        assert gpt2.decode(ids) == text
        assert gpt2.decode_bytes(ids) == text.encode()


@settings(max_examples=200)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_there_and_back_of_anything(gpt2, text):
    assert gpt2.decode(gpt2.encode(text)) == text
    assert gpt2.decode(gpt2.encode(text, allow_special=True)) == text


def test_spaces_are_kept(gpt2):
    texts = ["hello", " hello", "hello ", "  "]
    assert [gpt2.encode(text) for text in texts] == [[31373], [23748], [31373, 220], [220, 220]]


def test_special_tokens_only_when_asked_for(gpt2):
    text = "hello <|endoftext|>"
    plain = gpt2.encode(text)
    assert max(plain) < 50256
    assert gpt2.decode(plain) == text
    assert gpt2.encode(text, allow_special=True) == [31373, 220, 50256]
    assert gpt2.decode([31373, 220, 50256]) == text
    twice = "<|endoftext|><|endoftext|> a"
    assert gpt2.encode(twice, allow_special=True) == [50256, 50256, 257]


@pytest.mark.parametrize("unit", ["a", "^", "0", " ", "\n", "'s", "é", "🙂", " a", "\u3000"], ids=ascii)
def test_long_runs(gpt2, unit):
    for text in (unit * 10_000, unit * 10_000 + "x"):
        assert gpt2.decode(gpt2.encode(text)) == text


@pytest.mark.parametrize("unit", [" ", "\n", "\u3000", " \n"], ids=ascii)
@pytest.mark.parametrize("after", ["", "x", "1", "\x1c.", " x" + "\t" * 30_000 + "."], ids=range(5))
def test_long_white_space(both, unit, after):
    text = "a" + unit * 50_000 + after
    first, second = (tokenizer.encode(text) for tokenizer in both)
    assert first == second
    assert both[0].decode(first) == text


@pytest.mark.parametrize("unit", [" ", "\n"], ids=ascii)
def test_a_million_spaces(gpt2, unit):
    """Enough for tiktoken's regex engine to give up."""
    text = unit * 1_100_000 + "x"
    assert gpt2.decode(gpt2.encode(text)) == text


def test_long_texts_are_cut_alike(both):
    """Texts of many portions, with white space of all lengths at their edges."""
    rng = random.Random(3)
    for _ in range(4):
        text = "".join(rng.choice(TEXTS) + rng.choice(" \n\t\u00a0") * rng.randrange(9) for _ in range(1500))
        first, second = (tokenizer.encode(text) for tokenizer in both)
        assert first == second


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("unit", ["a", "^", "0", " ", "\n", "'s", " a"], ids=ascii)
def test_a_million_in_linear_time(gpt2, unit):
    def seconds(count):
        text = unit * count + "x"
        start = time.process_time()
        ids = gpt2.encode(text)
        taken = time.process_time() - start
        assert gpt2.decode(ids) == text
        return taken

    assert min(seconds(1_000_000) for _ in range(2)) < 3 * max(seconds(500_000) for _ in range(2)) + 0.05


# ---- offsets and streams -----------------------------------------------------------------------------------


def test_offsets(gpt2):
    text = "né 🙂 a<|endoftext|> b"
    ids, offsets = gpt2.encode_with_offsets(text, allow_special=True)
    assert ids == gpt2.encode(text, allow_special=True)
    assert offsets[-2:] == [(6, 19), (19, 21)]
    assert gpt2.encode_with_offsets("") == ([], [])


def test_offsets_cover_the_text(gpt2):
    for text in TEXTS[:300]:
        ids, offsets = gpt2.encode_with_offsets(text)
        assert len(ids) == len(offsets)
        end = 0
        for token, (start, stop) in zip(ids, offsets, strict=True):
            assert start in (end, end - 1) and stop > start  # end - 1: the tokens share a character
            assert gpt2.decode_bytes([token]) in text[start:stop].encode()
            end = stop
        assert end == len(text)


def test_stream(gpt2):
    for text in [*TEXTS[:200], *EXACT]:
        ids = gpt2.encode(text)
        decoder = gpt2.stream_decoder()
        pieces = [decoder.feed([token]) for token in ids]
        assert "\ufffd" not in "".join(pieces) or "\ufffd" in text
        assert "".join(pieces) + decoder.finish() == text


def test_stream_of_any_ids_equals_decode(gpt2):
    """Also of ids whose bytes are no UTF-8, in any portions."""
    rng = random.Random(5)
    for _ in range(300):
        ids = [rng.choice([rng.randrange(256), rng.randrange(50257)]) for _ in range(rng.randrange(1, 20))]
        cut = rng.randrange(len(ids) + 1)
        decoder = gpt2.stream_decoder()
        assert decoder.feed(ids[:cut]) + decoder.feed(ids[cut:]) + decoder.finish() == gpt2.decode(ids)


def test_stream_holds_back_half_a_character(gpt2):
    ids = gpt2.encode("🙂")
    assert len(ids) > 1
    decoder = gpt2.stream_decoder()
    assert decoder.feed(ids[:1]) == ""
    assert decoder.finish() == "\ufffd" == gpt2.decode(ids[:1])
    assert decoder.feed(ids) == "🙂"
    assert decoder.feed([]) == ""


def test_a_refused_id_leaves_the_stream_as_it_was(gpt2):
    first, *rest = gpt2.encode("🙂")
    decoder = gpt2.stream_decoder()
    decoder.feed([first])
    with pytest.raises(ValueError, match="id 50257"):
        decoder.feed([rest[0], 50257])
    assert decoder.feed(rest) == "🙂"


def test_token_text(gpt2):
    assert gpt2.token_text(995) == " world"
    assert gpt2.token_text(50256) == "<|endoftext|>"
    assert gpt2.token_text(gpt2.encode("🙂")[0]) == "\ufffd"
    assert gpt2.has_token(50256) and not gpt2.has_token(50257) and not gpt2.has_token(-1)


# ---- bad arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 5, b"x", ["a", "b"], np.array(["a"])], ids=repr)
@pytest.mark.parametrize("method", ["encode", "encode_with_offsets"])
def test_only_text_is_encoded(gpt2, method, value):
    with pytest.raises(TypeError, match="text: expected text"):
        getattr(gpt2, method)(value)


@pytest.mark.parametrize(
    "value", ["x", b"x", None, 5, 1.5, [1.5], ["a"], [True], np.zeros((2, 2), int), [[1]], {1: 2}], ids=repr
)
@pytest.mark.parametrize("method", ["decode", "decode_bytes"])
def test_only_ids_are_decoded(gpt2, method, value):
    with pytest.raises(TypeError, match="^ids: "):
        getattr(gpt2, method)(value)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: np.array(ids, ">u2")])
def test_any_integers_are_decoded(gpt2, kind):
    assert gpt2.decode(kind([31373, 995])) == "hello world"


def test_no_ids(gpt2):
    assert gpt2.decode([]) == "" and gpt2.decode_bytes(np.array([], int)) == b""


@pytest.mark.parametrize("token", [-1, 50257, 2**31, 2**63, -(2**70)])
def test_ids_outside_the_vocabulary(gpt2, token):
    with pytest.raises(ValueError, match=rf"ids: id {token} at \[1\] is outside the vocabulary of 50257"):
        gpt2.decode([5, token])


def test_lone_surrogates(gpt2):
    with pytest.raises(ValueError, match=r"text: .* a lone surrogate \\ud83d at 3"):
        gpt2.encode("abc\ud83d")


def test_allow_special_is_a_flag(gpt2):
    with pytest.raises(TypeError, match="allow_special: expected True or False"):
        gpt2.encode("a", allow_special="all")
