# SPDX-License-Identifier: Apache-2.0
"""Write the tables of README.md and docs/threads.md from perf/results: python perf/tables.py [--check]

Every machine's result is shown, the newest first. With --check nothing is written; exit code 1 says that a
page is stale. (docs/kernels.md and docs/attention.md have tables of the lessons: lessons/page.py.)
"""

import re
import sys

import harness
import waiting as waiting_bench

ROOT = harness.HERE.parent
BEGIN, END = "<!-- {} table of perf/results -->", "<!-- end of {} table -->"
SHOWN = (16, 64, 256, 1024)


def measured_on(path, result, versions=""):
    """What stands above a machine's table: where its times come from."""
    what = f"{harness.processor(result['machine'])}, {result['versions']['gpt2cy']['isa']}"
    how = f"{versions}{max(result['threads'])} threads, medians of {result['rounds']} rounds"
    commit = result["commit"]  # with a + if files differed from it
    return harness.paragraph(f"{what}; {how}; commit {commit}, from `perf/results/{path.name}`:")


def forward(path, result):
    """The Markdown for one result file: what was measured on what, then a row for each model."""
    shown = {"call": "forward", "batch": 1, "threads": max(result["threads"])}
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
    head = measured_on(path, result, f"{', '.join(versions)}; ")
    return head + "\n\n" + harness.table(["tokens", *map(str, lengths)], lines)


def generate(path, result):
    """The Markdown for one result file: milliseconds of a step, and the share of the roofline."""
    shown = {"call": "token", "settings": "top_k, top_p", "threads": max(result["threads"])}
    rows = {(row["past"], row["batch"]): row for row in result["rows"] if shown.items() <= row.items()}
    batches = sorted({batch for _, batch in rows})
    lines = [
        [f"after {past} tokens"]
        + [f"**{harness.number(row['median'])}** ({row['share']['median']:.0%})" for row in of_past]
        for past in sorted({past for past, _ in rows})
        for of_past in [[rows[past, batch] for batch in batches if (past, batch) in rows]]
    ]
    return measured_on(path, result) + "\n\n" + harness.table(["batch", *map(str, batches)], lines)


def waiting(path, result):
    """The Markdown for one result file: milliseconds of a call under each setting."""
    return measured_on(path, result) + "\n\n" + waiting_bench.table(result["rows"])


README, THREADS = "README.md", "docs/threads.md"
PAGES = {forward: README, generate: README, waiting: THREADS}
ABOVE = {  # a section's tables
    forward: "Milliseconds for a forward pass with the logits of every position; in brackets, how many times "
    "as long torch took (the median of each round's ratio). Batch 1, float32, random weights; engines in "
    "turns, on a shared machine: trust the ratios. Torch runs the same model as modules, with its own fused "
    "attention (`perf/engines/torch_engine.py`). Tiny, small and medium are toys of this package, of 3 to 6 "
    "layers, 128 to 384 wide, with 512 ids (0.7, 3.5 and 11 million parameters); gpt2 is the released one of "
    "124 million. Tiny has 256 positions here, not its 128. The files have every round.",
    generate: "Milliseconds for one more token of every row of a batch, everything included (top_k and top_p "
    "over 50,257 logits too); in brackets, the share of what memory and arithmetic of the machine allow, "
    "measured in the same rounds. gpt2, float32.",
    waiting: "Milliseconds of a call: medians, and the mean beside a busy program. The small preset, 16 "
    "tokens, GNU OpenMP.",
}


def brought_up(text, page):
    """The page's text with the tables of today's results."""
    for section in (section for section, where in PAGES.items() if where == page):
        name = section.__name__
        begin, end = BEGIN.format(name), END.format(name)
        parts = [harness.paragraph(ABOVE[section]), *(section(*found) for found in harness.kept(name))]
        tables = "\n\n".join([begin, *parts, end])
        text = re.sub(f"{begin}.*{end}", lambda _, tables=tables: tables, text, flags=re.DOTALL)
    return text


def main(argv):
    """Bring the pages up to date, or say that one is not."""
    check, stale = "--check" in argv, False
    for page in dict.fromkeys(PAGES.values()):
        old = (ROOT / page).read_text()
        new = brought_up(old, page)
        stale = stale or new != old
        if not check:
            (ROOT / page).write_text(new)
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
