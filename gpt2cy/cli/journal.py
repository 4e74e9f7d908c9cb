# SPDX-License-Identifier: Apache-2.0
"""JSON Lines out: a line for each row, in the order of the input, from where the last run was killed.

A row's line says what it was made from: "row" (its index), "input" (a digest of the input row), "seed", and
"run" (a digest of the settings and of the model). So a second run knows what is finished, and notices when
it would put together what does not belong together.

Lines are added a batch at a time, each batch with one write that is flushed to the disk. What a killed run
leaves is whole lines and at most one that is cut off; it has no line end, is dropped, and its row done again.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from gpt2cy.cli.rows import Row

fcntl: Any  # None on Windows
try:
    import fcntl
except ImportError:
    fcntl = None


class Journal:
    """A file of finished rows.

    Parameters
    ----------
    path : str
        Made if it does not exist.
    overwrite : bool
        Whether to begin anew, whatever it holds.

    Attributes
    ----------
    done : list of dict
        "row", "input", "seed" and "run" of each finished row.
    dropped : bool
        Whether a line was cut off.

    Raises
    ------
    ValueError
        When the file holds anything but rows as written by this class, or another process is writing to it.
    OSError
        When it cannot be opened.
    """

    def __init__(self, path: str, overwrite: bool = False):
        self.path = path
        self.done: list[dict[str, Any]] = []
        self.dropped = False
        self._file: BinaryIO = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
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
        end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                self.dropped = True
                break
            self.done.append(self._stamp(line))
            end += len(line)
        self._file.truncate(end)
        self._file.seek(end)

    def _stamp(self, line):
        index = len(self.done)
        try:
            record = json.loads(line)
            stamp = {key: record[key] for key in ("row", "input", "seed", "run")}
        except (ValueError, TypeError, KeyError):
            stamp = {}
        if stamp.get("row") != index:
            raise ValueError(
                f"{self.path}: line {index + 1}: expected row {index} as this command writes it; "
                "--overwrite begins anew"
            )
        return stamp

    def check(self, rows: Sequence[Row], seed: int | None, run: str) -> None:
        """Raise ValueError unless the finished rows are the first of these, made with this seed and run."""
        if len(self.done) > len(rows):
            raise self._error(f"it has {len(self.done)} rows, the input has {len(rows)}")
        for row, stamp in zip(rows, self.done, strict=False):
            if stamp["seed"] != seed:
                raise self._error(f"row {row.index} was made with seed {stamp['seed']}, not {seed}")
            if stamp["run"] != run:
                raise self._error(f"row {row.index} was made with other settings or by another model")
        changed = [
            row
            for row, stamp in zip(rows, self.done, strict=False)
            if stamp["input"] != row.digest()
        ]
        if changed:
            also = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            raise self._error(f"{changed[0].where}{also}: changed since row {changed[0].index} was made of it")

    def _error(self, what):
        return ValueError(f"{self.path}: {what}: give another --out, or --overwrite to begin anew")

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Add finished rows; when this returns, they are on the disk."""
        self._file.write(encode(records))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error) -> None:
        self._file.close()


class Printed:
    """The same on stdout, where nothing is finished before."""

    done: Sequence[dict[str, Any]] = ()
    dropped = False

    def check(self, rows: Sequence[Row], seed: int | None, run: str) -> None:
        """Nothing to compare with."""

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Print rows; JSON is UTF-8, whatever the terminal is."""
        sys.stdout.flush()
        sys.stdout.buffer.write(encode(records))
        sys.stdout.buffer.flush()

    def __enter__(self) -> "Printed":
        return self

    def __exit__(self, *error) -> None:
        pass


def encode(records: Iterable[dict[str, Any]]) -> bytes:
    """JSON Lines of records; numbers that JSON does not have are an error."""
    return "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records).encode()


def open_journal(path: str | None, overwrite: bool, inputs: Iterable[str] = ()) -> Journal | Printed:
    """Open --out, or stdout without it; a file that is read cannot be written to."""
    if path is None:
        return Printed()
    for source in inputs:
        if source != "-" and Path(path).exists() and os.path.samefile(source, path):
            raise ValueError(f"--out: expected another file than the input, got {path}")
    return Journal(path, overwrite)
