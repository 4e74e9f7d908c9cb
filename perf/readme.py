# SPDX-License-Identifier: Apache-2.0
"""Write the README's table of times from perf/results: python perf/readme.py [--check]

The newest forward-*.json is shown. With --check nothing is written; exit code 1 says that the README is
stale.
"""

import json
import re
import sys
import textwrap

import harness

README = harness.HERE.parent / "README.md"
BEGIN, END = "<!-- table of perf/results -->", "<!-- end of table -->"
SHOWN = (16, 64, 256, 1024)


def section(path):
    """The Markdown for one result file: what was measured on what, then a row for each model."""
    result = json.loads(path.read_text())
    threads = max(result["threads"])
    shown = {"call": "forward", "batch": 1, "threads": threads}
    found = [row for row in result["rows"] if shown.items() <= row.items() and "error" not in row]
    models = dict.fromkeys(row["model"] for row in found)
    others = list(dict.fromkeys(row["engine"] for row in found))[1:]
    rows = {(row["model"], row["length"], row["engine"]): row for row in found}
    lengths = [shown for shown in SHOWN if any(length == shown for _, length, _ in rows)]
    lines = []
    for model in models:
        line = [model]
        for length in lengths:
            own = rows.get((model, length, "gpt2cy"))
            found = [rows[model, length, name] for name in others if (model, length, name) in rows]
            times = " / ".join(f"{row['ratio']:.1f}" for row in found)
            line.append(f"**{harness.number(own['median'])}** ({times})" if own else "")
        lines.append(line)
    versions = [f"{name} {found.get('version') or found[name]}" for name, found in result["versions"].items()]
    machine = result["machine"]
    cpu = f"{machine['cpu']} (family {machine.get('cpu family')}, model {machine.get('model')})"
    text = (
        "Milliseconds for a forward pass with the logits of every position; in brackets, how many times as "
        f"long {' / '.join(others)} took in the same rounds. Batch 1, float32, {threads} threads, "
        f"random weights; {cpu}; {', '.join(versions)}; medians of {result['rounds']} rounds, engines in "
        "turns, on a shared machine: trust the ratios. Tiny has 256 positions here. From "
        f"`perf/results/{path.name}`, "
        "which has every round."
    )
    return textwrap.fill(text, 120) + "\n\n" + harness.table(["tokens", *map(str, lengths)], lines)


def main(argv):
    """Bring the README up to date, or say that it is not."""
    results = harness.RESULTS.glob("forward-*.json")
    newest = max(results, key=lambda path: json.loads(path.read_text())["when"])
    old = README.read_text()
    table = f"{BEGIN}\n\n{section(newest)}\n\n{END}"
    new = re.sub(f"{BEGIN}.*{END}", lambda _: table, old, flags=re.DOTALL)
    if "--check" in argv:
        return int(new != old)
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
