# SPDX-License-Identifier: Apache-2.0
"""The byte tokenizer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2cy.tokenizer import ByteTokenizer


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_there_and_back(text):
    tokenizer = ByteTokenizer()
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert bytes(ids) == text.encode() == tokenizer.decode_bytes(ids)
    assert tokenizer.decode(ids) == text
    assert "".join(text[i] for i, _ in offsets) == "".join(c * len(c.encode()) for c in text)


@given(data=st.binary())
def test_every_byte_string_decodes(data):
    tokenizer = ByteTokenizer()
    decoder = tokenizer.stream_decoder()
    pieces = [decoder.feed([byte]) for byte in data]
    text = data.decode("utf-8", "replace")
    assert "".join(pieces) + decoder.finish() == tokenizer.decode(list(data)) == text


def test_sizes():
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.special_tokens) == (256, None, {})
    with pytest.raises(ValueError, match=r"ids: id 256 at \[0\] is outside the vocabulary of 256"):
        tokenizer.decode([256])


@pytest.mark.parametrize("wrong", ["x", None, True, [1], 1.0])
def test_what_is_no_token(wrong):
    for call in (ByteTokenizer().token_text, ByteTokenizer().has_token):
        with pytest.raises(TypeError, match="^token: expected an integer"):
            call(wrong)


def test_tokens_that_are_not_there():
    tokenizer = ByteTokenizer()
    assert tokenizer.has_token(np.uint8(255)) and not tokenizer.has_token(256) and not tokenizer.has_token(-1)
    for token in (-1, 256):
        with pytest.raises(ValueError, match=f"^token: expected an integer from 0 to 255, got {token}$"):
            tokenizer.token_text(token)
