# SPDX-License-Identifier: Apache-2.0
"""How far it is and how fast, on stderr: on a terminal a bar (tqdm) or a line rewritten, elsewhere lines."""

import sys
import time
from typing import Any

TERMINAL_SECONDS = 0.1  # between two updates
LINE_SECONDS = 30.0  # where each update stays


class Progress:
    """Rows done, and tokens a second.

    Parameters
    ----------
    total : int
        Rows to do.
    shown : bool
        Whether to say anything before the end.
    """

    def __init__(self, total: int, shown: bool = True):
        self.total, self.rows, self.tokens = total, 0, 0
        self.start = self.said = time.monotonic()
        self.stream: Any = sys.stderr if shown else None
        self.terminal = self.stream is not None and self.stream.isatty()
        self.rewritten = False
        self.bar = self._bar() if self.terminal else None

    def _bar(self):
        try:
            from tqdm import tqdm  # type: ignore[import-untyped]  # it has no types
        except ImportError:
            return None
        return tqdm(total=self.total, unit="row", leave=False, file=self.stream)

    def add(self, rows: int = 0, tokens: int = 0) -> None:
        """Count what has been done, and show it if it is time."""
        self.rows += rows
        self.tokens += tokens
        now = time.monotonic()
        if self.stream is None or now - self.said <= (TERMINAL_SECONDS if self.terminal else LINE_SECONDS):
            return
        self.said = now
        if self.bar is not None:
            self.bar.n = self.rows
            self.bar.set_postfix_str(self._speed())  # draws it
        else:
            line = f"{self.rows:,} of {self.total:,} rows, {self._speed()}"
            self._write(f"\r{line}\x1b[K" if self.terminal else f"{line}\n")
            self.rewritten = self.terminal

    def summary(self) -> str:
        """Rows, tokens, seconds and tokens a second of all that was done."""
        rows = f"{self.rows:,} row" + "s" * (self.rows != 1)
        return f"{rows}, {self.tokens:,} tokens in {self._seconds():.2f} s, {self._speed()}"

    def _seconds(self):
        return max(time.monotonic() - self.start, 1e-9)

    def _speed(self):
        return f"{self.tokens / self._seconds():,.1f} tokens/s"

    def _write(self, text):
        self.stream.write(text)
        self.stream.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error) -> None:
        """Leave the terminal as if nothing had been there."""
        if self.bar is not None:
            self.bar.close()
        elif self.rewritten:
            self._write("\r\x1b[K")
