# SPDX-License-Identifier: Apache-2.0
"""How far it is: on a terminal with and without tqdm, elsewhere, and when nobody wants to know."""

import io
import re
import sys

import pytest

from gpt2cy.cli import progress
from gpt2cy.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when told."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def work(clock, seconds=1.0):
    with Progress(4) as shown:
        for _ in range(4):
            clock[0] += seconds
            shown.add(tokens=10)
            shown.add(rows=1)
    return shown.summary()


def test_on_a_terminal_a_line_is_rewritten(clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert work(clock) == "4 rows, 40 tokens in 4.00 s, 10.0 tokens/s"
    out = sys.stderr.getvalue()
    assert "\n" not in out and out.endswith("\r\x1b[K")
    assert "\r1 of 4 rows, 10.0 tokens/s\x1b[K" in out


def test_on_a_terminal_with_tqdm(clock, monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    work(clock)
    assert "10.0 tokens/s" in sys.stderr.getvalue() and "3/4" in sys.stderr.getvalue()


def test_elsewhere_lines_now_and_then(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    work(clock, seconds=progress.LINE_SECONDS * 0.6)
    lines = sys.stderr.getvalue().splitlines()
    assert len(lines) == 2
    assert all(re.fullmatch(r"\d of 4 rows, [\d.]+ tokens/s", line) for line in lines)


def test_nothing_where_nobody_wants_to_know(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(1, shown=False) as quiet:
        clock[0] += 100
        quiet.add(1, 5)
    assert sys.stderr.getvalue() == ""
    assert quiet.summary() == "1 row, 5 tokens in 100.00 s, 0.1 tokens/s"
