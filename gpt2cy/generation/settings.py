# SPDX-License-Identifier: Apache-2.0
"""Settings of a call, which may differ from prompt to prompt, and the seeds of its rows."""

import secrets

import numpy as np

from gpt2cy import _checks
from gpt2cy.generation.sampling import Sampling

_LISTS = ("stop", "stop_ids")  # whose own value may be a list
_NO_USE = {
    "top_k": "nothing is drawn",
    "top_p": "nothing is drawn",
    "min_p": "nothing is drawn",
    "typical_p": "nothing is drawn",
    "logprobs": "a beam has a score",
}


def per_prompt(sampling, settings: dict, n_prompts: int) -> list[Sampling]:
    """Return the Sampling of each prompt.

    Parameters
    ----------
    sampling : Sampling, list of Sampling, or None
        A list has one for each prompt.
    settings : dict
        Change them: a value for all prompts, or a list of one for each. Where a value itself may be a list
        (stop, stop_ids) a list of lists, or of lists and None, is one for each.
    n_prompts : int

    Raises
    ------
    TypeError, ValueError
        If a list has not one element for each prompt, or as `Sampling`.
    """
    several = isinstance(sampling, (list, tuple))
    bases = list(sampling) if several else [Sampling() if sampling is None else sampling]
    for i, base in enumerate(bases):
        if not isinstance(base, Sampling):
            label = f"sampling[{i}]" if several else "sampling"
            raise TypeError(f"{label}: expected a Sampling, got {type(base).__name__}")
    if several:
        require_length("sampling", bases, n_prompts)
    listed = {name: list(value) for name, value in settings.items() if is_list(name, value)}
    for name, value in listed.items():
        require_length(name, value, n_prompts)
    shared = {name: value for name, value in settings.items() if name not in listed}
    if not listed:
        made = [base.merged(**shared) for base in bases]
        return made if several else made * n_prompts
    if not several:
        bases = bases * n_prompts
    return [
        own_of(base, i, shared, {name: value[i] for name, value in listed.items()})
        for i, base in enumerate(bases)
    ]


def own_of(base: Sampling, i: int, shared: dict, own: dict) -> Sampling:
    """The Sampling of prompt i; an error of a value of its own says whose it is."""
    base = base.merged(**shared)
    try:
        return base.merged(**own)
    except (TypeError, ValueError) as error:
        name, colon, message = str(error).partition(":")
        raise type(error)(f"{name}[{i}]{colon}{message}" if name in own else str(error)) from None


def is_list(name, value):
    """Whether a value is one a prompt."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return name not in _LISTS
    if not isinstance(value, (list, tuple)):
        return False
    return name not in _LISTS or any(item is None or isinstance(item, (list, tuple, set)) for item in value)


def require_length(name, values, n_prompts):
    if len(values) != n_prompts:
        raise ValueError(
            f"{name}: expected one value, or a list of {n_prompts}, one a prompt, got {len(values)}"
        )


def keys(chosen: list[Sampling], sampling, settings: dict) -> list[tuple[int, int]]:
    """Return (seed, row number) of each prompt, which its random numbers are made of.

    A seed for all prompts is told apart by the prompts' numbers; one given for a prompt alone counts by
    itself, wherever the prompt stands. Where none is given, one is drawn, for all or for a prompt alone: the
    seeds that are told replay the results, given as these were.
    """
    if isinstance(settings.get("seed", sampling), (list, tuple, np.ndarray)):
        return [(secrets.randbits(63) if own.seed is None else own.seed, 0) for own in chosen]
    drawn = secrets.randbits(63)
    return [(drawn if own.seed is None else own.seed, i) for i, own in enumerate(chosen)]


def stop_ids_of(settings: Sampling) -> frozenset[int]:
    """The ids that end a continuation."""
    ids = settings.stop_ids
    return frozenset([ids] if isinstance(ids, int) else ids or ())


def require_fit(settings: list[Sampling], vocab_size: int, limit: int) -> None:
    """Raise ValueError if settings do not fit a model of so many ids and positions, or one another."""
    for chosen in {id(item): item for item in settings}.values():
        _checks.id_sequence("logit_bias", list(chosen.logit_bias or {}), vocab_size)
        if chosen.vocab_limit is not None:
            _checks.integer("vocab_limit", chosen.vocab_limit, 1, vocab_size)
        if chosen.logprobs is not None:
            _checks.integer("logprobs", chosen.logprobs, 0, vocab_size)
        if chosen.num_beams > 1:
            require_no_draw(chosen)
        if ids := stop_ids_of(chosen):
            _checks.id_sequence("stop_ids", sorted(ids), vocab_size)
        if chosen.slide_to is not None:
            _checks.integer("slide_to", chosen.slide_to, 1, limit)
        if chosen.on_full == "slide" and chosen.max_new_tokens is None:
            raise ValueError('max_new_tokens: expected a number, since on_full="slide" has no end, got None')


def require_no_draw(settings) -> None:
    """Raise ValueError for settings that beam search would have to ignore."""
    plain = Sampling()
    for name, why in _NO_USE.items():
        if getattr(settings, name) != getattr(plain, name):
            raise ValueError(f"{name}: expected {getattr(plain, name)} where num_beams > 1: {why}")
    if settings.temperature not in (0.0, 1.0):
        raise ValueError("temperature: expected 0 or 1 where num_beams > 1: nothing is drawn")
    if settings.on_full != "stop":
        raise ValueError(
            'on_full: expected "stop" where num_beams > 1: beams have no common beginning to drop'
        )
