# SPDX-License-Identifier: Apache-2.0
"""The rows that are being generated, and the loop over them.

    Batch(model, rows)
      start      prompts computed, each common beginning once (prefix); each row has a copy of the cache
      step       one id for each row: sampler.choose(logits) -> Row.accept
                 rows that have ended leave; of the others the last ids, through the model (next_logits_many)

Each row has a cache of its own, so rows come and go without a word to the others, and none is padded.
"""

from __future__ import annotations

import numpy as np

from gpt2cy.generation import prefix, trouble
from gpt2cy.generation.result import Generated
from gpt2cy.generation.sampler import Sampler, choose
from gpt2cy.generation.sampling import Sampling
from gpt2cy.generation.settings import stop_ids_of
from gpt2cy.generation.stops import Text


class Row:
    """One continuation of one prompt.

    Parameters
    ----------
    prompt, sample : int
        Which prompt it continues, and which of its continuations it is.
    ids : ndarray of int64
        The whole prompt.
    settings : Sampling
    key : tuple of int
        Seed and row number that its random numbers are made of.
    limit : int
        Most positions of its cache.
    text : Text, optional
        What follows its text: for stop strings and for streams.
    """

    def __init__(
        self,
        prompt: int,
        sample: int,
        ids: np.ndarray,
        settings: Sampling,
        key: tuple[int, int],
        vocab_size: int,
        limit: int,
        text: Text | None = None,
    ):
        self.prompt, self.sample, self.ids, self.settings = prompt, sample, ids, settings
        self.seed, self.limit, self.text = key[0], limit, text
        self.sampler = Sampler(settings, vocab_size, *key, sample, ids)
        self.stop_ids = stop_ids_of(settings)
        self.slides = settings.on_full == "slide"
        self.most = settings.max_new_tokens  # None: until something else ends it
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list = []
        self.held = len(ids)  # positions of the cache that are filled
        self.cache = None
        self.finish_reason = "length" if self.most == 0 else ""  # until it ends
        self.stop: int | str | None = None

    def accept(self, token: int) -> None:
        """Take the id that was chosen."""
        self.sampler.accept(token)
        self.tokens.append(token)
        if token in self.stop_ids:
            return self.finish("stop_id", token)
        if self.text is not None:
            self.text.feed(token)
            if self.text.found is not None:
                return self.finish("stop_string", self.text.found)
        if len(self.tokens) == self.most:
            return self.finish("length")
        if self.held >= self.limit and not self.slides:
            return self.finish("context")

    def finish(self, reason: str, stop: int | str | None = None) -> None:
        """End here."""
        if self.text is not None:
            self.text.finish()
            if self.text.found is not None:  # also one that a broken character has just completed
                reason, stop = "stop_string", self.text.found
        self.finish_reason, self.stop, self.cache = reason, stop, None

    def context(self) -> np.ndarray:
        """The ids that its cache holds."""
        return np.concatenate([self.ids, np.array(self.tokens, np.int64)])[-self.held :]

    def window(self) -> np.ndarray:
        """The ids to be computed again from position 0 when the cache is full: the last `slide_to`."""
        keep = self.settings.slide_to or max(1, self.limit // 2)
        ids = np.concatenate([self.ids, np.array(self.tokens, np.int64)])[-keep:]
        self.held = len(ids)
        return ids

    def result(self, text: str | None = None) -> Generated:
        """What has come out."""
        wanted = self.settings.logprobs
        return Generated(
            tokens=np.array(self.tokens, np.int64),
            finish_reason=self.finish_reason,
            stop=self.stop,
            prompt=self.prompt,
            sample=self.sample,
            seed=self.seed,
            text=text,
            logprobs=None if wanted is None else np.array(self.logprobs, np.float32),
            top_logprobs=self.top_logprobs if wanted else None,
        )


class Batch:
    """Rows in the order of their results; `running` are those that have not ended.

    Parameters
    ----------
    model : GPT
    rows : list of Row
    cache : KVCache, optional
        One slot: what all prompts begin with. It is copied, not changed.
    """

    def __init__(self, model, rows: list[Row], cache=None):
        self.model, self.rows, self.cache = model, rows, cache
        self.running = [row for row in rows if not row.finish_reason]
        self.started = False
        self.logprobs = any(row.settings.logprobs is not None for row in rows)

    def step(self) -> list[Row]:
        """Give each running row one more id; return those rows. The first step computes the prompts."""
        rows = self.running
        if self.started:
            logits = self.next_logits()
        else:
            logits, self.started = self.start(), True
        try:
            ids, logprobs, tops = choose(self.samplers, logits, self.logprobs)
        except FloatingPointError as error:  # the logits themselves have been overwritten
            raise trouble.located(self.model, str(error), (row.context() for row in rows)) from None
        for row, token in zip(rows, ids.tolist(), strict=True):
            row.accept(token)
        if self.logprobs:
            keep(rows, logprobs, tops)
        running = [row for row in rows if not row.finish_reason]
        if len(running) < len(rows):
            self.running = running
            self.enlist()
        return rows

    def enlist(self):
        """The lists that a step wants, of the rows that are running."""
        self.samplers = [row.sampler for row in self.running]
        self.caches = [row.cache for row in self.running]

    def start(self):
        """Compute the prompts, and give each row a cache of its own."""
        rows = self.running
        prompts, first = [], {}  # each prompt once, and where
        for row in rows:
            if row.prompt not in first:
                first[row.prompt] = len(prompts)
                prompts.append(row.ids)
        new_cache, past = prefix.base(self.model, self.cache, prompts)
        logits, places, caches = prefix.compute(self.model, [ids[past:] for ids in prompts], new_cache)
        taken = set()  # a cache is one row's own, for the others there are copies
        for row in rows:
            cache = caches[first[row.prompt]]
            row.cache = cache.copy() if id(cache) in taken else cache
            taken.add(id(cache))
        self.enlist()
        order = [places[first[row.prompt]] for row in rows]
        if order == list(range(len(logits))):
            self.logits = logits
        else:
            prefix.require_memory(self.model, len(rows))
            self.logits = logits[order]
        return self.logits

    def next_logits(self):
        """Logits of what follows the last ids, [rows, V]."""
        rows, out = self.running, self.logits[: len(self.running)]
        if any(row.held >= row.limit for row in rows):
            return self.slide(rows, out)
        last = np.array([[row.tokens[-1]] for row in rows], np.int64)
        self.model.next_logits_many(last, self.caches, out=out)
        for row in rows:
            row.held += 1
        return out

    def slide(self, rows, out):
        """The same, where some rows are full: those begin anew with the ids that they keep."""
        ids = []
        for row in rows:
            if row.held >= row.limit:
                row.cache.reset()
                ids.append(row.window())
            else:
                ids.append(np.array(row.tokens[-1:], np.int64))
                row.held += 1
        for piece in prefix.pieces([len(part) for part in ids]):
            self.model.next_logits_many(ids[piece], self.caches[piece], out=out[piece])
        return out


def keep(rows, logprobs, tops):
    """Store what is known about the ids that were just chosen, for the rows that want it."""
    for row, logprob, top in zip(rows, logprobs.tolist(), tops, strict=True):
        if row.settings.logprobs is not None:
            row.logprobs.append(logprob)
            if row.settings.logprobs:
                row.top_logprobs.append(top)
