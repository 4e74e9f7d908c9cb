# SPDX-License-Identifier: Apache-2.0
"""Write the README's table of times from perf/results: python perf/readme.py [--check]

The newest forward-*.json is shown. With --check nothing is written; exit code 1 says that the README is stale.
"""

import json
import re
import sys
from pathlib import Path

import harness

README = harness.HERE.parent / "README.md"
BEGIN, END = "<!-- table of perf/results -->", "<!-- end of table -->"
SHOWN = (16, 64, 256, 1024)


def section(path):
    """The Markdown for one result file: what was measured on what, then a row for each model."""
    result = json.loads(path.read_text())
    models = dict.fromkeys(row["model"] for row in result["rows"])
    others = list(dict.fromkeys(row["engine"] for row in result["rows"]))[1:]
    cells = {
        (row["model"], row["length"], row["engine"]): row
        for row in result["rows"]
        if row["batch"] == 1 and "error" not in row
    }
    lengths = [n for n in SHOWN if any(length == n for _, length, _ in cells)]
    lines = []
    for model in models:
        line = [model]
        for length in lengths:
            own = cells.get((model, length, "gpt2cy"))
            times = [f"{cells[model, length, name]['ratio']:.1f}" for name in others if (model, length, name) in cells]
            line.append(f"**{harness.number(own['median'])}** ({' / '.join(times)})" if own else "")
        lines.append(line)
    versions = ", ".join(f"{name} {found.get(name, found['version'])}" for name, found in result["versions"].items())
    text = (
        f"Milliseconds for a forward pass with the logits of every position; in brackets, how many times longer "
        f"{' / '.join(others)} took in the same rounds. Batch 1, float32, {result['threads']} threads, random weights; "
        f"{result['machine']['cpu']}, {versions}; medians of {result['rounds']} rounds, engines in turns. "
        f"From `perf/results/{path.name}`, which has every round.\n\n"
    )
    return text + harness.table(["tokens", *map(str, lengths)], lines)


def main(argv):
    """Bring the README up to date, or say that it is not."""
    newest = max(harness.RESULTS.glob("forward-*.json"), key=lambda path: json.loads(path.read_text())["when"])
    old = README.read_text()
    new = re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{section(newest)}\n\n{END}", old, flags=re.DOTALL)
    if "--check" in argv:
        return int(new != old)
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
