# SPDX-License-Identifier: Apache-2.0
"""Write the measured tables of docs/kernels.md and docs/attention.md: python perf/lessons/page.py [--check]

The newest perf/results/lessons-*.json is shown. With --check nothing is written; exit code 1 says that a
page is stale.
"""

import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import harness

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
PAGES = {"product": "kernels.md", "attention": "attention.md"}
BEGIN, END = "<!-- table of perf/results -->", "<!-- end of table -->"


def lesson(folder, step):
    """A step's link, or the package's name."""
    found = next((HERE / folder).glob(f"[0-9]*_{step}.c"), None)
    return f"[{found.stem.replace('_', ' ')}](../perf/lessons/{folder}/{found.name})" if found else step


def measured_on(path, result):
    rounds = f"medians of {result['rounds']} rounds; from `perf/results/{path.name}`."
    return f"{harness.processor(result['machine'])}, {result['isa']}, {result['compiler']}; {rounds}"


def product(path, result):
    """A row for each step, a column for each shape, and what the machine allows below."""
    shapes = list(dict.fromkeys(tuple(row["shape"]) for row in result["product"]))
    cells = {(row["step"], tuple(row["shape"])): row for row in result["product"]}
    lines = []
    for step in dict.fromkeys(step for step, _ in cells):
        found = [cells[step, shape] for shape in shapes]
        speeds = [f"{harness.number(row['gflops'])} ({row['share_of_peak'] * 100:.1f} %)" for row in found]
        lines.append([lesson("product", step), found[0]["threads"], *speeds])
    for used in dict.fromkeys(row["threads"] for row in result["product"]):
        rows = [
            next(row for row in result["product"] if row["threads"] == used and tuple(row["shape"]) == shape)
            for shape in shapes
        ]
        limits = [
            f"{harness.number(row['limit_gflops'])} of {harness.number(row['peak_gflops'])}" for row in rows
        ]
        lines.append(["the limit, of peak", used, *limits])
    head = ["step", "threads", *(" x ".join(map(str, shape)) for shape in shapes)]
    text = (
        "GFLOP/s and, in brackets, the share of the multiply-add peak of as many threads, for m x k x n. "
        "The limit is the smaller one of peak and of what memory can deliver (each weight read once), both "
        "measured in the same rounds. "
    )
    return harness.paragraph(text + measured_on(path, result)) + "\n\n" + harness.table(head, lines)


def size(count):
    """Bytes in words."""
    return (
        f"{count / 2**20:.0f} MiB"
        if count >= 2**20
        else f"{count / 2**10:.1f} KiB"
        if count >= 1024
        else f"{count} B"
    )


def attention(path, result):
    """A row for each step, time, share of peak and scratch memory for each length."""
    cells = {(row["step"], row["t"]): row for row in result["attention"]}
    lengths = list(dict.fromkeys(t for _, t in cells))
    lines = []
    for step in dict.fromkeys(step for step, _ in cells):
        line = [lesson("attention", step)]
        for t in lengths:
            row = cells[step, t]
            scratch = "" if row["scratch_bytes"] is None else size(row["scratch_bytes"])
            line += [harness.number(row["milliseconds"]), f"{row['share_of_peak'] * 100:.1f} %", scratch]
        lines.append(line)
    head = ["step", *(name for t in lengths for name in (f"ms, T = {t}", "of peak", "scratch"))]
    text = (
        f"One head of {result['head_dim']}, one thread. The share of peak counts the work that causal "
        "attention needs, so what is computed in vain is lost. Scratch is what a call writes to besides "
        "its result. "
    )
    return harness.paragraph(text + measured_on(path, result)) + "\n\n" + harness.table(head, lines)


def main(argv):
    """Bring the pages up to date, or say that they are not."""
    newest, result = harness.kept("lessons")[0]
    stale = 0
    for section in (product, attention):
        path = DOCS / PAGES[section.__name__]
        old = path.read_text()
        table = f"{BEGIN}\n\n{section(newest, result)}\n\n{END}"
        new = re.sub(f"{BEGIN}.*{END}", lambda _, table=table: table, old, flags=re.DOTALL)
        stale |= new != old
        if "--check" not in argv:
            path.write_text(new)
    return int(stale and "--check" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
