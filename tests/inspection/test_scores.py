# SPDX-License-Identifier: Apache-2.0
"""Pictures of scores: colours by surprisal, nothing lost of the text, and nothing in it that does harm."""

import html.parser
import io
import itertools
import re

import numpy as np
import pytest

import gpt2cy
from gpt2cy.inspection import scores as pictures
from gpt2cy.tokenizer import ByteTokenizer

HOSTILE = "<script>alert(1)</script> & \"'><img src=x onerror=alert(1)>\x00\x1b[2J\x9b31m $x^{$ né\n\tend"


@pytest.fixture(scope="module")
def lm(build):
    return gpt2cy.LanguageModel(build(256, 24, 3, 2, 40), ByteTokenizer())


@pytest.fixture(scope="module")
def score(lm):
    return lm.score(HOSTILE, top=3)


def test_spans_are_whole_characters(lm):
    score = lm.score("né!")
    assert [tuple(span) for span in pictures.spans(score)] == [(0, 1, 0, 1), (1, 2, 1, 3), (2, 3, 3, 4)]


def test_levels():
    assert pictures.level(0.0) is pictures.LEVELS[0]
    assert pictures.level(3.9) is pictures.LEVELS[2]
    assert pictures.level(4.0) is pictures.LEVELS[3]
    assert pictures.level(1e9) is pictures.level(np.inf) is pictures.LEVELS[-1]
    assert pictures.level(np.nan) is None


def brightness(red, green, blue):
    """Relative luminance of sRGB, as the Web Content Accessibility Guidelines have it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def hex_brightness(rgb):
    return brightness(*(int(rgb[i : i + 2], 16) / 255 for i in (1, 3, 5)))


def ansi_brightness(number):
    steps = [0, 95, 135, 175, 215, 255]
    number -= 16
    return brightness(*(steps[number // factor % 6] / 255 for factor in (36, 6, 1)))


@pytest.mark.parametrize("kind", ["rgb", "ansi"])
def test_lightness_alone_tells_the_levels_apart_and_text_on_them_is_legible(kind):
    of = {"rgb": hex_brightness, "ansi": ansi_brightness}[kind]
    found = [of(getattr(each, kind)) for each in pictures.LEVELS]
    assert all(light > 1.15 * dark for light, dark in itertools.pairwise(found))
    for each, ground in zip(pictures.LEVELS, found, strict=True):
        contrast = 1.05 / (ground + 0.05) if each.dark else (ground + 0.05) / 0.05
        assert contrast >= 3.5


# ---- terminal --------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(score, file, **options):
    score.show(file, **options)
    return file.getvalue()


def test_the_terminal_shows_the_text_and_takes_no_orders_from_it(score):
    text = score.to_ansi()
    assert set(re.findall(r"\x1b\[[^m]*m", text)) <= {"\x1b[0m"} | {
        f"\x1b[48;5;{each.ansi};38;5;{231 if each.dark else 16}m" for each in pictures.LEVELS
    }
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", plain)
    shown, _, legend = plain.rpartition("\n")
    assert shown == HOSTILE.replace("\x00", "\\x00").replace("\x1b", "\\x1b").replace("\x9b", "\\x9b")
    assert "bits per byte" in legend
    for line in text.split("\n"):
        assert line.count("\x1b[0m") * 2 == line.count("\x1b[")  # no colour reaches over the end of a line


def test_colours_are_those_of_the_surprisal(score):
    level = pictures.level(score.surprisals[1])
    expected = f"<\x1b[48;5;{level.ansi};38;5;{231 if level.dark else 16}ms\x1b[0m"
    assert score.to_ansi().startswith(expected)


def test_plain_where_colours_are_not_wanted(score, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b" in printed(score, Terminal())
    assert "\x1b" not in printed(score, io.StringIO())
    assert "\x1b" in printed(score, io.StringIO(), colour=True)
    assert "\x1b" not in printed(score, Terminal(), colour=False)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in printed(score, Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "")  # set, and empty: counts as not set
    assert "\x1b" in printed(score, Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(score, Terminal())
    assert "\\x1b[2J" in printed(score, Terminal())


def test_standard_output(score, capsys):
    score.show()
    assert capsys.readouterr().out.endswith(pictures.summary(score) + "\n")


# ---- HTML ------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """What a browser would make of a page: elements, attributes, and the text of the score's pieces."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.attributes, self.text, self.open = [], [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.attributes += [(tag, *each) for each in attributes]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "small" not in self.open and self.open[-1:] == ["span"]:
            self.text += data


def test_html_is_the_text_and_runs_nothing(score):
    page = Page(score.to_html())
    assert page.open == []
    assert set(page.elements) == {"html", "head", "meta", "title", "body", "style", "div", "span", "small"}
    assert page.text == pictures.visible(HOSTILE)
    allowed = {"charset", "http-equiv", "content", "class", "title", "style"}
    assert {name for _, name, _ in page.attributes} == allowed
    assert not any("url" in value for _, name, value in page.attributes if name == "style")
    titles = [value for _, name, value in page.attributes if name == "title"]
    assert len(titles) == len(pictures.spans(score))
    assert "not scored" in titles[0] and "rank" in titles[1]
    assert titles[1].count("\n") == 3  # the alternatives
    assert "http" not in score.to_html().replace("http-equiv", "")


def test_a_notebook_shows_the_same(score):
    assert score._repr_html_() in score.to_html()
    assert score._repr_html_().startswith("<style>")


# ---- chart -----------------------------------------------------------------------------------------------


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_plot(score, lm, pyplot):
    ax = score.plot()
    heights = [bar.get_height() for bar in ax.patches]
    np.testing.assert_array_equal(heights[1:], score.surprisals[1:])
    np.testing.assert_array_equal(ax.lines[0].get_ydata()[1:], score.entropies[1:])
    assert ax.get_ylabel() == "bits"
    assert ax.get_title() == pictures.summary(score)
    ax.figure.savefig(io.BytesIO(), format="png")  # a $ in a label is no formula, or this would raise

    short = lm.score("a $x^{$ b\n")
    own = pyplot.figure().add_subplot()
    assert short.plot(own) is own
    assert [label.get_text() for label in own.get_xticklabels()] == [
        "a", "·", r"\$", "x", "^", "{", r"\$", "·", "b", r"\n"
    ]  # fmt: skip
    own.figure.savefig(io.BytesIO(), format="png")


def test_plot_without_matplotlib(python):
    code = """
import sys; sys.modules["matplotlib"] = None
import gpt2cy
from gpt2cy.tokenizer import ByteTokenizer
lm = gpt2cy.LanguageModel(gpt2cy.GPT(gpt2cy.GPTConfig(256, 8, 2, 1, 8), seed=0), ByteTokenizer())
try:
    lm.score("abc").plot()
except ImportError as error:
    print(error)
"""
    assert python(code).startswith("plots need matplotlib: pip install 'gpt2cy[plot]' (")
