# SPDX-License-Identifier: Apache-2.0
"""JSON Lines in: one object a line; and rows together as batches."""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One thing to do.

    Attributes
    ----------
    index : int
        Its place in the input, from 0; random numbers are drawn by it.
    where : str
        What errors call it.
    fields : dict
        What the input says of it.
    """

    index: int
    where: str
    fields: dict[str, Any]

    def digest(self) -> str:
        """Sixteen hex digits of its fields, whatever their order and spacing in the file.

        Examples
        --------
        >>> from gpt2cy.cli.rows import Row
        >>> a, b = (Row(0, "line 1", fields) for fields in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
        >>> a.digest() == b.digest(), len(a.digest())
        (True, 16)
        """
        return digest(self.fields)

    def stamp(self, run: str, **more: Any) -> dict[str, Any]:
        """What its record begins with: its place, what it was made from, and its "id" if it has one."""
        own = {"id": self.fields["id"]} if "id" in self.fields else {}
        return {"row": self.index, **own, "input": self.digest(), "run": run, **more}

    def error(self, error: object) -> ValueError:
        """An error about this row, to be raised."""
        return ValueError(f"{self.where}: {error}")


def digest(value: Any) -> str:
    """Sixteen hex digits of a plain value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_bytes(path: str) -> bytes:
    """Return what a file holds, or standard input for ``-``."""
    if path == "-":
        return sys.stdin.buffer.read()
    with open(path, "rb") as file:
        return file.read()


def read_text(path: str) -> str:
    """Return a file's text, exactly; ``-`` is standard input."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name(path)}: expected UTF-8, got byte {error.object[error.start]:#04x} "
                         f"at {error.start}") from None  # fmt: skip


def name(path: str) -> str:
    """What errors call a file."""
    return "stdin" if path == "-" else path


def read_rows(path: str, key: str, first: int = 0) -> list[Row]:
    """Read objects that have a text under `key`, one a line; blank lines do not count.

    Raises
    ------
    ValueError
        When a line is something else; the message has its number.
    """
    rows: list[Row] = []
    for number, line in enumerate(read_text(path).removeprefix("\ufeff").split("\n"), 1):
        if line.strip():
            rows.append(_row(first + len(rows), f"{name(path)}: line {number}", line, key))
    return rows


def _row(index, where, line, key):
    try:
        fields = json.loads(line)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{where}: expected a JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(fields).__name__}")
    if not isinstance(fields.get(key), str):
        names = ", ".join(f'"{name}"' for name in sorted(fields))
        got = type(fields[key]).__name__ if key in fields else f"only {names}" if names else "none"
        raise ValueError(f'{where}: expected a text under "{key}", got {got}')
    return Row(index, where, fields)


def batches(sizes: Sequence[int], most_rows: int, most_tokens: int) -> Iterator[range]:
    """Yield consecutive rows that are done together.

    Nothing is padded in a batch, so rows of different lengths need no sorting. Their lengths say how many go
    together: at most `most_rows`, of at most `most_tokens` tokens in all, but always one.

    Examples
    --------
    >>> from gpt2cy.cli.rows import batches
    >>> [list(batch) for batch in batches([5, 5, 90, 5, 5, 5], most_rows=2, most_tokens=50)]
    [[0, 1], [2], [3, 4], [5]]
    """
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and (i - start == most_rows or total + size > most_tokens):
            yield range(start, i)
            start, total = i, 0
        total += size
    if start < len(sizes):
        yield range(start, len(sizes))
