# SPDX-License-Identifier: Apache-2.0
"""Score: a text, token by token, with what a model expected in each place.

score_texts     texts -> ids with offsets -> scoring.score_windows -> Score
Score           columns (arrays), rows (ScoredToken), words, sums; gpt2cy.inspection.scores draws pictures
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt2cy import _checks
from gpt2cy.generation import scoring
from gpt2cy.generation.scoring import TokenScores

LN2 = math.log(2.0)


class Alternative(NamedTuple):
    """A token that might have stood in a place; `text` is None for an id without a token."""

    id: int
    text: str | None
    logprob: float


class ScoredToken(NamedTuple):
    """A row of a `Score`. What follows `end` is None for a token that is not scored, and `top` is empty."""

    id: int
    text: str
    start: int  # of the characters that it comes from, half-open
    end: int
    logprob: float | None  # natural logarithm
    surprisal: float | None  # -logprob in bits
    entropy: float | None  # bits
    rank: int | None  # 0: the likeliest
    top: tuple[Alternative, ...]


class ScoredWord(NamedTuple):
    """Tokens of a word together; see `Score.words`."""

    text: str
    start: int
    end: int
    n_tokens: int
    logprob: float | None
    surprisal: float | None


class Score:
    """A text and, for each of its tokens, what the model expected in its place.

    ``len(score)``, ``score[i]`` and iteration give rows, `ScoredToken`. The attributes are columns. A first
    token that has nothing before it is not scored: nan among the floats, -1 among the ranks, None in a row.

    Attributes
    ----------
    text : str
    ids : ndarray of int64, [T]
    offsets : ndarray of int64, [T, 2]
        Half-open ranges of characters. Tokens that hold parts of one character all have it in their ranges.
    logprobs : ndarray of float32, [T]
        Natural logarithms of the tokens' probabilities.
    surprisals : ndarray of float64, [T]
        -logprob in bits.
    entropies : ndarray of float64, [T]
        Bits: the surprisal that the model itself expected in this place.
    ranks : ndarray of int64, [T]
        How many tokens the model found likelier.
    top_ids, top_logprobs : ndarray of int64 and of float32, [T, top]
        The likeliest tokens, in order; -1 and nan in the row of a token that is not scored.
    n_scored : int
        T or T - 1.
    n_bytes : int
        Bytes of the scored tokens in UTF-8.
    logprob, bits : float
        Sum of the logprobs, and the same without its sign in bits.
    bits_per_byte : float
        bits over n_bytes: comparable between tokenizers.
    perplexity : float
        exp of the mean of -logprob over the scored tokens. It and bits_per_byte are nan if there are none.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.tokenizer import ByteTokenizer
    >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
    >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
    >>> score = lm.score("to be", top=2)
    >>> [(token.text, token.start, token.logprob is None) for token in score]
    [('t', 0, True), ('o', 1, False), (' ', 2, False), ('b', 3, False), ('e', 4, False)]
    >>> len(score[1].top), [word.text for word in score.words()]
    (2, ['to', 'be'])
    >>> abs(score.bits - sum(token.surprisal for token in score if token.surprisal is not None)) < 1e-9
    True
    """

    def __init__(
        self, text: str, ids: list[int], offsets: list[tuple[int, int]], scores: TokenScores, tokenizer
    ):
        self.text = text
        self.ids = np.array(ids, np.int64)
        self.offsets = np.array(offsets, np.int64).reshape(-1, 2)
        self._texts = [tokenizer.token_text(token) for token in ids]
        self.n_scored = len(scores)
        missing = len(ids) - self.n_scored
        self.logprobs = _after(missing, scores.logprobs, np.nan)
        self.surprisals = -self.logprobs.astype(np.float64) / LN2
        self.entropies = _after(missing, scores.entropies.astype(np.float64), np.nan) / LN2
        self.ranks = _after(missing, scores.ranks, -1)
        self.top_ids = _after(missing, scores.top_ids, -1)
        self.top_logprobs = _after(missing, scores.top_logprobs, np.nan)
        known = {int(token) for token in np.unique(scores.top_ids) if tokenizer.has_token(int(token))}
        self._names = {token: tokenizer.token_text(token) for token in known}
        self.logprob = scores.logprob
        self.bits = math.fsum(self.surprisals[missing:].tolist())
        self.n_bytes = len(tokenizer.decode_bytes(ids[missing:]))

    @property
    def bits_per_byte(self) -> float:
        return self.bits / self.n_bytes if self.n_bytes else math.nan

    @property
    def perplexity(self) -> float:
        return scoring.perplexity_of(self.logprob, self.n_scored)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i: int) -> ScoredToken:
        i = range(len(self))[i]  # or IndexError
        start, end = self.offsets[i].tolist()
        token, text = int(self.ids[i]), self._texts[i]
        if i < len(self) - self.n_scored:
            return ScoredToken(token, text, start, end, None, None, None, None, ())
        return ScoredToken(
            token,
            text,
            start,
            end,
            float(self.logprobs[i]),
            float(self.surprisals[i]),
            float(self.entropies[i]),
            int(self.ranks[i]),
            tuple(
                Alternative(other, self._names.get(other), logprob)
                for other, logprob in zip(
                    self.top_ids[i].tolist(), self.top_logprobs[i].tolist(), strict=True
                )
            ),
        )

    def __iter__(self) -> Iterator[ScoredToken]:
        return (self[i] for i in range(len(self)))

    def __repr__(self):
        return (
            f"Score({len(self)} tokens, {self.bits:.2f} bits, {self.bits_per_byte:.3f} bits per byte, "
            f"perplexity {self.perplexity:.2f})"
        )

    def words(self) -> list[ScoredWord]:
        """Return the text's words with the sums of their tokens.

        A word is what whitespace separates. Whitespace is counted with the word after it, where GPT-2's
        tokens have it, and at the end of the text with the last word: so the words' sums are the text's.
        `start` and `end` include it, `text` does not. Words that one token spans are one. A word of which a
        token is not scored has None for its sums.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
        >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
        >>> [(word.text, word.start, word.end) for word in lm.score("to be, or not").words()]
        [('to', 0, 2), ('be,', 2, 6), ('or', 6, 9), ('not', 9, 13)]
        """
        cuts = self._word_cuts()
        return [self._word(first, end) for first, end in itertools.pairwise(cuts)]

    def _word_cuts(self):
        """Numbers of the tokens that begin a word, and the number of tokens."""
        if not len(self):
            return []
        gaps = [match.span() for match in re.finditer(r"(?<=\S)\s+(?=\S)", self.text)]
        cuts, gap, reached = [0], 0, 0
        for i, (start, end) in enumerate(self.offsets.tolist()):
            while gap < len(gaps) and gaps[gap][1] < start:
                gap += 1
            if gap < len(gaps) and start >= max(gaps[gap][0], reached):
                cuts.append(i)
                gap += 1
            reached = end
        return [*cuts, len(self)]

    def _word(self, first, end):
        start, stop = int(self.offsets[first, 0]), int(self.offsets[end - 1, 1])
        text, count = self.text[start:stop].strip(), end - first
        if first < len(self) - self.n_scored:
            return ScoredWord(text, start, stop, count, None, None)
        logprob = scoring.total(self.logprobs[first:end])
        return ScoredWord(text, start, stop, count, logprob, math.fsum(self.surprisals[first:end].tolist()))

    def to_dict(self) -> dict:
        """Return everything as dicts, lists, strings and numbers: what JSON takes.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
        >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
        >>> found = lm.score("to be").to_dict()
        >>> list(found)
        ['text', 'n_bytes', 'n_scored', 'logprob', 'bits', 'bits_per_byte', 'perplexity', 'tokens']
        >>> list(found["tokens"][0])
        ['id', 'text', 'start', 'end', 'logprob', 'surprisal', 'entropy', 'rank', 'top']
        """
        tokens = [{**row._asdict(), "top": [choice._asdict() for choice in row.top]} for row in self]
        return {
            "text": self.text,
            "n_bytes": self.n_bytes,
            "n_scored": self.n_scored,
            "logprob": self.logprob,
            "bits": self.bits,
            "bits_per_byte": None if math.isnan(self.bits_per_byte) else self.bits_per_byte,
            "perplexity": None if math.isnan(self.perplexity) else self.perplexity,
            "tokens": tokens,
        }

    # ---- pictures: gpt2cy.inspection.scores, which draws them

    def show(self, file=None, colour: bool | None = None) -> None:
        """Print the text on ground that is the darker, the more surprising a token is, and a line of sums.

        Parameters
        ----------
        file : text file, optional
            None means standard output.
        colour : bool, optional
            None means that it is for the file to say: a terminal, and neither NO_COLOR nor TERM=dumb in the
            environment. Without colours the text is plain. Control characters are spelled out either way.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.tokenizer import ByteTokenizer
        >>> config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=2, n_layers=2, block_size=64)
        >>> lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
        >>> lm.score("to be").show(colour=False)
        to be
        4 tokens scored, ... bits, ... bits per byte, perplexity ...
        """
        from gpt2cy.inspection.scores import show

        show(self, file, colour)

    def to_ansi(self) -> str:
        """Return the coloured text for a terminal of 256 colours, wherever it will be written."""
        from gpt2cy.inspection.scores import ansi

        return ansi(self)

    def to_html(self) -> str:
        """Return the coloured text as a page of its own: no scripts, no other files, everything escaped.

        Pointing at a token shows its numbers and alternatives. In a notebook a Score shows itself like that.
        """
        from gpt2cy.inspection.scores import html_page

        return html_page(self)

    def _repr_html_(self):
        from gpt2cy.inspection.scores import html_fragment

        return html_fragment(self)

    def plot(self, ax=None):
        """Draw each token's surprisal beside what the model expected; see `gpt2cy.inspection.scores.plot`."""
        from gpt2cy.inspection.scores import plot

        return plot(self, ax)


