# SPDX-License-Identifier: Apache-2.0
"""`Sampling`: all settings of how continuations are chosen, how many, and where they end."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal

import numpy as np

from gpt2cy import _checks

SEEDS = (-(2**63), 2**64 - 1)
_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)  # not subnormal
_STEEPEST = 32.0  # a length to this power, or to minus this, is a number for every length


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen, and when a continuation ends. Checked when made, and immutable.

    The logits of a position go through the following, in this order, which is transformers'; names are its
    names where the meaning is. Each does nothing by default:

    1. `repetition_penalty`, then `frequency_penalty` and `presence_penalty`
    2. `no_repeat_ngram_size`, `logit_bias`, `constrain`, `vocab_limit`
    3. `temperature`
    4. `top_k`, `top_p`, `min_p`, `typical_p`, each among what the ones before it have left
    5. the draw, with probabilities in proportion to exp(logit)

    Where logits are equal, the lower id comes first, everywhere.

    Parameters
    ----------
    max_new_tokens : int, optional
        Most tokens of a continuation, 0 or more. None: until something else ends it.
    temperature : float
        Logits are divided by it. 0 takes the largest logit, of equal ones the lowest id; so does anything
        below 1.2e-38, the smallest float32 there is to divide by.
    top_k : int, optional
        Only the k ids of largest logit. None and 0: all; more than there are: all. Of ids that tie at
        the k-th place the lower ones are in, so 1 is greedy.
    top_p : float, optional
        Only the most likely ids, until they reach this probability together: an id is in if those before it
        have less. 0 leaves the most likely one; None and 1: all.
    min_p : float, optional
        Only ids at least this times as likely as the most likely one. None and 0: all.
    typical_p : float, optional
        Only the most typical ids, until they reach this probability together. Typical is whose surprise,
        -ln p, is near to the mean surprise (Meister et al., "Locally Typical Sampling", 2022). 0 leaves the
        most typical one; None and 1: all.
    repetition_penalty : float
        For each distinct id of the prompt and of what was generated, a positive logit is divided by it and
        a negative one multiplied. More than 0; 1 does nothing, to the bit.
    presence_penalty : float
        Subtracted from the logit of each id that was generated.
    frequency_penalty : float
        Subtracted as many times as the id was generated. Neither counts the prompt, as OpenAI's do not.
    no_repeat_ngram_size : int
        No run of so many ids comes twice, the prompt's included. 0: any may.
    logit_bias : mapping of int to float, optional
        Added to the logits of ids; -inf bans one.
    constrain : function, optional
        Called with all ids so far (a read-only int64 array [T], prompt included) before each token. It
        returns what may come next: a mask of bool [vocab_size], a sequence of ids, or None for anything.
    vocab_limit : int, optional
        Only ids below it, for a model with more rows than its tokenizer has tokens: at most as many as the
        model has.
    num_return_sequences : int
        Continuations of each prompt; the prompt is computed once. Also accepted as `n`. Of beam search, fewer
        where no more are allowed.
    num_beams : int
        1 samples. More: beam search, which looks for the most likely continuation with so many candidates.
    length_penalty : float
        Of beam search: a finished candidate's score is its log-probability over its length to this power,
        from -32 to 32.
    early_stopping : bool or "never"
        Of beam search: True ends with as many finished candidates as beams, False when better ones are
        unlikely, "never" when none can come.
    stop_ids : int or sequence of int, optional
        Ids that end a continuation; the one that did is its last.
    stop : str or sequence of str, optional
        Texts that end a continuation, which then ends before them.
    on_full : {"stop", "slide"}
        What happens when the context is full: the end, or going on with the last `slide_to` ids.
    slide_to : int, optional
        How many ids stay when the context slides. None: half of what it holds.
    logprobs : int, optional
        Log-probabilities are wanted, as the model gives them, before everything above: of the chosen token,
        and of so many most likely ones besides, at most as many as the model has. None: no.
    seed : int, optional
        From -2**63 to 2**64 - 1; of negative ones the last 64 bits count. None: one is drawn, and reported.
    n : int, optional
        Another name of the argument `num_return_sequences`, and of nothing else.

    Raises
    ------
    TypeError, ValueError
        If a setting is of the wrong kind, or out of its range; the message names it.

    Examples
    --------
    >>> from gpt2cy import Sampling
    >>> base = Sampling(temperature=0.8, top_k=50)
    >>> base.merged(top_p=0.95, n=2).top_p
    0.95
    >>> Sampling(temperature=-1)
    Traceback (most recent call last):
    ValueError: temperature: expected a finite number >= 0, got -1
    """

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    constrain: Callable[[np.ndarray], Any] | None = None
    vocab_limit: int | None = None
    num_return_sequences: int = 1
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    stop_ids: int | Sequence[int] | None = None
    stop: str | Sequence[str] | None = None
    on_full: Literal["stop", "slide"] = "stop"
    slide_to: int | None = None
    logprobs: int | None = None
    seed: int | None = None
    n: InitVar[int | None] = None

    def __post_init__(self, n):
        def put(name, check, *limits):
            if (value := getattr(self, name)) is not None or name not in _OPTIONAL:
                object.__setattr__(self, name, check(name, value, *limits))

        for name in ("max_new_tokens", "top_k", "no_repeat_ngram_size", "logprobs"):
            put(name, _count, 0)
        for name in ("vocab_limit", "num_return_sequences", "num_beams", "slide_to"):
            put(name, _count, 1)
        put("temperature", _checks.real_within, 0.0)
        for name in ("top_p", "min_p", "typical_p"):
            put(name, _checks.real_within, 0.0, 1.0)
        put("repetition_penalty", _penalty)
        for name in ("presence_penalty", "frequency_penalty"):
            put(name, _checks.real_within, -_LARGEST, _LARGEST)
        put("length_penalty", _checks.real_within, -_STEEPEST, _STEEPEST)
        put("logit_bias", _bias)
        put("early_stopping", _early)
        put("stop_ids", _ids)
        put("stop", _texts)
        put("on_full", _checks.choice, ("stop", "slide"))
        put("seed", _checks.integer, *SEEDS)
        if n is not None:
            n = _count("n", n, 1)
            if self.num_return_sequences not in (1, n):
                raise ValueError(
                    f"n: expected what num_return_sequences says, {self.num_return_sequences}, "
                    f"or only one of the two, got {n}"
                )
            object.__setattr__(self, "num_return_sequences", n)
        _checks.optional_function("constrain", self.constrain)
        if 1 < self.num_beams < self.num_return_sequences:
            raise ValueError(
                f"num_return_sequences: expected at most num_beams ({self.num_beams}), "
                f"got {self.num_return_sequences}"
            )

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is taken, so that nothing is drawn."""
        return self.temperature < _SMALLEST or self.top_k == 1

    def merged(self, **overrides: Any) -> Sampling:
        """Return these settings with some replaced.

        Raises
        ------
        TypeError, ValueError
            If there is no such setting, or as `Sampling`.

        Examples
        --------
        >>> from gpt2cy import Sampling
        >>> Sampling(top_k=50).merged(temperature=0).top_k
        50
        """
        unknown = overrides.keys() - _NAMES
        if unknown:
            raise TypeError(f"{min(unknown)}: no such setting; there are {', '.join(sorted(_NAMES))}")
        if "n" in overrides and "num_return_sequences" not in overrides:
            overrides["num_return_sequences"] = 1
        return dataclasses.replace(self, **overrides) if overrides else self


def _count(name: str, value, low: int) -> int:
    if isinstance(value, (float, np.floating)):  # a number, though none of these: a wrong value, not kind
        raise ValueError(f"{name}: expected an integer >= {low}, got {value}")
    return _checks.integer(name, value, low)


def _penalty(name, value):
    value = _checks.real(name, value, positive=True)
    if not _SMALLEST <= value <= _LARGEST:
        raise ValueError(f"{name}: expected a number within the normal range of float32, got {value}")
    return value


def _bias(name, value):
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: expected a mapping of ids to numbers, got {type(value).__name__}")
    found = {}
    for token, bias in value.items():
        token = _checks.integer(f"{name}: id", token, 0, 2**63 - 1)
        banned = isinstance(bias, (float, np.floating)) and bias == -math.inf
        label = f"{name}[{token}]"
        found[token] = -math.inf if banned else _checks.real_within(label, bias, -_LARGEST, _LARGEST)
    return found


def _early(name, value):
    if isinstance(value, str):
        return _checks.choice(name, value, ("never",))
    return _checks.flag(name, value)


def _ids(name, value):
    if isinstance(value, (int, np.integer)):
        value = (value,)
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if not isinstance(value, (list, tuple)) and not (isinstance(value, np.ndarray) and value.ndim == 1):
        raise TypeError(f"{name}: expected an id, a list of ids or None, got {type(value).__name__}")
    return tuple(_checks.integer(f"{name}[{i}]", token, 0) for i, token in enumerate(value))


def _texts(name, value):
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name}: expected text (str) or a list of texts, got {type(value).__name__}")
    texts = tuple(_checks.unicode_text(f"{name}[{i}]", text) for i, text in enumerate(value))
    if "" in texts:
        raise ValueError(f"{name}[{texts.index('')}]: expected text that is not empty, got ''")
    return texts


_FIELDS = dataclasses.fields(Sampling)
_OPTIONAL = {item.name for item in _FIELDS if item.default is None}
_NAMES = {*(item.name for item in _FIELDS), "n"}
