# SPDX-License-Identifier: Apache-2.0
"""Added tokens: texts that stand for one id beside the trained vocabulary, such as ``<|endoftext|>``.

Text is cut at them here, before a back end sees it, so that every back end follows one rule. Special tokens
are looked for only when the caller allows it: a user's text must not be able to end a document.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class AddedToken(NamedTuple):
    """One added token, with the fields that tokenizer.json gives it.

    `lstrip` and `rstrip` take the white space on that side into the token, which is then lost; `single_word`
    leaves it alone inside a longer word.
    """

    text: str
    id: int
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class Splitter:
    """Cuts text at added tokens; where several could begin, the longest does.

    Examples
    --------
    >>> from gpt2cy.tokenizer.added import AddedToken, Splitter
    >>> splitter = Splitter([AddedToken("<end>", 7, special=True)])
    >>> list(splitter.split("a <end>b", allow_special=True))
    [(0, 2, None), (2, 7, 7), (7, 8, None)]
    >>> list(splitter.split("a <end>b", allow_special=False))
    [(0, 8, None)]
    """

    def __init__(self, tokens: Iterable[AddedToken]):
        self._tokens = {token.text: token for token in tokens}
        self._all = _pattern(self._tokens.values())
        self._ordinary = _pattern(token for token in self._tokens.values() if not token.special)

    def split(self, text: str, allow_special: bool) -> Iterator[tuple[int, int, int | None]]:
        """Yield (start, end, id) of each added token, and (start, end, None) of the text between them."""
        pattern = self._all if allow_special else self._ordinary
        done = 0
        for match in pattern.finditer(text) if pattern else ():
            token = self._tokens[match[0]]
            start, end = match.span()
            if start < done:  # its first characters are white space that the token before has taken
                continue
            if token.lstrip:
                start = done + len(text[done:start].rstrip())
            if token.rstrip:
                end = len(text) - len(text[end:].lstrip())
            if start > done:
                yield done, start, None
            yield start, end, token.id
            done = end
        if done < len(text):
            yield done, len(text), None


def _pattern(tokens):
    """A pattern of the tokens' texts, longest first, or None when there are none."""
    longest_first = sorted(tokens, key=lambda token: len(token.text), reverse=True)
    escaped = [
        rf"(?<!\w){re.escape(token.text)}(?!\w)" if token.single_word else re.escape(token.text)
        for token in longest_first
    ]
    return re.compile("|".join(escaped)) if escaped else None