def _after(missing: int, values: NDArray, filler) -> NDArray:
    """The values behind rows of filler for the tokens that are not scored."""
    return np.concatenate([np.full((missing, *values.shape[1:]), filler, values.dtype), values])


def score_texts(
    model, tokenizer, texts: Mapping[str, str], top, stride, bos, vocab_limit, allow_special, progress
) -> list[Score]:
    """Return a Score for each text, by the name that messages call it; see `LanguageModel.score`."""
    bos = _checks.flag("bos", bos)
    _checks.optional_function("progress", progress)
    if bos and tokenizer.eos_id is None:
        raise ValueError("bos: the tokenizer has no token to put before a text")
    before = [tokenizer.eos_id] if bos else []
    if not texts:
        raise ValueError("text: expected at least one text, got none")
    encoded = []
    texts = {name: _checks.unicode_text(name, text) for name, text in texts.items()}
    for name, text in texts.items():
        encoded.append(tokenizer.encode_with_offsets(text, allow_special=allow_special))
        if not encoded[-1][0]:
            raise ValueError(f"{name}: expected at least one character, got none")
    sequences = [before + ids for ids, _ in encoded]
    scores = scoring.score_windows(
        model, sequences, stride=stride, top=top, vocab_limit=vocab_limit, names=[*texts], progress=progress
    )
    return [
        Score(text, ids, offsets, found, tokenizer)
        for text, (ids, offsets), found in zip(texts.values(), encoded, scores, strict=True)
    ]
