# SPDX-License-Identifier: Apache-2.0
"""What layers and models give to pickle and copy, and take from them: subclasses and their attributes too."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")


def rebuild(cls: type[_T], arguments: Iterable[Any], options: Mapping[str, Any]) -> _T:
    """What pickle calls: an object of these arguments, without weights. No subclass's __init__ runs."""
    ours = next(base for base in cls.__mro__ if base.__module__.partition(".")[0] == "gpt2cy")
    return ours.__new__(cls, *arguments, **options)


def reduced(
    thing: object, arguments: Iterable[Any], options: Mapping[str, Any], state: Any
) -> tuple[Any, ...]:
    """What __reduce__ returns; attributes that a subclass has added go with the state."""
    added = getattr(thing, "__dict__", None)
    return rebuild, (type(thing), arguments, options), (state, added) if added else state


def plain(thing: object, state: Any) -> Any:
    """The state without a subclass's attributes, which the object gets."""
    if not isinstance(state, tuple) or len(state) != 2 or not isinstance(state[1], dict):
        return state
    if not hasattr(thing, "__dict__"):
        raise TypeError(f"state: {type(thing).__name__} cannot take the attributes of a subclass")
    vars(thing).update(state[1])
    return state[0]


def parts_of(thing: object, state: object, *names: str) -> list[Any]:
    """The values of a pickled state that has just these names."""
    state = plain(thing, state)
    if not isinstance(state, dict) or set(state) != set(names):
        raise ValueError(f"state: expected a dict of {', '.join(names)}, got {type(state).__name__}")
    return [state[name] for name in names]
