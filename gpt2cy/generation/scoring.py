# SPDX-License-Identifier: Apache-2.0
"""How likely a model finds given tokens: log probabilities, ranks, entropies, alternatives.

    score_windows, score_many     texts of any length, in windows; sequences that fit as they are
      score_pieces                pieces that begin alike run their beginning once (score_alone, score_shared)
        score_batch               one ragged pass of a moderate size
          score_rows              generation/rows: the model and its fused head

A token is scored by the row of logits before it, so the last token of a sequence is never run.  Rows before
the first token to be scored have no logits at all.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt2cy import _checks
from gpt2cy.cache import KVCache
from gpt2cy.generation import trouble
from gpt2cy.generation.prefix import LEAST_SAVED, common
from gpt2cy.generation.rows import score_rows
from gpt2cy.kernels import host

PASS_ROWS = 1024  # of a batch: enough for full speed, and the workspace of one long sequence
CACHE_ROWS = 64  # what a copy of a cache takes at least, a block, in rows


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Of m tokens, what the model expected in their places, knowing the tokens before each.

    Attributes
    ----------
    tokens : ndarray of int64, [m]
        The tokens themselves.
    logprobs : ndarray of float32, [m]
        Natural logarithms of their probabilities.
    entropies : ndarray of float32, [m]
        Of the distribution over the vocabulary, in nats: the logprob to be expected, without its sign.
    ranks : ndarray of int64, [m]
        How many tokens were likelier; of equal ones the smaller id counts as likelier. 0: the likeliest.
    likeliest : ndarray of int64, [m]
        The tokens of rank 0.
    top_ids : ndarray of int64, [m, top]
        The likeliest tokens, in order.
    top_logprobs : ndarray of float32, [m, top]
        Theirs.
    """

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32]
    ranks: NDArray[np.int64]
    likeliest: NDArray[np.int64]
    top_ids: NDArray[np.int64]
    top_logprobs: NDArray[np.float32]

    def __len__(self):
        return len(self.tokens)

    @property
    def logprob(self) -> float:
        """Their sum, in float64: the logarithm of the probability of all of them."""
        return total(self.logprobs)

    @property
    def is_greedy(self) -> bool:
        """Whether each of them was the likeliest."""
        return not self.ranks.any()

    def __getitem__(self, part: slice) -> "TokenScores":
        return TokenScores(*(getattr(self, name)[part] for name in self.__dataclass_fields__))

    def copy(self) -> "TokenScores":
        """Return the same in memory of its own."""
        return TokenScores(*(getattr(self, name).copy() for name in self.__dataclass_fields__))


def total(numbers: NDArray[np.float32]) -> float:
    """Return their exact sum, rounded once: the same in whatever parts they came."""
    return math.fsum(numbers.tolist())


def empty(top: int) -> TokenScores:
    """Return the scores of no tokens."""
    ids, numbers = np.empty(0, np.int64), np.empty(0, np.float32)
    return TokenScores(
        ids, numbers, numbers, ids, ids, np.empty((0, top), np.int64), np.empty((0, top), np.float32)
    )


