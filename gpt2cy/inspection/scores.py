# SPDX-License-Identifier: Apache-2.0
"""Pictures of a `Score`: its text in colours, in a terminal or as HTML, and a chart.

    spans      the text cut where tokens begin; tokens that share a character together
    LEVELS     surprisal in bits -> one of six colours, light to dark
    plot       needs matplotlib; the others need nothing

The colours are ColorBrewer's YlOrBr (Cynthia Brewer, colorbrewer2.org): lightness alone tells them apart, so
that they need no colour vision.  What is shown was written by anyone: HTML is escaped, and control
characters, which could command a terminal, are spelled out.
"""

import html
import os
import re
import sys
from typing import NamedTuple

from gpt2cy.inspection.plots import pyplot, shown


class Level(NamedTuple):
    """A colour for surprisals from so many bits on."""

    bits: float
    rgb: str
    dark: bool  # so that text on it is white
    ansi: int  # the nearest of a terminal's 256 colours


LEVELS = (
    Level(0.0, "#ffffd4", False, 230),
    Level(1.0, "#fee391", False, 222),
    Level(2.0, "#fec44f", False, 214),
    Level(4.0, "#fe9929", False, 208),
    Level(8.0, "#d95f0e", True, 166),
    Level(12.0, "#993404", True, 88),
)

PLOT_LABELS = 60  # tokens that a chart has room to name

STYLE = """\
.gpt2cy-score { font-family: ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  line-height: 1.7; color: #000; background: #fff; padding: 0.5em; }
.gpt2cy-score span { border-radius: 0.2em; box-decoration-break: clone; }
.gpt2cy-score small { display: block; margin-top: 1em; }
"""


class Span(NamedTuple):
    """Characters start .. end - 1 of the text, and the numbers of the tokens that they come from."""

    start: int
    end: int
    first: int
    stop: int


def spans(score) -> list[Span]:
    """Return the text in pieces, each of whole tokens and of whole characters."""
    found: list[Span] = []
    for i, (start, end) in enumerate(score.offsets.tolist()):
        if found and start < found[-1].end:
            found[-1] = Span(found[-1].start, end, found[-1].first, i + 1)
        else:
            found.append(Span(start, end, i, i + 1))
    return found


def level(bits: float) -> Level | None:
    """Return the colour for a surprisal; None for nan, a token that is not scored."""
    return next((each for each in reversed(LEVELS) if bits >= each.bits), None)


def visible(text: str) -> str:
    """Return the text with control characters spelled out, but for the end of a line and the tabulator."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)


def summary(score) -> str:
    """Return a line of what the whole text has."""
    return (
        f"{score.n_scored} tokens scored, {score.bits:.1f} bits, {score.bits_per_byte:.2f} bits per byte, "
        f"perplexity {score.perplexity:.2f}"
    )


# ---- terminal ------------------------------------------------------------------------------------------


def wants_colour(file) -> bool:
    """Whether a file is a terminal that shows colours, and its user has not said no (no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(file, "isatty", lambda: False)())


def ansi(score) -> str:
    """Return the text on coloured ground, and what the colours mean, for a terminal of 256 colours."""
    lines = []
    for span in spans(score):
        text = visible(score.text[span.start : span.end])
        found = level(float(score.surprisals[span.first : span.stop].sum()))
        # Ground that reaches over an end of line would colour the rest of it.
        lines.append("\n".join(_painted(part, found) for part in text.split("\n")))
    legend = " ".join(_painted(f" {each.bits:g}+ ", each) for each in LEVELS)
    return f"{''.join(lines)}\n{legend} bits; {summary(score)}"


def _painted(text, found):
    if not text or found is None:
        return text
    return f"\x1b[48;5;{found.ansi};38;5;{231 if found.dark else 16}m{text}\x1b[0m"


def show(score, file=None, colour: bool | None = None) -> None:
    """Print the text; in colours if asked, or if the file is a terminal and colours are wanted."""
    file = sys.stdout if file is None else file
    if wants_colour(file) if colour is None else colour:
        print(ansi(score), file=file)
    else:
        print(f"{visible(score.text)}\n{summary(score)}", file=file)


# ---- HTML ----------------------------------------------------------------------------------------------


def html_fragment(score) -> str:
    """Return the coloured text as a <div> with a <style>; each piece says its numbers when pointed at."""
    pieces = "".join(_html_span(score, span) for span in spans(score))
    legend = " ".join(_html_box(f" {each.bits:g}+ ", each, "") for each in LEVELS)
    return (
        f'<style>{STYLE}</style><div class="gpt2cy-score">{pieces}'
        f"<small>{legend} bits; {html.escape(summary(score))}</small></div>"
    )


def html_page(score) -> str:
    """Return a page that needs no other file, and runs no script whatever the text is."""
    return (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>Score</title>'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"</head><body>{html_fragment(score)}</body></html>\n"
    )


def _html_span(score, span):
    said = "\n".join(_described(score[i]) for i in range(span.first, span.stop))
    found = level(float(score.surprisals[span.first : span.stop].sum()))
    return _html_box(score.text[span.start : span.end], found, said)


def _html_box(text, found, said):
    text = html.escape(visible(text))
    title = f' title="{html.escape(visible(said))}"' if said else ""
    ground = f' style="background:{found.rgb};color:{"#fff" if found.dark else "#000"}"' if found else ""
    return f"<span{title}{ground}>{text}</span>"


def _described(token):
    if token.logprob is None:
        return f"{token.text!r} (id {token.id}): not scored"
    lines = [
        f"{token.text!r} (id {token.id}): {token.surprisal:.2f} bits, "
        f"expected {token.entropy:.2f}, rank {token.rank}"
    ]
    lines += [f"    {choice.text!r}: {choice.logprob:.2f}" for choice in token.top]
    return "\n".join(lines)


# ---- chart ---------------------------------------------------------------------------------------------


def plot(score, ax=None):
    """Draw the surprisal of each token as a bar, and what the model expected, its entropy, as a mark.

    Parameters
    ----------
    score : Score
    ax : matplotlib.axes.Axes, optional
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        If matplotlib is missing; the message says what to install.
    """
    if ax is None:
        ax = pyplot().subplots(figsize=(min(24.0, max(5.0, 0.3 * len(score))), 4.0), layout="constrained")[1]
    places = range(len(score))
    colours = [found.rgb if (found := level(bits)) else "#ffffff" for bits in score.surprisals.tolist()]
    ax.bar(places, score.surprisals, color=colours, edgecolor="#555555", linewidth=0.5, label="surprisal")
    ax.plot(places, score.entropies, "_k", markersize=8, label="expected (entropy)")
    ax.set_ylabel("bits")
    ax.set_xlim(-0.6, len(score) - 0.4)
    if len(score) <= PLOT_LABELS:
        ax.set_xticks(places, shown(token.text for token in score), rotation=90, family="monospace")
    else:
        ax.set_xlabel("token")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    ax.set_title(summary(score))
    return ax
