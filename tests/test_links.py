# SPDX-License-Identifier: Apache-2.0
"""Links and paths in the documentation lead to something."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "perf").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = "docs", "examples", "gpt2cy", "perf", "tests"
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[a-z\d_./-]+\.(?:c|h|md|pxd|py|pyx))`")


def anchors(page):
    """What the headings of a page are called in links."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def dead(page, text):
    """Links and paths of a page that lead nowhere."""
    for target in LINK.findall(text):
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        if "://" not in target and (not there.exists() or (anchor and anchor not in anchors(there))):
            yield target
    yield from (path for path in PATH.findall(text) if not (ROOT / path).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page):
    assert list(dead(page, page.read_text(encoding="utf-8"))) == []


def test_a_dead_link_is_found():
    page = ROOT / "docs" / "generate.md"
    text = "[a](checkpoints.md#saving) [b](checkpoints.md#no) [c](no.md) [d](e://f) `docs/no.md` `x/y.py`"
    assert list(dead(page, text)) == ["checkpoints.md#no", "no.md", "docs/no.md"]
    assert PAGES and page in PAGES
