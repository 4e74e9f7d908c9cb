# SPDX-License-Identifier: Apache-2.0
"""What a study is about: a model and one sequence, given as text or as ids, and labels for its tokens."""

from typing import NamedTuple

import numpy as np

from gpt2cy import _checks
from gpt2cy.config import workspace_bytes
from gpt2cy.kernels import host
from gpt2cy.model import GPT


class Subject(NamedTuple):
    """A model, the ids [T] of one sequence, and what each is called."""

    model: GPT
    tokens: np.ndarray
    labels: list[str]


def split(model, name: str = "model"):
    """The GPT and, if a LanguageModel was given, its tokenizer."""
    if isinstance(model, GPT):
        return model, None
    inner, tokenizer = getattr(model, "model", None), getattr(model, "tokenizer", None)
    if not isinstance(inner, GPT) or tokenizer is None:
        expected = "a GPT or a LanguageModel" if name == "model" else "a LanguageModel"
        raise TypeError(f"{name}: expected {expected}, got {type(model).__name__}")
    return inner, tokenizer


def of(model, tokens, name: str = "tokens", least: int = 1) -> Subject:
    """Return the subject; ValueError if it is not one sequence of `least` tokens to a full block."""
    gpt, tokenizer = split(model)
    if isinstance(tokens, str):
        if tokenizer is None:
            raise TypeError(f"{name}: expected ids, got str (text needs a LanguageModel)")
        tokens = tokenizer.encode(tokens)
    array = _checks.token_array(name, tokens)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one sequence [T], got shape {list(array.shape)}")
    if array.size < least:
        raise ValueError(f"{name}: expected at least {least} tokens, got {array.size}")
    _checks.length_fits(name, array.size, 0, gpt.wpe.num_embeddings)
    ids, _ = _checks.token_ids(array, gpt.wte.num_embeddings, name)
    return Subject(gpt, ids[0], labels_of(tokenizer, ids[0]))


def require_memory(name: str, gpt: GPT, batch: int, length: int) -> None:
    """Raise MemoryError if so many sequences do not fit: before their tokens are made, which takes longer."""
    plan = {"tokens": 8 * batch * length, "workspace": workspace_bytes(gpt.config, batch, length)}
    host.require_memory(name, plan, "batch or length")


def labels_of(tokenizer, ids) -> list[str]:
    """Return the texts of ids where there is a tokenizer that knows them, else the numbers.

    A token that is a part of a character has its bytes as hexadecimal numbers: é in two is \\xc3 and \\xa9.
    """

    def label(token):
        if tokenizer is None or not tokenizer.has_token(token):
            return str(token)
        return tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace")

    return [label(int(token)) for token in ids]


def reduced(gpt: GPT, tokens, kind: str, function) -> np.ndarray:
    """Return [L, B, ...]: a function of one activation of each block and sequence; none is kept."""
    found: list[list] = [[] for _ in gpt.blocks]

    def reading(layer):
        def look(array):
            found[layer].append(function(array))
            return array

        return look

    with gpt.edit({f"h.{layer}.{kind}": reading(layer) for layer in range(len(gpt.blocks))}):
        gpt.next_logits(tokens)
    return np.array(found)


def token_id(model, value, name: str) -> int:
    """Return one id, given as such or, to a LanguageModel, as a text of exactly one token."""
    gpt, tokenizer = split(model)
    if isinstance(value, str):
        if tokenizer is None:
            raise TypeError(f"{name}: expected an id, got str (text needs a LanguageModel)")
        ids = tokenizer.encode(value)
        if len(ids) != 1:
            raise ValueError(f"{name}: expected a text of one token, got {value!r} of {len(ids)}")
        return ids[0]
    return _checks.integer(name, value, 0, gpt.wte.num_embeddings - 1)
