# SPDX-License-Identifier: Apache-2.0
"""Beam search: the continuations of highest summed log-probability that a bounded search finds.

    Search          one prompt: its beams and the finished ones; advance(logits) does one step
    run             several prompts at once: the last ids of all their beams in one ragged pass a step

Step by step what transformers' ``generate(num_beams=..., do_sample=False)`` does for a prompt alone, its
rules for the end included; that is, where nothing ties, the same continuations. Beams fork by copies of
caches, which share blocks, so a fork costs the copy of one half-filled block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpt2cy.generation import prefix, trouble
from gpt2cy.generation.result import Generated
from gpt2cy.generation.sampler import Sampler
from gpt2cy.generation.settings import stop_ids_of
from gpt2cy.generation.stops import Text

_NEVER = -1e9  # the score of what must not be chosen


@dataclass(eq=False)
class Beam:
    """A continuation: its new ids, its summed log-probability, and a cache of all but the last id."""

    tokens: list[int]
    score: float
    cache: object = None
    reason: str | None = None  # why it has ended
    stop: int | str | None = None
    possible: bool = True  # False fills a place where there are too few that are allowed


class Search:
    """The search for one prompt's continuations.

    Parameters
    ----------
    prompt : int
        Its number, for the results.
    ids : ndarray of int64
        The whole prompt.
    settings : Sampling
    seed : int
        For the results: nothing is drawn.
    limit : int
        Most positions of a cache.
    vocab_size : int
    tokenizer : Tokenizer, optional
        For stop strings, and for the text of results.
    """

    def __init__(self, prompt, ids, settings, seed, limit, vocab_size, tokenizer=None):
        self.prompt, self.ids, self.settings, self.seed, self.tokenizer = (
            prompt,
            ids,
            settings,
            seed,
            tokenizer,
        )
        self.stop_ids = stop_ids_of(settings)
        room = limit - len(ids) + 1  # the last id needs no position
        self.most = room if settings.max_new_tokens is None else min(room, settings.max_new_tokens)
        self.at_most = "context" if self.most == room != settings.max_new_tokens else "length"
        n = settings.num_beams
        # Its history is the prompt; `fork` and `accept` give a beam's.
        self.sampler = Sampler(settings, vocab_size, 0, 0, 0, ids)
        self.kept = (
            max(2, 1 + len(self.stop_ids)) * n
        )  # candidates: enough even if every beam ends at each stop id
        self.beams = [Beam([], 0.0)] + [Beam([], _NEVER, possible=False) for _ in range(n - 1)]
        self.finished = [Beam([], _NEVER, possible=False) for _ in range(n)]
        self.improvable = True
        self.done = self.most == 0

    def advance(self, logits: np.ndarray) -> None:
        """Choose each beam's next id: logits [beams, V] of what follows them."""
        candidates = self.candidates(logits)
        ended = [self.ends(beam) for beam in candidates]
        length = len(candidates[0].tokens)
        full = self.settings.early_stopping is True and all(beam.reason for beam in self.finished)
        if self.improvable and not full:
            self.admit(
                [beam for beam, over in zip(candidates[: len(self.beams)], ended, strict=False) if over],
                length,
            )
        going = [
            Beam(
                beam.tokens,
                beam.score + _NEVER * bool(beam.reason),
                beam.cache,
                possible=beam.possible and not beam.reason,
            )
            for beam in candidates
        ]
        going.sort(key=lambda beam: -beam.score)
        self.beams = self.fork(going[: len(self.beams)])
        self.improvable = self.improvable and self.can_improve(length)
        full = self.settings.early_stopping is True and all(beam.reason for beam in self.finished)
        possible = any(beam.possible for beam in self.beams)
        self.done = not self.improvable or full or all(ended) or not possible
        if self.done:
            self.require_any(length)

    def candidates(self, logits):
        """The continuations of highest score; of equal ones an earlier beam's, a smaller id's comes first."""
        flat = np.concatenate([self.scores(beam, row) for beam, row in zip(self.beams, logits, strict=True)])
        vocab_size = logits.shape[1]
        found = best(flat, self.kept)
        return [
            Beam(
                [*self.beams[i // vocab_size].tokens, i % vocab_size],
                float(flat[i]),
                self.beams[i // vocab_size].cache,
                possible=self.beams[i // vocab_size].possible and flat[i] > -np.inf,
            )
            for i in found.tolist()
        ]

    def require_any(self, length):
        """Raise ValueError if nothing has been found when the search is over, as a sampled row does."""
        if not any(beam.possible for beam in self.finished):
            raise ValueError(
                "constrain, logit_bias, no_repeat_ngram_size, vocab_limit: expected at least one id to be "
                f"left, got none in any beam of prompt {self.prompt}, at step {length - 1}"
            )

    def scores(self, beam, row):
        """What each id would make of a beam's score: its log-probability, penalties made, is added."""
        scores = log_softmax(row)
        sampler = self.sampler.fork(0)
        for token in beam.tokens:
            sampler.accept(token)
        sampler.edit(scores)
        return scores + np.float64(beam.score)

    def ends(self, beam):
        """Whether a candidate has ended; notes why."""
        token = beam.tokens[-1]
        if token in self.stop_ids:
            beam.reason, beam.stop = "stop_id", token
        elif (found := self.stop_string(beam.tokens)) is not None:
            beam.reason, beam.stop = "stop_string", found
        elif len(beam.tokens) >= self.most:
            beam.reason = self.at_most
        return beam.reason is not None

    def stop_string(self, tokens):
        if not self.settings.stop:
            return None
        return self.text_of(tokens).found

    def text_of(self, tokens):
        """A Text that has seen these ids."""
        text = Text(self.tokenizer, self.settings.stop or ())
        for token in tokens:
            text.feed(token)
        return text

    def admit(self, ended, length):
        """Keep the best of the finished ones, by score over length to a power."""
        scale = length**self.settings.length_penalty
        new = [
            Beam(beam.tokens, beam.score / scale, None, beam.reason, beam.stop, beam.possible)
            for beam in ended
        ]
        self.finished = sorted(self.finished + new, key=lambda beam: -beam.score)[: len(self.finished)]

    def can_improve(self, length):
        """Whether the best running beam might still beat the worst finished one; a rule of thumb."""
        if not all(beam.reason for beam in self.finished):
            return True
        settings = self.settings
        if settings.early_stopping == "never" and settings.length_penalty > 0:
            length = self.most
        return self.beams[0].score / length**settings.length_penalty > self.finished[-1].score

    def fork(self, beams):
        """Give each beam a cache of its own."""
        taken = set()
        for beam in beams:
            if beam.cache is not None:
                if id(beam.cache) in taken:
                    beam.cache = beam.cache.copy()
                taken.add(id(beam.cache))
        return beams

    def results(self) -> list[Generated]:
        """The best continuations, as many as are wanted, or as there are."""
        if self.most == 0:
            found = [Beam([], 0.0)] * self.settings.num_return_sequences
        else:
            found = [beam for beam in self.finished if beam.possible]
        made = []
        for sample, beam in enumerate(found[: self.settings.num_return_sequences]):
            made.append(
                Generated(
                    tokens=np.array(beam.tokens, np.int64),
                    finish_reason=beam.reason or "length",
                    stop=beam.stop,
                    prompt=self.prompt,
                    sample=sample,
                    seed=self.seed,
                    text=self.text(beam),
                    score=beam.score,
                )
            )
        return made

    def text(self, beam):
        if self.tokenizer is None:
            return None
        text = self.text_of(beam.tokens[:-1] if beam.reason == "stop_id" else beam.tokens)
        text.finish()
        return str(text)


def run(model, searches: list[Search], cache=None, progress=None) -> None:
    """Advance all searches to their ends.

    Parameters
    ----------
    model : GPT
    searches : list of Search
    cache : KVCache, optional
        One slot: what all prompts begin with; it is copied.
    progress : function, optional
        Called with the number of ids that a step gave.
    """
    active = [search for search in searches if not search.done]
    if not active:
        return
    new_cache, past = prefix.base(model, cache, [search.ids for search in active])
    logits, rows, caches = prefix.compute(model, [search.ids[past:] for search in active], new_cache)
    for search, row, begun in zip(active, rows, caches, strict=True):
        for beam in search.beams:
            beam.cache = begun
        advance(model, search, np.broadcast_to(logits[row], (len(search.beams), logits.shape[1])))
    if progress is not None:
        progress(sum(len(search.beams) for search in active))
    # Equal prompts begin in one cache.
    separate(active)
    while active := [search for search in active if not search.done]:
        beams = [beam for search in active for beam in search.beams]
        last = np.array([beam.tokens[-1:] for beam in beams], np.int64)
        logits = model.next_logits_many(last, [beam.cache for beam in beams])
        done = 0
        for search in active:
            advance(model, search, logits[done : done + len(search.beams)])
            done += len(search.beams)
        if progress is not None:
            progress(len(beams))


def advance(model, search, logits):
    """`Search.advance`; an error about its logits says whose they are, and where in the model it began."""
    try:
        search.advance(logits)
    except FloatingPointError as error:
        step = len(search.beams[0].tokens)
        contexts = (np.array([*search.ids, *beam.tokens], np.int64) for beam in search.beams)
        where = f"in a beam of prompt {search.prompt}, at step {step}"
        raise trouble.located(model, f"{error} {where}", contexts) from None


def separate(searches):
    """Searches that began in one cache go on in copies of their own."""
    taken = set()
    for search in searches:
        for beam in search.beams:
            if id(beam.cache) in taken:
                beam.cache = beam.cache.copy()
            taken.add(id(beam.cache))


def log_softmax(row: np.ndarray) -> np.ndarray:
    """Of one row, summed in float64."""
    largest = row.max()
    if not np.isfinite(largest):
        raise FloatingPointError("logits: expected finite numbers, got NaN, +Inf or nothing but -Inf")
    shifted = row - largest
    return shifted - np.float32(np.log(np.exp(shifted, dtype=np.float64).sum()))


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k largest, the largest first; of equal ones the first comes first."""
    k = min(k, len(scores))
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    found = np.flatnonzero(scores >= least)
    return found[np.argsort(-scores[found], kind="stable")][:k]
