# SPDX-License-Identifier: Apache-2.0
"""GEN-11: stop strings in text that comes in pieces, without any model."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt2cy.generation.stops import StopStrings, Text
from gpt2cy.tokenizer import ByteTokenizer


def let_through(pieces, stops):
    """(the pieces that came out, the stop string that was met)."""
    filter_ = StopStrings(stops)
    return [*(filter_.feed(piece) for piece in pieces), filter_.finish()], filter_.found


def expected(text, stops):
    """What is let through, found by looking at the text letter by letter."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


PIECES = ("al", "pha be", "ta ga", "mma")


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "found"),
    [
        (PIECES, ["beta"], "alpha ", "beta"),
        (PIECES, ["beta gamma"], "alpha ", "beta gamma"),
        (PIECES, ["beta gamma", "beta"], "alpha ", "beta"),
        (PIECES, ["a"], "", "a"),
        (PIECES, ["mma", "gam"], "alpha beta ", "gam"),
        (PIECES, ["gamma", "mma"], "alpha beta ", "gamma"),
        (PIECES, ["delta"], "alpha beta gamma", None),
        (PIECES, ["gammas"], "alpha beta gamma", None),
        (PIECES, [], "alpha beta gamma", None),
        (("aa", "ab"), ["aab"], "a", "aab"),
        (("a", "a", "a", "b"), ["aab"], "a", "aab"),
        (("ab", "ca", "bd"), ["abd", "bcx"], "abc", "abd"),
    ],
)
def test_gen_11(pieces, stops, text, found):
    out, met = let_through(pieces, stops)
    assert ("".join(out), met) == (text, found)


def test_gen_11_text_is_held_back_and_let_go():
    stops = StopStrings(["beta", "games"])
    assert [stops.feed(piece) for piece in PIECES[:2]] == ["al", "pha "]
    stops = StopStrings(["games"])
    assert [stops.feed(piece) for piece in PIECES] == ["al", "pha be", "ta ", "gamma"]
    stops = StopStrings(["gammas"])
    assert [stops.feed(piece) for piece in PIECES] == ["al", "pha be", "ta ", ""]
    assert (stops.finish(), stops.found) == ("gamma", None)


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_gen_11_however_it_is_cut(text, stops, cuts):
    """The same text and stop string for every way of cutting, and nothing is held back for nothing."""
    cuts = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
    out, found = let_through(pieces, stops)
    assert ("".join(out), found) == expected(text, stops)
    so_far = ""
    for i, piece in enumerate(out[:-1]):
        so_far += piece
        held = text[len(so_far) : cuts[i + 1]]
        if found is None:
            assert not held or any(stop.startswith(held) for stop in stops)


def test_gen_11_letters_of_several_bytes():
    """A stop string whose bytes come one by one, and a letter that stays incomplete."""
    text = Text(ByteTokenizer(), ["né"])
    pieces = []
    for byte in "Anné".encode():
        text.feed(byte)
        pieces.append(text.take())
    assert (pieces, text.found, str(text)) == (["A", "", "n", "", ""], "né", "An")

    text = Text(ByteTokenizer(), ["né"])
    for byte in b"An" + b"\xc3":
        text.feed(byte)
    assert str(text) == "A"
    text.finish()
    assert (str(text), text.found) == ("An\ufffd", None)