def joined(parts: Sequence[TokenScores], top: int) -> TokenScores:
    """Return the scores of tokens that follow each other."""
    if len(parts) < 2:
        return parts[0] if parts else empty(top)
    names = TokenScores.__dataclass_fields__
    return TokenScores(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


# ---- windows -------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """Tokens begin .. end - 1 of a text are seen together; of them, those from `first` on are scored."""

    begin: int
    end: int
    first: int


def windows(n_tokens: int, block_size: int, stride: int) -> Iterator[Window]:
    """Yield windows of at most block_size tokens, `stride` apart, that score each token after the first once.

    Examples
    --------
    >>> from gpt2cy.generation.scoring import windows
    >>> [tuple(window) for window in windows(10, block_size=4, stride=2)]
    [(0, 4, 1), (2, 6, 4), (4, 8, 6), (6, 10, 8)]
    """
    begin, first = 0, 1
    while first < n_tokens:
        end = min(begin + block_size, n_tokens)
        yield Window(begin, end, first)
        begin, first = begin + stride, end


def checked_stride(stride, block_size: int) -> int:
    """Return a stride from 1 to block_size - 1, which None stands for."""
    if stride is None:
        return max(block_size - 1, 1)
    if block_size == 1:
        raise ValueError(f"stride: expected None for a block_size of 1, got {stride}")
    return _checks.integer("stride", stride, 1, block_size - 1)


def score_windows(
    model,
    sequences,
    *,
    stride=None,
    top=0,
    vocab_limit=None,
    names: Sequence[str] | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[TokenScores]:
    """Return the scores of every token after the first of sequences of any lengths.

    Parameters
    ----------
    model : GPT
    sequences : list of array_like of int, each [T_i]
    stride : int, optional
        How far windows of block_size tokens are apart, from 1 to block_size - 1: each token sees at least
        block_size - stride tokens before it, or all there are. None: block_size - 1, the fastest.
    top, vocab_limit
        As `score_many`.
    names : list of str, optional
        What messages call the sequences.
    progress : function, optional
        Called now and then with the number of tokens that have been scored since.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.generation.scoring import score_windows
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> [len(scores) for scores in score_windows(model, [range(300), [5]], stride=64)]
    [299, 0]
    """
    block_size = model.wpe.num_embeddings
    stride = checked_stride(stride, block_size)
    limit, top = checked_columns(model, vocab_limit, top)
    arrays = _checks.token_sequences(sequences, model.wte.num_embeddings)
    names = names or [f"sequences[{i}]" for i in range(len(arrays))]
    pieces, counts = [], []
    for name, array in zip(names, arrays, strict=True):
        if block_size == 1 and len(array) > 1:
            raise ValueError(f"{name}: expected one token, since a block_size of 1 has no room for two")
        found = [
            Piece(array[begin:end], first - begin, name, begin)
            for begin, end, first in windows(len(array), block_size, stride)
        ]
        pieces += found
        counts.append(len(found))
    scores = score_pieces(model, pieces, top, limit, progress)
    ends = np.cumsum(counts)
    return [joined(scores[end - count : end], top) for count, end in zip(counts, ends, strict=True)]


# ---- sequences that fit --------------------------------------------------------------------------------


def score_many(model, sequences, starts=None, *, top=0, vocab_limit=None) -> list[TokenScores]:
    """See `GPT.score_many`."""
    limit, top = checked_columns(model, vocab_limit, top)
    arrays = _checks.token_sequences(sequences, model.wte.num_embeddings)
    if starts is None:
        starts = [1] * len(arrays)
    elif not isinstance(starts, Sequence) and not (isinstance(starts, np.ndarray) and starts.ndim):
        raise TypeError(f"starts: expected a list of integers, got {type(starts).__name__}")
    elif len(starts) != len(arrays):
        raise ValueError(f"starts: expected {len(arrays)}, one a sequence, got {len(starts)}")
    pieces = []
    for i, (array, start) in enumerate(zip(arrays, starts, strict=True)):
        start = _checks.integer(f"starts[{i}]", start, 1, len(array))
        name = f"sequences[{i}] without its last token"
        _checks.length_fits(name, len(array) - 1, 0, model.wpe.num_embeddings)
        pieces.append(Piece(array, start, f"sequences[{i}]", 0))
    return score_pieces(model, pieces, top, limit)


def checked_columns(model, vocab_limit, top) -> tuple[int, int]:
    """Return how many ids count, and how many alternatives are wanted."""
    limit = model.wte.num_embeddings
    if vocab_limit is not None:
        limit = _checks.integer("vocab_limit", vocab_limit, 1, limit)
    return limit, _checks.integer("top", top, 0, limit)


class Piece(NamedTuple):
    """Tokens to be run together: those from `start` on are scored."""

    ids: NDArray[np.int64]
    start: int
    name: str  # what messages call the sequence that it is from
    position: int  # of ids[0] in that sequence

    @property
    def targets(self):
        return self.ids[self.start :]


def score_pieces(model, pieces: list[Piece], top: int, limit: int, progress=None) -> list[TokenScores]:
    """Return the scores of each piece; what several begin with is computed once."""
    n_targets = sum(len(piece.targets) for piece in pieces)
    plan = {"alternatives": n_targets * top * 12, "scores": n_targets * 36}
    host.require_memory("top", plan, "top, or the number of tokens")
    for piece in pieces if limit < model.wte.num_embeddings else ():
        outside = np.flatnonzero(piece.targets >= limit)
        if len(outside):
            at = piece.start + int(outside[0])
            where = f"id {piece.ids[at]} at [{piece.position + at}]"
            raise ValueError(f"{piece.name}: {where} is outside the vocab_limit of {limit}")
    scores = [empty(top)] * len(pieces)
    groups = shared_prefixes(pieces)
    elsewhere = {i for _, members in groups for i in members}
    alone = [i for i, piece in enumerate(pieces) if i not in elsewhere and len(piece.targets)]
    for i, part in itertools.chain(
        score_alone(model, pieces, alone, top, limit), score_shared(model, pieces, groups, top, limit)
    ):
        scores[i] = part
        if progress is not None:
            progress(len(part))
    return scores


def score_alone(
    model, pieces: list[Piece], alone: list[int], top: int, limit: int
) -> Iterator[tuple[int, TokenScores]]:
    """Yield the number and the scores of each of some pieces."""
    for batch in packed(alone, lambda i: len(pieces[i].ids) - 1):
        found = score_batch(model, [pieces[i] for i in batch], [0] * len(batch), None, top, limit)
        yield from zip(batch, found, strict=True)


def score_shared(
    model, pieces: list[Piece], groups: list[tuple[int, list[int]]], top: int, limit: int
) -> Iterator[tuple[int, TokenScores]]:
    """Yield the number and the scores of each piece of groups that begin alike.

    The beginning of a group is in a cache from the first batch that has one of its members to the last.
    """
    prefixes = [pieces[members[0]].ids[:length] for length, members in groups]
    caches: dict[int, KVCache] = {}
    members = [(group, i) for group, (_, members) in enumerate(groups) for i in members]

    def rows(member):
        group, i = member
        length, members = groups[group]
        return len(pieces[i].ids) - 1 - length + CACHE_ROWS + (length if i == members[0] else 0)

    for batch in packed(members, rows):
        present = dict.fromkeys(group for group, _ in batch)
        caches = {group: cache for group, cache in caches.items() if group in present}
        caches |= read_prefixes(model, {group: prefixes[group] for group in present if group not in caches})
        found = score_batch(
            model,
            [pieces[i] for _, i in batch],
            [len(prefixes[group]) for group, _ in batch],
            [caches[group].copy() for group, _ in batch],
            top,
            limit,
        )
        yield from zip([i for _, i in batch], found, strict=True)


def shared_prefixes(pieces: list[Piece]) -> list[tuple[int, list[int]]]:
    """Return (tokens, pieces) of groups of two or more that begin alike, where sharing is worth it.

    A prefix ends before the row that scores the first token. In the order of their bytes, pieces that begin
    alike are neighbours.
    """
    able = [i for i, piece in enumerate(pieces) if piece.start > LEAST_SAVED and len(piece.targets)]
    order = sorted(able, key=lambda i: pieces[i].ids.tobytes())
    groups: list[tuple[int, list[int]]] = []
    for i in order:
        length = pieces[i].start - 1
        if groups:
            before, members = groups[-1]
            shared = min(before, length, common(pieces[members[-1]].ids, pieces[i].ids))
            if shared >= LEAST_SAVED and shared * len(members) >= before * (len(members) - 1):
                groups[-1] = shared, [*members, i]
                continue
        groups.append((length, [i]))
    return [(length, members) for length, members in groups if len(members) > 1]


def packed(items: list, rows: Callable[..., int]) -> Iterator[list]:
    """Yield items that follow each other, together of PASS_ROWS rows at most, or one that has more."""
    batch: list = []
    total = 0
    for item in items:
        if batch and total + rows(item) > PASS_ROWS:
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += rows(item)
    if batch:
        yield batch


def read_prefixes(model, prefixes: dict[int, NDArray[np.int64]]) -> dict[int, KVCache]:
    """Return a cache for each group that holds its beginning."""
    caches = {group: model.new_cache() for group in prefixes}
    no_logits = np.empty((0, model.lm_head.out_features), np.float32)
    for batch in packed(list(prefixes), lambda group: len(prefixes[group])):
        ids = [prefixes[group] for group in batch]
        model.next_logits_many(ids, [caches[group] for group in batch], out=no_logits)
    return caches


def score_batch(
    model, pieces: list[Piece], done: list[int], caches, top: int, limit: int
) -> list[TokenScores]:
    """Score pieces in one pass; of each the first `done` tokens are in its cache."""
    rows = [piece.ids[past:-1] for piece, past in zip(pieces, done, strict=True)]
    firsts = [piece.start - 1 - past for piece, past in zip(pieces, done, strict=True)]
    targets = np.concatenate([piece.targets for piece in pieces])
    table, top_ids, top_logits = score_rows(model, rows, caches, firsts, targets, limit, top)
    ends = np.cumsum([len(piece.targets) for piece in pieces]).tolist()
    bad = np.flatnonzero(table["argmax"] < 0)
    if len(bad):
        piece, end = next(pair for pair in zip(pieces, ends, strict=True) if pair[1] > bad[0])
        at = piece.position + len(piece.ids) - end + int(bad[0])
        began = trouble.began(model, piece.ids[: at - piece.position])
        raise FloatingPointError(f"{piece.name}: the logits before token {at} are not finite{began}")
    # As the kernel does for the token itself, step by step, so that its bits are the same among these.
    below = top_logits.astype(np.float64) - table["max"].astype(np.float64)[:, None]
    whole = TokenScores(
        targets,
        table["logprob"].copy(),
        table["entropy"].astype(np.float32),
        table["rank"].copy(),
        table["argmax"].copy(),
        top_ids,
        (below - table["log_total"][:, None]).astype(np.float32),
    )
    if len(pieces) == 1:
        return [whole]
    return [whole[begin:end].copy() for begin, end in zip([0, *ends], ends, strict=False)]


# ---- GPT's doors ---------------------------------------------------------------------------------------


def token_logprobs(model, tokens, stride, vocab_limit) -> NDArray[np.float32]:
    """See `GPT.token_logprobs`."""
    ids, flat = _checks.token_ids(tokens, model.wte.num_embeddings)
    if not flat:
        raise ValueError(f"tokens: expected one sequence [T], got shape {list(ids.shape)} (use score_many)")
    return score_windows(model, ids, stride=stride, vocab_limit=vocab_limit, names=["tokens"])[0].logprobs


def perplexity(model, tokens, stride, vocab_limit) -> float:
    """See `GPT.perplexity`."""
    logprobs = token_logprobs(model, tokens, stride, vocab_limit)
    if not len(logprobs):
        raise ValueError("tokens: expected at least two tokens, one of them to be scored, got one")
    return perplexity_of(total(logprobs), len(logprobs))


def perplexity_of(logprob: float, n_tokens: int) -> float:
    """Return exp of the mean of -logprob: each token counts the same; nan where there are none."""
    if not n_tokens:
        return math.nan
    try:
        return math.exp(-logprob / n_tokens)
    except OverflowError:
        return math.inf
