# SPDX-License-Identifier: Apache-2.0
"""What the benches of functions share: cases in this process, timed in rounds, beside the machine's limits.

A case is checked by its bench before it comes here. All cases of one call to `Bench.measure` take turns;
before the first round and after each the limits that they are compared with are measured.
"""

import contextlib
import io
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass

import harness
import limits
import numpy as np
import roofline

import gpt2cy
from gpt2cy.kernels import dispatch

TOLERANCE = 1e-4  # standard deviations of what is right
LINE = 64  # bytes of a cache line


@dataclass
class Case:
    """A function without arguments, what identifies it in the results, and what limits it.

    `peak` and `bandwidth` are names of limits (limits.py); `work` says how much of each it needs. Without
    `work` only its time is taken. `timer`, where given, is asked for the milliseconds instead: a function of
    seconds.
    """

    fields: dict
    call: Callable | None
    work: roofline.Work | None = None
    peak: str | None = None
    bandwidth: str | None = None
    timer: Callable | None = None

    @property
    def name(self):
        return " ".join(map(str, self.fields.values()))

    def milliseconds(self, seconds):
        return self.timer(seconds) if self.timer else harness.time_ms(self.call, seconds)


def isas():
    """Instruction sets that are worth timing: all but the readable one."""
    return [name for name in dispatch.available() if name != "ref"]


def peak(isa, threads):
    """The name of the limit of multiply-adds for an instruction set of ours; `ref` counts as the least."""
    least = isas()[0] if len(isas()) > 1 else "base"
    return f"fma/{least if isa == 'ref' else isa}/{threads}"


def require_close(what, got, want):
    """Refuse a wrong answer: its time says nothing."""
    error = harness.relative_error(np.asarray(got, np.float64), np.asarray(want, np.float64))
    if not error <= TOLERANCE:
        sys.exit(f"{what} is wrong by {error:.1e} standard deviations: not timed")


def aligned(array):
    """A copy that starts with a cache line, as everything in a workspace does; NumPy's own may not."""
    memory = np.empty(array.nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@contextlib.contextmanager
def limits_or_none():
    """The machine's limits, or None with the reason on standard error where they cannot be measured."""
    try:
        found = limits.Limits()
    except limits.NoLimits as error:
        print(f"no shares of the roofline: {error}", file=sys.stderr)
        yield None
        return
    try:
        yield found
    finally:
        found.close()


class Bench:
    """The rows of one run, and every limit that was measured on the way.

    Parameters
    ----------
    args : namespace
        Of harness.arguments.
    machine : limits.Limits or None
        None: no shares.
    """

    def __init__(self, args, machine):
        self.args, self.machine, self.rows, self.taken = args, machine, [], {}

    def read(self, nbytes, threads):
        """The name of the limit of reading where a working set of such a size lives; None without limits."""
        return self.machine and f"read/{self.machine.level_of(nbytes, threads)}/{threads}"

    def meter(self, wanted):
        """A Meter of the limits named, or None where there is nothing to measure."""
        wanted = [name for name in wanted if name]
        if self.machine is None or not wanted:
            return None
        seconds = limits.QUICK_SECONDS if self.args.quick else limits.SECONDS
        meter = limits.Meter(self.machine, wanted, seconds)
        for name, taken in meter.taken.items():
            self.taken.setdefault(name, []).append(taken)
        return meter

    def measure(self, cases):
        """Time cases in turns, keep their rows and return them."""
        meter = self.meter(name for case in cases if case.work for name in (case.peak, case.bandwidth))

        def ask(case):
            return case.milliseconds(self.args.seconds)

        rest, around = harness.IN_PROCESS_REST, meter and meter.take
        rounds, _ = harness.interleave(cases, ask, self.args.rounds, rest, around)
        new = []
        for case in cases:
            row = {**case.fields, **harness.figures(rounds[case.name])}
            if case.work:
                row |= against_roofline(case.work, rounds[case.name], meter, case.peak, case.bandwidth)
            new.append(row)
        self.rows += new
        return new

    def limit(self, name):
        """The median of a limit so far; None where it was not measured."""
        taken = list(itertools.chain(*self.taken.get(name, [])))
        return harness.figures(taken)["median"] if taken else None

    def finish(self, **more):
        """Write the file."""
        found = {name: list(itertools.chain(*taken)) for name, taken in self.taken.items()}
        found = {name: harness.figures(taken) for name, taken in found.items() if taken}
        result = {"versions": versions(), "unit": "ms", "better": "less", **more}
        harness.finish(self.args, {**result, "limits": found, "rows": self.rows})


def against_roofline(work, rounds, meter, peak, bandwidth):
    """Flops and bytes; with a meter also the roofline's milliseconds and the share that rounds reached."""
    counted = {"flops": work.flops, "bytes": work.bytes}
    if meter is None:
        return counted
    unlimited = [float("inf")] * len(rounds)
    peaks = meter.during(peak) if peak else unlimited
    bandwidths = meter.during(bandwidth) if bandwidth else unlimited
    least = [1e3 * work.seconds(*pair) for pair in zip(peaks, bandwidths, strict=True)]
    shares = [roof / took for roof, took in zip(least, rounds, strict=True)]
    bound = [work.bound(*pair) for pair in zip(peaks, bandwidths, strict=True)]
    return {
        **counted,
        "bound": max(set(bound), key=bound.count),
        "roofline": harness.figures(least)["median"],
        "share": harness.figures(shares),
    }


def share(row):
    """A row's share of its roofline, for a table."""
    return f"{100 * row['share']['median']:.0f} %" if "share" in row else "-"


def versions():
    """gpt2cy's and what it was built with."""
    with contextlib.redirect_stdout(io.StringIO()):
        shown = gpt2cy.show_config()
    return {"gpt2cy": {name: value for name, value in shown.items() if name != "available_isas"}}
