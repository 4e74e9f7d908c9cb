# SPDX-License-Identifier: Apache-2.0
"""Write the README's tables of times from perf/results: python perf/readme.py [--check]

The newest forward-*.json and generate-*.json are shown. With --check nothing is written; exit code 1 says
that the README is stale.
"""

import json
import re
import sys
import textwrap

import harness

README = harness.HERE.parent / "README.md"
BEGIN, END = "<!-- {} table of perf/results -->", "<!-- end of {} table -->"
SHOWN = (16, 64, 256, 1024)


def cpu(result):
    """Whose times they are."""
    machine = result["machine"]
    return f"{machine['cpu']} (family {machine.get('cpu family')}, model {machine.get('model')})"


def forward(path):
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
    text = (
        "Milliseconds for a forward pass with the logits of every position; in brackets, how many times as "
        f"long {' / '.join(others)} took in the same rounds. Batch 1, float32, {threads} threads, "
        f"random weights; {cpu(result)}; {', '.join(versions)}; medians of {result['rounds']} "
        "rounds, engines in turns, on a shared machine: trust the ratios. Tiny has 256 positions here. From "
        f"`perf/results/{path.name}`, "
        "which has every round."
    )
    return textwrap.fill(text, 120) + "\n\n" + harness.table(["tokens", *map(str, lengths)], lines)


def generate(path):
    """The Markdown for one result file: milliseconds of a step, and the share of the roofline."""
    result = json.loads(path.read_text())
    threads = max(result["threads"])
    shown = {"call": "token", "settings": "top_k, top_p", "threads": threads}
    rows = {(row["past"], row["batch"]): row for row in result["rows"] if shown.items() <= row.items()}
    batches = sorted({batch for _, batch in rows})
    lines = [
        [f"after {past} tokens"]
        + [f"**{harness.number(row['median'])}** ({row['share']['median']:.0%})" for row in of_past]
        for past in sorted({past for past, _ in rows})
        for of_past in [[rows[past, batch] for batch in batches if (past, batch) in rows]]
    ]
    text = (
        "Milliseconds for one more token of every row of a batch, everything included (top_k and top_p over "
        "50,257 logits too); in brackets, the share of what memory and arithmetic of this machine allow, "
        f"measured in the same rounds. gpt2, float32, {threads} threads; {cpu(result)}; medians of "
        f"{result['rounds']} rounds. From `perf/results/{path.name}`."
    )
    return textwrap.fill(text, 120) + "\n\n" + harness.table(["batch", *map(str, batches)], lines)


TABLES = {"forward": forward, "generate": generate}


def main(argv):
    """Bring the README up to date, or say that it is not."""
    new = old = README.read_text()
    for name, section in TABLES.items():
        results = harness.RESULTS.glob(f"{name}-*.json")
        newest = max(results, key=lambda path: json.loads(path.read_text())["when"])
        begin, end = BEGIN.format(name), END.format(name)
        table = f"{begin}\n\n{section(newest)}\n\n{end}"
        new = re.sub(f"{begin}.*{end}", lambda _, table=table: table, new, flags=re.DOTALL)
    if "--check" in argv:
        return int(new != old)
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
