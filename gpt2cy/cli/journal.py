# SPDX-License-Identifier: Apache-2.0
"""Where finished rows go: a file of JSON Lines that can be gone on with, or stdout.

A row's line says what it was made from: "row" (its place), "input" (a digest of the input row), "run" (a
digest of the settings and of the model) and "seed". So a second run knows what is finished, and notices when
it would put together what does not belong together.

Lines are added a batch at a time, each batch with one write that is flushed to the disk. What a killed run
leaves is whole lines and at most one that is cut off; that has no line end, is dropped, and its row redone.
"""

import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpt2cy.cli.rows import Row

fcntl: Any  # None on Windows
try:
    import fcntl
except ImportError:
    fcntl = None

Record = dict[str, Any]
STAMP = ("row", "input", "run")  # and "seed", where there is one


class Journal:
    """A file of finished rows, in the order of the input.

    Parameters
    ----------
    path : str
        Made if it does not exist.
    overwrite : bool
        Whether to begin anew, whatever it holds.

    Attributes
    ----------
    done : list of dict
        What was stamped on each finished row.
    dropped : bool
        Whether a line was cut off.

    Raises
    ------
    ValueError
        When the file holds anything but rows as `append` writes them, or another process is writing to it.
    OSError
        When it cannot be opened.
    """

    def __init__(self, path: str, overwrite: bool = False):
        self.path = path
        self.done: list[Record] = []
        self.dropped = False
        self._file = open(path, "a+b")  # noqa: SIM115  # until the journal is closed
        try:
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # some devices can be read for ever
                raise ValueError(f"{path}: expected a file to go on with, got a device")
            self._lock()
            if overwrite:
                self._file.truncate(0)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _lock(self):
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{self.path}: another process is writing to it") from None
            except OSError:  # a file system without locks
                pass

    def _read(self):
        end = self._file.seek(0)
        for line in self._file:
            if not line.endswith(b"\n"):
                self.dropped = True
                break
            self.done.append(self._stamp(line))
            end += len(line)
        self._file.truncate(end)

    def _stamp(self, line):
        try:
            record = json.loads(line)
            stamp = {key: record[key] for key in STAMP} | {"seed": record.get("seed")}
        except (ValueError, TypeError, KeyError, AttributeError):
            stamp = {"row": None, "seed": None}
        if stamp["row"] != len(self.done) or not isinstance(stamp["seed"], (int, type(None))):
            index = len(self.done)
            raise ValueError(
                f"{self.path}: line {index + 1}: expected row {index} as this command writes it; "
                "--overwrite begins anew"
            )
        return stamp

    def check(self, rows: Sequence[Row], run: str, seed: int | None = None) -> None:
        """Raise ValueError unless the finished rows are the first of these, made with this run and seed."""
        if len(self.done) > len(rows):
            raise self._error(f"it has {len(self.done)} rows, the input has {len(rows)}")
        pairs = list(zip(rows, self.done, strict=False))
        for row, stamp in pairs:
            if stamp["seed"] != seed:
                raise self._error(f"row {row.index} was made with seed {stamp['seed']}, not {seed}")
            if stamp["run"] != run:
                raise self._error(f"row {row.index} was made with other settings or by another model")
        changed = [row for row, stamp in pairs if stamp["input"] != row.digest()]
        if changed:
            also = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            first = changed[0]
            raise self._error(f"{first.where}{also}: changed since row {first.index} was made of it")

    def _error(self, what):
        return ValueError(f"{self.path}: {what}; give another --out, or --overwrite to begin anew")

    def append(self, records: Iterable[Record]) -> None:
        """Add finished rows; when this returns, they are on the disk."""
        self._file.write("".join(map(json_line, records)).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error) -> None:
        self._file.close()


class Printed:
    """The same on stdout, where nothing is finished before.

    Parameters
    ----------
    line : callable
        A record to its text.
    """

    def __init__(self, line: Callable[[Record], str]):
        self.line = line
        self.done: list[Record] = []
        self.dropped = False

    def check(self, rows: Sequence[Row], run: str, seed: int | None = None) -> None:
        """There is nothing that would not fit."""

    def append(self, records: Iterable[Record]) -> None:
        """Print rows, now."""
        say("".join(map(self.line, records)))

    def __enter__(self) -> "Printed":
        return self

    def __exit__(self, *error) -> None:
        pass


def say(text: str) -> None:
    """Write to stdout, now; what its encoding cannot express becomes an escape."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def json_line(record: Record, ascii: bool = False) -> str:
    """A line of JSON, which has no infinities and no NaN: they become null.

    A lone surrogate, which an input's "id" may have, is in UTF-8 only as an escape.
    """
    line = json.dumps(_finite(record), ensure_ascii=ascii, allow_nan=False) + "\n"
    try:
        line.encode()
    except UnicodeEncodeError:
        return json_line(record, ascii=True)
    return line


def printed_json_line(record: Record) -> str:
    """The same for stdout, whose encoding may be another than JSON's."""
    return json_line(record, ascii=(sys.stdout.encoding or "").lower() not in ("utf-8", "utf8"))


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
