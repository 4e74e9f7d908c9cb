# SPDX-License-Identifier: Apache-2.0
"""A flag for every field of `Sampling`: names, kinds, defaults and help are read from the dataclass.

A field's annotation says what its flag takes, the paragraph about it in the docstring is the help, and the
dataclass itself refuses values that make no sense. Only a field that holds a function has no flag.
"""

import argparse
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any

from gpt2cy.generation.sampling import Sampling

APART = ("seed",)  # of a run, not of a row: the command has it
SHORT = {"num_return_sequences": ("-n", "--n")}
_PREFIX = "sampling_"


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the flags; one that is not given leaves nothing behind."""
    group = parser.add_argument_group("sampling")
    hints, about = typing.get_type_hints(Sampling), paragraphs(inspect.getdoc(Sampling) or "")
    for field in flagged():
        default = "" if field.default is None else f" (default: {field.default})"
        group.add_argument(
            *SHORT.get(field.name, ()),
            "--" + field.name.replace("_", "-"),
            dest=_PREFIX + field.name,
            default=argparse.SUPPRESS,
            help=(about[field.name] + default).replace("%", "%%"),
            **kind(hints[field.name]),
        )


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags set, by field."""
    found = {
        name.removeprefix(_PREFIX): value for name, value in vars(args).items() if name.startswith(_PREFIX)
    }
    if "logit_bias" in found:
        found["logit_bias"] = dict(found["logit_bias"])
    return found


def flagged() -> list[dataclasses.Field]:
    """The fields that have flags here."""
    hints = typing.get_type_hints(Sampling)
    return [
        field
        for field in dataclasses.fields(Sampling)
        if field.name not in APART and not any(origin(part) is Callable for part in parts(hints[field.name]))
    ]


def kind(hint) -> dict[str, Any]:
    """What argparse is told of a field with this annotation."""
    alternatives = parts(hint)
    literals = [part for part in alternatives if origin(part) is typing.Literal]
    words = [word for part in literals for word in typing.get_args(part)]
    if any(origin(part) is Mapping or origin(part) is dict for part in alternatives):
        return {"action": "append", "type": pair, "metavar": "ID=NUMBER"}
    if words or bool in alternatives:
        words += [True, False] if bool in alternatives else []
        return {"type": word_of(words), "metavar": "|".join(str(word).lower() for word in words)}
    if str in alternatives:
        return {"action": "append", "metavar": "TEXT"}
    if any(origin(part) not in (int, float, type(None)) for part in alternatives):  # a collection of ids
        return {"action": "append", "type": int, "metavar": "ID"}
    return {"type": float, "metavar": "X"} if float in alternatives else {"type": int, "metavar": "N"}


def parts(hint) -> tuple:
    """The alternatives of an annotation."""
    return typing.get_args(hint) if origin(hint) in (typing.Union, UnionType) else (hint,)


def origin(hint):
    """An annotation without what is in its brackets."""
    found = typing.get_origin(hint) or hint
    return Callable if found is typing.get_origin(Callable[[], None]) else found


def pair(argument: str) -> tuple[int, float]:
    """``ID=NUMBER``, for a mapping."""
    token, _, number = argument.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected ID=NUMBER, got {argument!r}") from None


def word_of(words: list):
    """A function from an argument to the one of some values that is written so."""

    def find(argument):
        for word in words:
            if str(word).lower() == argument.lower():
                return word
        raise argparse.ArgumentTypeError(
            f"expected {' or '.join(str(word).lower() for word in words)}, got {argument!r}"
        )

    return find


def paragraphs(docstring: str) -> dict[str, str]:
    """Parameter to the first paragraph about it, of a docstring in numpydoc's form.

    Examples
    --------
    >>> from gpt2cy.cli.options import paragraphs
    >>> paragraphs("a, b : int\\n    Both `of`\\n    them.\\n\\n    More.\\nc : float\\n    Other.")
    {'a': 'both of them', 'b': 'both of them', 'c': 'other'}
    """
    found = {}
    for match in re.finditer(r"^(\w+(?:, \w+)*) :[^\n]*\n((?: +\S[^\n]*\n?)+)", docstring, re.MULTILINE):
        text = " ".join(match[2].split()).replace("`", "").removesuffix(".")
        for name in match[1].split(", "):
            found[name] = text[0].lower() + text[1:]
    return found
