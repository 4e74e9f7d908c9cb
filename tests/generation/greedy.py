# SPDX-License-Identifier: Apache-2.0
"""A small tokenizer for tests: the longest token that fits, from left to right; every byte is a token too."""

from gpt2cy.tokenizer import Tokenizer
from gpt2cy.tokenizer.added import AddedToken

WORDS = (" to", " be", " or", " not", "To", "not", ", ", "  ", "\n\n", " the question", "he", "ab", " $x$")
EOS = 256 + len(WORDS)
VOCAB_SIZE = EOS + 1


class GreedyTokenizer(Tokenizer):
    """Ids 0..255 are bytes, then WORDS, then <|endoftext|>."""

    def __init__(self):
        tokens = {i: bytes([i]) for i in range(256)}
        tokens |= {256 + i: word.encode() for i, word in enumerate(WORDS)}
        tokens[EOS] = b"<|endoftext|>"
        self._known = {text: i for i, text in tokens.items() if i != EOS}
        super().__init__(tokens, [AddedToken("<|endoftext|>", EOS, special=True)], "<|endoftext|>")

    def _encode_plain(self, text):
        data, ids = text.encode(), []
        while data:
            size = next(size for size in range(min(16, len(data)), 0, -1) if data[:size] in self._known)
            ids.append(self._known[data[:size]])
            data = data[size:]
        return ids
