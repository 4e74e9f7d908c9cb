# SPDX-License-Identifier: Apache-2.0
"""A flag for every field of `Sampling`: names, kinds, defaults and help are read from the dataclass.

A field's annotation says what its flag takes, its paragraph in the docstring becomes the help, and the
dataclass itself refuses values that make no sense. Only a field that holds a function has no flag.
"""

import argparse
import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from gpt2cy.generation.sampling import Sampling

SEPARATE = ("seed",)  # a run's, not a row's: the command adds it


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the flags; one that is not given leaves nothing behind."""
    group = parser.add_argument_group("sampling")
    texts = _paragraphs(inspect.getdoc(Sampling) or "")
    for field in fields():
        kind = _flag(typing.get_type_hints(Sampling)[field.name])
        default = None if field.default is dataclasses.MISSING else field.default
        about = texts[field.name] + ("" if default is None else f" (default: {default})")
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=f"sampling_{field.name}",
            default=argparse.SUPPRESS,
            help=about.replace("%", "%%"),
            **kind,
        )


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags set, by field."""
    found = {
        name.removeprefix("sampling_"): value
        for name, value in vars(args).items()
        if name.startswith("sampling_")
    }
    return {name: dict(value) if _is_pairs(value) else value for name, value in found.items()}


def fields() -> list[dataclasses.Field]:
    """The fields that have flags here."""
    hints = typing.get_type_hints(Sampling)
    return [
        field
        for field in dataclasses.fields(Sampling)
        if field.name not in SEPARATE and not _holds(hints[field.name], Callable)
    ]


def _flag(hint) -> dict[str, Any]:
    """What argparse is told of a field of this annotation."""
    if _holds(hint, Mapping):
        return {"action": "append", "type": _pair, "metavar": "ID=NUMBER"}
    if bool in _kinds(hint):
        return {"type": _word, "metavar": "WORD"}
    if str in _kinds(hint):
        return {"action": "append", "metavar": "TEXT"}
    if any(typing.get_origin(kind) for kind in _kinds(hint)):  # a collection, of ids
        return {"action": "append", "type": int, "metavar": "ID"}
    return {"type": float, "metavar": "X"} if float in _kinds(hint) else {"type": int, "metavar": "N"}


def _kinds(hint):
    """The alternatives of an annotation."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _holds(hint, kind):
    """Whether an alternative is a collection (or function) of this kind."""
    origins = [typing.get_origin(alternative) or alternative for alternative in _kinds(hint)]
    kind = typing.get_origin(kind) or kind
    return any(isinstance(origin, type) and issubclass(origin, kind) for origin in origins if origin is not object)
