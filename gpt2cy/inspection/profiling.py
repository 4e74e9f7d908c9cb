# SPDX-License-Identifier: Apache-2.0
"""Where the time of a pass goes, and how near each operation comes to what the machine can do.

clock.pyx    seconds of every operation, without disturbing it
work.py      the flops and bytes that it takes at least
machine.py   flops and bytes a second that this machine gives
"""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpt2cy import _checks
from gpt2cy.inspection import machine as machines
from gpt2cy.inspection import work
from gpt2cy.inspection.clock import clocked
from gpt2cy.inspection.machine import Machine
from gpt2cy.inspection.plots import pyplot
from gpt2cy.inspection.work import Work

_HEADINGS = ("operation", "layers", "ms", "of all", "GFLOP", "MB", "GFLOP/s", "GB/s", "roofline", "bound by")
# Of the operations in their order: Okabe and Ito's, which everyone can tell apart; greys for what is little.
_COLOURS = (
    "#999999", "#cccccc", "#0072b2", "#e69f00", "#56b4e9",
    "#cccccc", "#009e73", "#f0e442", "#cccccc", "#d55e00",
)  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """Some work and the time that it took.

    Attributes
    ----------
    work : Work
        Of one operation of one layer, or of several together.
    seconds : float
    """

    work: Work
    seconds: float

    def share(self, machine: Machine) -> float:
        """Return the least time on this machine over the time taken.

        It may exceed 1 where the weights of a small model stay in a cache: the roofline has them read from
        memory.
        """
        return machine.seconds(self.work.flops, self.work.bytes) / self.seconds


@dataclass(frozen=True)
class Profile:
    """What `GPT.profile` returns; printed, it is a table.

    Attributes
    ----------
    rows : list of Timed
        Every operation of every layer in the order of computation: the mean of the middle half of the passes.
    machine : Machine
        Flops and bytes a second, measured beside it.
    n_passes : int
    n_tokens : int
        Of all sequences together.
    """

    rows: list[Timed]
    machine: Machine
    n_passes: int
    n_tokens: int

    @property
    def seconds(self) -> float:
        """The sum of all operations."""
        return sum(row.seconds for row in self.rows)

    def by_operation(self) -> list[Timed]:
        """Return the operations, each summed over the layers, in the order of computation."""
        names = dict.fromkeys(row.work.operation for row in self.rows)
        return [_sum(row for row in self.rows if row.work.operation == name) for name in names]

    def by_layer(self) -> list[Timed]:
        """Return the layers, each summed over its operations; `work.operation` is "h.0" and so on."""
        names = dict.fromkeys(_layer(row) for row in self.rows)
        return [_sum((row for row in self.rows if _layer(row) == name), name) for name in names]

    def __str__(self):
        total = _sum(self.rows, "total")
        lines = [_cells(row, self) for row in (*self.by_operation(), total)]
        blocks = [row.seconds for row in self.by_layer() if row.work.operation.startswith("h.")]
        rate = f"{self.n_tokens / self.seconds:,.0f} tokens/s"
        threads = f"{self.machine.n_threads} thread" + "s" * (self.machine.n_threads > 1)
        limits = f"{self.machine.peak:.0f} GFLOP/s, {self.machine.bandwidth:.1f} GB/s"
        return "\n".join(
            [
                *_aligned([_HEADINGS, *lines]),
                f"blocks: {1e3 * min(blocks):.3g} to {1e3 * max(blocks):.3g} ms each",
                f"{rate}; the middle half of {self.n_passes} passes, {threads}, {self.machine.isa}",
                f"roofline: {limits}, as measured; above 100 % the weights came from a cache",
            ]
        )

    def plot(self, axes=None):
        """Draw a bar for each layer, cut into its operations.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Where; None means a new figure.

        Returns
        -------
        matplotlib Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed: the extra `plot` brings it.

        Examples
        --------
        >>> import gpt2cy
        >>> profile = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0).profile([1, 2, 3])
        >>> axes = profile.plot()                                        # doctest: +SKIP
        """
        return _draw(self, axes)


