# SPDX-License-Identifier: Apache-2.0
"""`GPT.generate`: prompts in, continuations out.

checked_prompts         ids, behind what a cache holds
settings.per_prompt     a Sampling for each prompt
Batch                   the loop (batch) over sampled rows
beams.run               and, where num_beams asks for it, the search for the best continuations
Generated               results in the order of the prompts, a prompt's samples one after the other
"""

from __future__ import annotations

import numpy as np

from gpt2cy import _checks
from gpt2cy.cache import KVCache
from gpt2cy.generation import beams, prefix
from gpt2cy.generation import settings as per
from gpt2cy.generation.batch import Batch, Row
from gpt2cy.generation.result import Generated
from gpt2cy.generation.stops import Text


def generate(model, prompts, sampling, cache, details, progress, settings) -> list:
    """What `GPT.generate` documents."""
    details = _checks.flag("details", details)
    cache = private_cache(model, cache)
    prompts = checked_prompts(prompts, model.wte.num_embeddings, cache)
    require_room(model, [f"prompts[{i}]" for i in range(len(prompts))], prompts, cache)
    chosen = per.per_prompt(sampling, settings, len(prompts))
    if any(item.stop for item in chosen):
        raise ValueError("stop: strings need a tokenizer: LanguageModel.generate has one, here are stop_ids")
    results = run(model, prompts, chosen, per.keys(chosen, sampling, settings), cache, progress)
    return results if details else [result.tokens for result in results]


def run(model, prompts, chosen, keys, cache=None, progress=None, tokenizer=None) -> list[Generated]:
    """Generate to the end; with a tokenizer the results have text."""
    _checks.optional_function("progress", progress)
    n_rows = sum(max(own.num_return_sequences, own.num_beams) for own in chosen)
    try:
        prefix.require_memory(model, n_rows)
        rows = make_rows(model, prompts, chosen, keys, cache, tokenizer)
        searches = make_searches(model, prompts, chosen, keys, cache, tokenizer)
        batch = Batch(model, rows, cache)
        while batch.running:
            n_new = len(batch.step())
            if progress is not None:
                progress(n_new)
        beams.run(model, searches, cache, progress)
    except MemoryError as error:
        raise MemoryError(f"prompts: {n_rows} at once are too many: {error}") from None
    results = [row.result(None if tokenizer is None else text_of(row, tokenizer)) for row in rows]
    results += [result for search in searches for result in search.results()]
    return sorted(results, key=lambda result: result.prompt)  # of one prompt they are in order


def make_rows(model, prompts, chosen, keys, cache, tokenizer=None, stream=False) -> list[Row]:
    """One Row for each sample of each prompt."""
    vocab_size = model.wte.num_embeddings
    limit = model.wpe.num_embeddings if cache is None else cache.capacity
    per.require_fit(chosen, vocab_size, limit)
    rows = []
    for i, (ids, own, key) in enumerate(zip(prompts, chosen, keys, strict=True)):
        for sample in range(own.num_return_sequences if own.num_beams == 1 else 0):
            text = Text(tokenizer, own.stop or ()) if tokenizer and (own.stop or stream) else None
            rows.append(Row(i, sample, ids, own, key, vocab_size, limit, text))
    return rows


def make_searches(model, prompts, chosen, keys, cache, tokenizer) -> list[beams.Search]:
    """One Search for each prompt that wants beams."""
    limit = model.wpe.num_embeddings if cache is None else cache.capacity
    return [
        beams.Search(i, ids, own, seed, limit, model.wte.num_embeddings, tokenizer)
        for i, (ids, own, (seed, _)) in enumerate(zip(prompts, chosen, keys, strict=True))
        if own.num_beams > 1
    ]


def text_of(row, tokenizer):
    """The text of a row that has ended."""
    if row.text is not None:
        return str(row.text)
    shown = row.tokens[:-1] if row.finish_reason == "stop_id" else row.tokens
    return tokenizer.decode(shown)


def checked_prompts(prompts, vocab_size, cache) -> list[np.ndarray]:
    """Private int64 arrays of whole prompts: behind what the cache holds, with that."""
    held = np.empty(0, np.int64) if cache is None else cache.tokens[0]
    if isinstance(prompts, str) or is_list_of(prompts, str):
        raise TypeError("prompts: expected lists of token ids, got str; LanguageModel.generate takes text")
    if is_list_of(prompts, (int, np.integer)):
        raise ValueError("prompts: expected a list of id sequences, got one of ids; one prompt is [ids]")
    nothing = [False] * len(prompts) if is_list_of(prompts, object) else []
    if len(held) and nothing:  # then a prompt need not add any
        nothing = [hasattr(item, "__len__") and len(item) == 0 for item in prompts]
        for i in np.flatnonzero(nothing):
            _checks.id_sequence(f"prompts[{i}]", prompts[i], vocab_size)  # nothing, but of the right kind
        prompts = [held[:1] if empty else item for item, empty in zip(prompts, nothing, strict=True)]
    arrays = _checks.token_sequences(prompts, vocab_size, "prompts")
    if any(nothing):
        arrays = [array[:0] if empty else array for array, empty in zip(arrays, nothing, strict=True)]
    return [np.concatenate([held, array]) for array in arrays] if len(held) else arrays


def is_list_of(values, kind):
    """Whether it is a list or tuple with something of a kind in it."""
    return isinstance(values, (list, tuple)) and any(isinstance(item, kind) for item in values)


def require_room(model, names, prompts, cache):
    """Raise ValueError if a prompt is too long: none is cut."""
    past = 0 if cache is None else cache.lengths[0]
    for name, ids in zip(names, prompts, strict=True):
        n_new = len(ids) - past
        _checks.length_fits(name, n_new, past, model.wpe.num_embeddings)
        if cache is not None and len(ids) > cache.capacity:
            raise ValueError(
                f"{name}: {n_new} tokens after {past} cached do not fit "
                f"the cache's capacity of {cache.capacity}"
            )


def private_cache(model, cache) -> KVCache | None:
    """A copy of a cache of one slot of this model."""
    if cache is None:
        return None
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache: expected a KVCache, got {type(cache).__name__}")
    vocab_size, n_embd = model.wte.num_embeddings, model.wte.n_embd
    _checks.cache_sizes("cache", cache, len(model.blocks), model.blocks[0].attn.n_heads, n_embd)
    if cache.batch_size != 1:
        raise ValueError(f"cache: expected a cache of one slot, got {cache.batch_size}")
    copy = cache.copy()
    if copy.lengths[0]:
        _checks.token_ids(copy.tokens[0], vocab_size, "cache")
    return copy
