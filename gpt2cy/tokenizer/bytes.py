# SPDX-License-Identifier: Apache-2.0
"""A tokenizer for models that read bytes: id and byte are the same number."""

from gpt2cy.tokenizer.base import Tokenizer


class ByteTokenizer(Tokenizer):
    """Ids 0..255 are the bytes of the text's UTF-8; there are no special tokens.

    Examples
    --------
    >>> from gpt2cy.tokenizer import ByteTokenizer
    >>> ByteTokenizer().encode("Hello")
    [72, 101, 108, 108, 111]
    """

    def __init__(self):
        super().__init__({i: bytes([i]) for i in range(256)})

    def _encode_plain(self, text):
        return list(text.encode())
