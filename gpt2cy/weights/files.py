# SPDX-License-Identifier: Apache-2.0
"""Reading files: bounded, by offset, never mapped.

A mapped file that is cut short ends the process with SIGBUS; a read of it ends with an error. The file that
was opened stays open until the checkpoint is closed: one that is replaced meanwhile is read to its old end.
"""

import json
import os
import re
import threading
from pathlib import Path

JSON_BYTES = 64 << 20  # a config.json has some thousand, an index some hundred thousand


class File:
    """A file open for reading; every read is checked against the size it had when it was opened.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    ValueError
        If it is no regular file.
    OSError
        If it cannot be opened.
    """

    def __init__(self, path):
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():  # opening a pipe would wait for its other end
            raise ValueError(
                f"{path}: expected a file, found {'a folder' if self.path.is_dir() else 'a device'}"
            )
        self.handle = open(self.path, "rb", buffering=0)  # noqa: SIM115 - open until close()
        self.size = os.fstat(self.handle.fileno()).st_size
        self._lock = threading.Lock()  # seek and read are two steps

    def __str__(self):
        return str(self.path)

    def check(self, offset: int, count: int, what: str) -> None:
        """Raise ValueError unless bytes offset .. offset + count - 1 lie within the file."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise ValueError(
                f"{self}: {what} lies at bytes {offset:,} to {offset + count:,}, "
                f"but the file ends at {self.size:,}: it is damaged or cut short"
            )

    def read_into(self, buffer, offset: int, what: str) -> None:
        """Fill a writable buffer of bytes from offset on."""
        view = memoryview(buffer)
        self.check(offset, len(view), what)
        done = 0
        while done < len(view):
            count = self._some(view[done:], offset + done)
            if not count:
                raise OSError(f"{self}: the file was cut short while {what} was being read")
            done += count

    def _some(self, view, offset):
        """Read into a buffer what comes at once; safe in several threads."""
        if hasattr(os, "preadv"):
            return os.preadv(self.handle.fileno(), [view], offset)
        with self._lock:
            self.handle.seek(offset)
            return self.handle.readinto(view)

    def read(self, offset: int, count: int, what: str) -> bytes:
        """Return count bytes from offset on."""
        self.check(offset, count, what)
        buffer = bytearray(count)
        self.read_into(buffer, offset, what)
        return bytes(buffer)

    def close(self) -> None:
        self.handle.close()


class Stream:
    """Reads forwards through a part of a file.

    Parameters
    ----------
    file : File
    offset, end : int
        The part.
    what : str
        What it holds, for messages.
    """

    WINDOW = 1 << 16

    def __init__(self, file: File, offset: int, end: int, what: str):
        self.file, self.offset, self.end, self.what = file, offset, end, what
        self._window, self._start = b"", offset

    @property
    def left(self) -> int:
        """Bytes that follow."""
        return self.end - self.offset

    def read(self, count: int) -> bytes:
        """Return just that many bytes, or raise ValueError."""
        if count > self.left:
            raise ValueError("it ends before it is complete")
        at = self.offset - self._start
        if at + count > len(self._window):
            self._window = self.file.read(self.offset, min(max(count, self.WINDOW), self.left), self.what)
            self._start, at = self.offset, 0
        self.offset += count
        return self._window[at : at + count]

    def skip(self, count: int) -> None:
        """Leave out that many bytes."""
        if count > self.left:
            raise ValueError("it ends before it is complete")
        self.offset += count
        if self.offset > self._start + len(self._window):
            self._window, self._start = b"", self.offset


def read_json(path) -> object:
    """Return what a JSON file holds, or raise ValueError naming the file."""
    path = Path(path)
    file = File(path)
    try:
        if file.size > JSON_BYTES:
            raise ValueError(f"{path}: expected at most {JSON_BYTES:,} bytes of JSON, found {file.size:,}")
        return parse_json(file.read(0, file.size, "JSON"), str(path))
    finally:
        file.close()


def parse_json(text: bytes, where: str) -> object:
    """Return the value of a JSON text, or raise ValueError naming where it was found."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: expected JSON: {short(str(error), 100)}") from None


def is_plain_name(name: object) -> bool:
    """Whether something from a file is the name of a file, and no path to elsewhere."""
    return isinstance(name, str) and re.fullmatch(r"[^/\\\0:]+", name) is not None and name not in (".", "..")


def short(text: str, most: int = 80) -> str:
    """Return a text from a file as it may stand in a message: printable and of bounded length."""
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= most else text[: most - 3] + "..."
