# SPDX-License-Identifier: Apache-2.0
"""`LanguageModel.generate` and `.stream`: texts in, texts out.

texts -> ids            the tokenizer; an empty text begins behind the token that ends a document
settings                two more for a tokenizer: it ends at its end of text, and only ids with a token come
generate.run            as `GPT.generate`, with the text of each row
Stream                  the same loop for one row, which hands its text over as it comes
"""

from __future__ import annotations

import numpy as np

from gpt2cy import _checks
from gpt2cy.generation import settings as per
from gpt2cy.generation.batch import Batch
from gpt2cy.generation.generate import make_rows, private_cache, require_room, run
from gpt2cy.generation.result import Generated
from gpt2cy.generation.sampling import Sampling


def generate(lm, text, sampling, cache, progress, allow_special, settings) -> Generated | list[Generated]:
    """What `LanguageModel.generate` documents."""
    one = isinstance(text, str)
    texts = [_checks.unicode_text("text", text)] if one else texts_of(text)
    cache = private_cache(lm.model, cache)
    prompts = encoded(lm, texts, cache, allow_special, one)
    chosen, keys = resolved(lm, sampling, settings, len(texts))
    results = run(lm.model, prompts, chosen, keys, cache, progress, lm.tokenizer)
    return results[0] if one and chosen[0].num_return_sequences == 1 else results


def stream(lm, text, sampling, cache, allow_special, settings) -> Stream:
    """What `LanguageModel.stream` documents."""
    text = _checks.unicode_text("text", text)
    cache = private_cache(lm.model, cache)
    prompts = encoded(lm, [text], cache, allow_special, True)
    chosen, keys = resolved(lm, sampling, settings, 1)
    if chosen[0].num_return_sequences != 1 or chosen[0].num_beams != 1:
        raise ValueError("num_return_sequences, num_beams: a stream has one row; use generate for several")
    return Stream(lm, make_rows(lm.model, prompts, chosen, keys, cache, lm.tokenizer, stream=True), cache)


class Stream:
    """Pieces of text, as soon as nothing can change them any more; `LanguageModel.stream` makes it.

    Attributes
    ----------
    seed : int
        The one used.
    result : Generated or None
        Everything that came, when the last piece has been taken; an error ends a stream without one.
    """

    seed: int
    result: Generated | None

    def __init__(self, lm, rows, cache):
        self._row = rows[0]
        self._batch = Batch(lm.model, rows, cache)
        self._busy = False
        self.seed = self._row.seed
        self.result = None

    def __iter__(self):
        return self

    def __next__(self) -> str:
        while self._batch.running:
            self._step()
            if piece := self._row.text.take():
                return piece
        if self.result is None and self._row.finish_reason:
            self.result = self._row.result(str(self._row.text))
        raise StopIteration

    def _step(self):
        """One more id; what goes wrong ends the stream, as it ends a generator."""
        if self._busy:
            raise RuntimeError("stream: expected one caller at a time, got another before a piece was there")
        self._busy = True
        try:
            self._batch.step()
        except StopIteration as error:  # a callback's; here it would say that the text has ended
            self._batch.running = []
            raise RuntimeError("constrain: expected an answer, got StopIteration") from error
        except BaseException:
            self._batch.running = []
            raise
        finally:
            self._busy = False


def texts_of(value) -> list[str]:
    """A list of texts."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"text: expected a str or a list of str, got {type(value).__name__}")
    if not value:
        raise ValueError("text: expected at least one text, got none")
    return [_checks.unicode_text(f"text[{i}]", item) for i, item in enumerate(value)]


def encoded(lm, texts, cache, allow_special, one) -> list[np.ndarray]:
    """The ids of the prompts, behind those of the cache; `one`: the argument was no list."""
    held = np.empty(0, np.int64) if cache is None else cache.tokens[0]
    names = ["text"] if one else [f"text[{i}]" for i in range(len(texts))]
    prompts = []
    for name, text in zip(names, texts, strict=True):
        ids = lm.encode(text, allow_special=allow_special)
        ids = ids if ids or len(held) else lm._beginning(name)
        prompts.append(np.concatenate([held, np.array(ids, np.int64)]))
    require_room(lm.model, names, prompts, cache)
    return prompts


def resolved(lm, sampling, settings: dict, n_prompts: int):
    """(a Sampling for each prompt, the keys of their random numbers), fitted to the tokenizer."""
    chosen = per.per_prompt(sampling, settings, n_prompts)
    made: dict[int, Sampling] = {}
    for item in chosen:
        if id(item) not in made:
            made[id(item)] = fitted(lm, item)
    chosen = [made[id(item)] for item in chosen]
    return chosen, per.keys(chosen, sampling, settings)


def fitted(lm, settings):
    """The settings with the tokenizer's end of text, and without ids that have no token."""
    tokenizer, changes = lm.tokenizer, {}
    if settings.stop_ids is None and tokenizer.eos_id is not None:
        changes["stop_ids"] = [tokenizer.eos_id]
    if settings.vocab_limit is None:
        if tokenizer.vocab_size < lm.model.wte.num_embeddings:
            changes["vocab_limit"] = tokenizer.vocab_size
        if gaps := lm._gaps():
            changes["logit_bias"] = {**(settings.logit_bias or {}), **dict.fromkeys(gaps, -np.inf)}
    return settings.merged(**changes) if changes else settings
