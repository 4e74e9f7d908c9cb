# SPDX-License-Identifier: Apache-2.0
"""Is B slower than A? Two result files of the same bench, row by row; exit code 1 says that something is.

    python perf/compare.py A.json B.json

Rows are the same if everything that is not a figure is the same: model, call, threads, instruction set and so
on. Where both have a share of the roofline, measured in their own rounds, the shares are compared, since they
do not depend on how fast the machine was that hour; otherwise the times (or the limits) themselves. `ratio`
is B over A, turned so that below 1 is worse. A row is a regression beyond the spread if both of these hold:

- the ratio of the medians is below 1 - TOLERANCE (--tolerance, 5 % by default),
- the quartiles of the rounds do not overlap: B's better quartile is worse than A's worse one.

A row that succeeded in A and failed in B is one too. Rows that only one file has are counted, and are no
regression. Exit code 2: a file cannot be read, is not a result, or they have no row in common.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import harness

NOT_KEYS = {
    "median",
    "q1",
    "q3",
    "low",
    "high",
    "rounds",
    "ratio",
    "flops",
    "bytes",
    "bound",
    "roofline",
    "share",
}
NOT_KEYS |= {"error", "of_a_copy", "in_huge_pages"}
FIGURES = ("median", "q1", "q3")
TOLERANCE = 0.05


class NotAResult(Exception):
    """Says which file, and what is wrong with it."""


def read(path):
    """A result file, checked: (bench, better, {key: row})."""
    try:
        result = json.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise NotAResult(f"{path}: {error}") from None
    rows = result.get("rows") if isinstance(result, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise NotAResult(f"{path}: expected an object with a list of rows")
    if result.get("better") not in ("less", "more"):
        raise NotAResult(f'{path}: better: expected "less" or "more", got {result.get("better")!r}')
    found = {}
    for number, row in enumerate(rows):
        key = tuple(sorted((name, str(value)) for name, value in row.items() if name not in NOT_KEYS))
        if key in found:
            raise NotAResult(f"{path}: row {number} is there twice: {named(key)}")
        if "error" not in row:
            for figures in (row, row["share"]) if "share" in row else (row,):
                check(figures, f"{path}: row {number}")
        found[key] = row
    return result.get("bench"), result["better"], found


def check(figures, where):
    """Figures are positive finite numbers, the median between the quartiles."""
    for name in FIGURES:
        value = figures.get(name) if isinstance(figures, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise NotAResult(f"{where}: {name}: expected a number above 0, got {value!r}")
    if not figures["q1"] <= figures["median"] <= figures["q3"]:
        raise NotAResult(f"{where}: the median is not between the quartiles")


def judge(a, b, better, tolerance=TOLERANCE):
    """(ratio, regression) of one row: the ratio is below 1 where B is worse."""
    if "error" in a or "error" in b:
        return None, "error" in b and "error" not in a
    if "share" in a and "share" in b:
        a, b, better = a["share"], b["share"], "more"
    if better == "more":
        return b["median"] / a["median"], b["median"] < (1 - tolerance) * a["median"] and b["q3"] < a["q1"]
    return a["median"] / b["median"], a["median"] < (1 - tolerance) * b["median"] and b["q1"] > a["q3"]


def named(key):
    """A row's key, for people."""
    return ", ".join(f"{name} {value}" for name, value in key)


def main(argv=None):
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("a", metavar="A.json", type=Path)
    parser.add_argument("b", metavar="B.json", type=Path)
    parser.add_argument("--tolerance", type=share, default=TOLERANCE, help="default: %(default)s")
    args = parser.parse_args(argv)
    try:
        (bench_a, better, rows_a), (bench_b, _, rows_b) = read(args.a), read(args.b)
        common = [key for key in rows_a if key in rows_b]
        if bench_a != bench_b:
            raise NotAResult(f"{args.b}: expected a result of {bench_a}, got one of {bench_b}")
        if not common:
            raise NotAResult(f"{args.b}: has no row in common with {args.a}")
    except NotAResult as error:
        print(error, file=sys.stderr)
        return 2
    lines, worse = [], []
    for key in common:
        ratio, regression = judge(rows_a[key], rows_b[key], better, args.tolerance)
        shown = [
            harness.number(row["median"]) if "median" in row else "failed"
            for row in (rows_a[key], rows_b[key])
        ]
        lines.append(
            [named(key), *shown, "-" if ratio is None else f"{ratio:.3f}", "WORSE" if regression else ""]
        )
        worse += [named(key)] if regression else []
    print(harness.table(["row", "A", "B", "ratio", ""], lines))
    only = len(rows_a) - len(common), len(rows_b) - len(common)
    print(f"\n{len(common)} rows compared, {len(worse)} worse; only in A: {only[0]}, only in B: {only[1]}")
    return 1 if worse else 0


def share(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to below 1, got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