def profile(model, tokens, cache=None, *, last_only=False, seconds=1.0, machine=None) -> Profile:
    """Time every operation of a pass; see `GPT.profile`.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import profile
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> found = profile(model, [[1, 2, 3]], seconds=0.01)
    >>> [row.work.operation for row in found.by_operation()][:3]
    ['embed', 'ln_1', 'attn.c_attn']
    """
    last_only, seconds = _checks.flag("last_only", last_only), _checks.real("seconds", seconds, positive=True)
    rows, n_passes = timed(model, tokens, cache, last_only, seconds, middle_half)
    batch, length = np.atleast_2d(np.asarray(tokens)).shape
    return Profile(rows, machine or machines.measure(min(seconds, 0.5)), n_passes, batch * length)


def timed(model, tokens, cache, last_only, seconds, choose) -> tuple[list[Timed], int]:
    """Return the operations of a pass in order, with their times, and how many passes were made.

    The times are means over the passes that `choose` returns, given those in the order of their times: so the
    operations of them add up.
    """
    passes: list[dict[str, float]] = []
    past = None if cache is None else cache.lengths
    clocked(model, tokens, cache, last_only)  # memory and threads are there from now on
    begin = time.perf_counter()
    while len(passes) < 3 or time.perf_counter() - begin < seconds:
        times, _ = clocked(model, tokens, cache, last_only)
        passes.append(times)
    batch, length = np.atleast_2d(np.asarray(tokens)).shape
    todo = work.of_pass(model.config, [length] * batch, past or [0] * batch, last_only)
    chosen = choose(sorted(passes, key=lambda times: sum(times.values())))
    return [Timed(one, statistics.fmean(times[one.name] for times in chosen)) for one in todo], len(passes)


def middle_half(passes):
    """What a pass takes: neither the fastest nor the slowest; of three passes the median."""
    left_out = max(1, len(passes) // 4)
    return passes[left_out:-left_out]


def fastest_quarter(passes):
    """What a pass takes where nobody else computes."""
    return passes[: (len(passes) + 3) // 4]


def _sum(rows: Iterable[Timed], name=None) -> Timed:
    """Several together; the name of one operation, if they have the same, or the one given."""
    rows = list(rows)
    flops, n_bytes = sum(row.work.flops for row in rows), sum(row.work.bytes for row in rows)
    total = Work(name or rows[0].work.operation, None, flops, n_bytes)
    return Timed(total, sum(row.seconds for row in rows))


def _layer(row):
    return row.work.operation if row.work.layer is None else f"h.{row.work.layer}"


# ---- the table -----------------------------------------------------------------------------------------


def _cells(row, profile):
    flops, n_bytes, machine = row.work.flops, row.work.bytes, profile.machine
    layers = sum(one.work.operation == row.work.operation for one in profile.rows)
    counted = flops > 0 or row.work.operation == "total"
    return (
        row.work.operation,
        str(layers or ""),
        f"{1e3 * row.seconds:.3f}",
        f"{100 * row.seconds / profile.seconds:.1f} %",
        f"{1e-9 * flops:.3f}" if counted else "",
        f"{1e-6 * n_bytes:.2f}",
        f"{1e-9 * flops / row.seconds:.0f}" if counted else "",
        f"{1e-9 * n_bytes / row.seconds:.1f}",
        f"{100 * row.share(machine):.0f} %" if counted else "",
        machine.bound(flops, n_bytes) if counted else "",
    )


def _aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        yield f"{first:{widths[0]}}  {'  '.join(cells)}".rstrip()


# ---- the plot ------------------------------------------------------------------------------------------


def _draw(profile, axes):
    if axes is None:
        axes = pyplot().figure(figsize=(8, 4.5), layout="constrained").subplots()
    layers = [row.work.operation for row in profile.by_layer()]
    bottom = np.zeros(len(layers))
    for operation, colour in zip(work.OPERATIONS, _COLOURS, strict=True):
        height = np.zeros(len(layers))
        for row in profile.rows:
            if row.work.operation == operation:
                height[layers.index(_layer(row))] += 1e3 * row.seconds
        axes.bar(layers, height, bottom=bottom, color=colour, label=operation)
        bottom += height
    axes.set_ylabel("ms")
    axes.set_title(f"{profile.n_tokens} tokens: {1e3 * profile.seconds:.3g} ms")
    axes.tick_params(axis="x", rotation=60 if len(layers) > 8 else 0)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes
