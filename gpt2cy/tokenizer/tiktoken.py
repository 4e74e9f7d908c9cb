# SPDX-License-Identifier: Apache-2.0
"""Byte-level BPE by the ``tiktoken`` package, from the same files; nothing is fetched.

tiktoken joins the pair whose join has the lowest rank, and takes a whole piece that has a rank at once. With
a merge's place in the list as the rank of what it makes, that is BPE, provided that each token is made by one
merge, of tokens made before it, as training does it. Other vocabularies are refused.
"""

import re
from collections.abc import Iterator

from gpt2cy.tokenizer.base import Tokenizer
from gpt2cy.tokenizer.vocabulary import BYTE_OF, Vocabulary

# GPT-2's pattern: contractions; a space and letters, digits, or other signs; white space, but for the last
# space before a word. A doubled + does not go back, which matters for long runs.
_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

# In a million characters of white space that a word follows, tiktoken's regex engine gives up and panics,
# which no `except Exception` catches. So texts are cut there first. This is the engine's \s; Python has more.
_SPACES = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_STRIDE = 10_000


class TiktokenTokenizer(Tokenizer):
    """The tokenizer of a vocabulary, by ``tiktoken``; see `gpt2cy.tokenizer.load`."""

    def __init__(self, vocabulary: Vocabulary):
        import tiktoken  # optional: needed when one is made

        _require_gpt2(vocabulary)
        token_bytes = vocabulary.token_bytes()
        super().__init__(token_bytes, vocabulary.added, vocabulary.eos)
        tokens = [token for token in vocabulary.tokens if len(token) == 1]
        tokens += [left + right for left, right in vocabulary.merges]
        self._ids = [vocabulary.tokens[token] for token in tokens]  # of each rank
        self._library = tiktoken.Encoding(
            str(vocabulary.path),
            pat_str=_PATTERN,
            mergeable_ranks={token_bytes[i]: rank for rank, i in enumerate(self._ids)},
            special_tokens={},
        )

    def _encode_plain(self, text):
        ranks = self._library.encode_ordinary
        return [self._ids[rank] for portion in portions(text) for rank in ranks(portion)]


def portions(text: str) -> Iterator[str]:
    """Cut a text where the pattern cuts it anyway: before the last character of some runs of white space.

    Each run of twice the stride is found, since it covers a place that is looked at.

    Examples
    --------
    >>> from gpt2cy.tokenizer.tiktoken import portions
    >>> [len(portion) for portion in portions("To be" + " " * 50_000 + "or not")]
    [50004, 7]
    """
    start = place = 0
    while place < len(text):
        run = _SPACES.match(text, place)
        if run is not None and start < run.end() - 1 and run.end() < len(text):
            yield text[start : run.end() - 1]
            start = run.end() - 1
        place = (place if run is None else run.end()) + _STRIDE
    yield text[start:]


def _require_gpt2(vocabulary):
    """Refuse what tiktoken would tokenize otherwise than its vocabulary says."""
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    trouble = None
    if vocabulary.normalizer is not None:
        trouble = "it has a normalizer"
    elif {**plain, **vocabulary.pre_tokenizer, "trim_offsets": False} != plain:
        trouble = "its pre_tokenizer is not GPT-2's"
    elif vocabulary.options.get("ignore_merges"):
        trouble = "it sets ignore_merges"
    made = {token for token in vocabulary.tokens if len(token) == 1 and token in BYTE_OF}
    for left, right in vocabulary.merges if trouble is None else ():
        if left not in made or right not in made or left + right in made:
            trouble = f"its merge of {left!r} and {right!r} uses a later token or makes an earlier one"
            break
        made.add(left + right)
    if trouble:
        raise ValueError(f"{vocabulary.path}: {trouble}; use backend='tokenizers'")
