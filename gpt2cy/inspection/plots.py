# SPDX-License-Identifier: Apache-2.0
"""The one adapter to matplotlib: for studies heat maps and curves with tokens as labels.

Colours are those that everyone can tell apart: cividis for amounts, PuOr for what has a sign, white being 0.
"""

import numpy as np

MOST_LABELS = 64  # more would run into each other


def pyplot():
    """matplotlib's pyplot; ImportError with what to install where it is missing."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(f"plots need matplotlib: pip install 'gpt2cy[plot]' ({error})") from None
    return plt


def readable(label: str) -> str:
    """Return a token so that one sees all of it: blanks, line ends, control characters, nothing at all."""
    text = label.replace(" ", "\N{MIDDLE DOT}").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    text = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return text or "\N{EMPTY SET}"


def shown(labels) -> list[str]:
    """Return tokens as they can be read on an axis: no formulas."""
    return [readable(label).replace("$", r"\$") for label in labels]


def panels(count: int, axes=None, columns: int = 4, size: float = 2.4):
    """Return `count` Axes: those given, or of a new figure, a few in a row."""
    if axes is not None:
        found = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
        if len(found) < count:
            raise ValueError(f"axes: expected {count}, got {len(found)}")
        return found[:count]
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, grid = pyplot().subplots(
        rows, columns, figsize=(size * columns, size * rows), squeeze=False, layout="constrained"
    )
    for unused in grid.ravel()[count:]:
        figure.delaxes(unused)
    return grid.ravel()[:count]


def heat(values, axes=None, *, rows=None, columns=None, title="", ylabel="", xlabel="", signed=False, bar=""):
    """Draw a matrix as a heat map and return its Axes; rows and columns are what they are called."""
    values = np.asarray(values, np.float64)
    if axes is None:
        width = 1.6 + 0.28 * min(max(values.shape[1], 8), MOST_LABELS)
        height = 1.2 + 0.28 * min(max(values.shape[0], 6), MOST_LABELS)
        _, axes = pyplot().subplots(figsize=(width, height), layout="constrained")
    finite = values[np.isfinite(values)]
    limit = float(np.abs(finite).max()) if finite.size else 1.0
    colours = {"cmap": "PuOr", "vmin": -limit, "vmax": limit} if signed else {"cmap": "cividis"}
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **colours)
    ticks(axes.yaxis, rows, values.shape[0])
    ticks(axes.xaxis, columns, values.shape[1])
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    if bar:
        axes.figure.colorbar(image, ax=axes, label=bar)
    return axes


def ticks(axis, labels, count):
    """Label an axis, leaving some out where there are too many; below, long ones stand upright."""
    if labels is None:
        return
    at = np.arange(0, count, -(-count // MOST_LABELS))
    kept = [str(labels[i]) for i in at]
    upright = axis.axis_name == "x" and max(map(len, kept)) > 2
    axis.set_ticks(at, kept, rotation=90 if upright else 0)


def curves(lines, axes=None, *, title="", xlabel="", ylabel="", columns=None):
    """Draw {label: values} as curves that differ in colour and in stroke, and return their Axes."""
    if axes is None:
        _, axes = pyplot().subplots(figsize=(6.4, 4.0), layout="constrained")
    colours = pyplot().colormaps["cividis"](np.linspace(0, 0.9, max(2, len(lines))))
    strokes = ("-", "--", "-.", ":")
    for i, (label, values) in enumerate(lines.items()):
        axes.plot(values, strokes[i % len(strokes)], color=colours[i], label=label, marker="o", ms=3)
    if columns is not None:
        ticks(axes.xaxis, columns, len(columns))
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    if len(lines) > 1:
        axes.legend()
    return axes


def bars(labels, values, axes=None, *, title="", xlabel="", ylabel=""):
    """Draw signed bars, the first one on top, and return their Axes."""
    values = np.asarray(values, np.float64)
    if axes is None:
        _, axes = pyplot().subplots(figsize=(6.4, 1.0 + 0.26 * len(values)), layout="constrained")
    low, high = pyplot().colormaps["PuOr"]([0.15, 0.85])
    axes.barh(np.arange(len(values)), values, color=[high if value >= 0 else low for value in values])
    axes.set_yticks(np.arange(len(values)), labels)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    return axes
