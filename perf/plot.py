# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/img, from perf/results and nothing else; needs matplotlib (the extra "plot").

    python perf/plot.py [--results FOLDER] [--output FOLDER]

    forward.png    forward time against the number of tokens, every engine of the newest forward-*.json
    roofline.png   speed against flops for each byte of weights, under the limits of the same run: the forward
                   pass of gpt2 where forward-*.json has shares, and the matrix product of gemm-*.json

Both are of one machine, that of the newest forward-*.json.

A picture whose results are not there is left out aloud, and an older one stays.
"""

import argparse
import sys
from pathlib import Path

import harness
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # the backend has to be chosen first

IMAGES = harness.HERE.parent / "docs/img"
COLOURS = {"gpt2cy": "tab:blue", "torch": "tab:orange", "numpy": "tab:green"}
MODELS = ("small", "gpt2")
MODEL, LAYER = "gpt2", "c_fc"


def forward(result):
    """Time against tokens, a panel for each of MODELS; the roofline where it is known."""
    threads = max(result["threads"])
    figure, panels = plt.subplots(1, len(MODELS), figsize=(10, 4.2), layout="constrained")
    for panel, model in zip(panels, MODELS, strict=True):
        case = {"model": model, "call": "forward", "batch": 1, "threads": threads}
        rows = [row for row in result["rows"] if case.items() <= row.items() and "error" not in row]
        for engine in dict.fromkeys(row["engine"] for row in rows):
            own = sorted((row for row in rows if row["engine"] == engine), key=lambda row: row["length"])
            lengths = [row["length"] for row in own]
            colour = COLOURS.get(engine)
            panel.plot(
                lengths, [row["median"] for row in own], "o-", label=engine, color=colour, markersize=4
            )
            panel.fill_between(
                lengths, [row["q1"] for row in own], [row["q3"] for row in own], color=colour, alpha=0.2
            )
        roof = {
            row["length"]: row["roofline"] for row in rows if "roofline" in row and row["engine"] == "gpt2cy"
        }
        if roof:
            panel.plot(
                sorted(roof), [roof[t] for t in sorted(roof)], "k--", label="the machine's limit", lw=1
            )
        panel.set(xscale="log", yscale="log", title=model, xlabel="tokens", ylabel="milliseconds")
        ticks = sorted({row["length"] for row in rows})
        panel.set_xticks(ticks, list(map(str, ticks)))
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend()
    title = f"Forward pass, logits of every position, float32, {threads} threads"
    figure.suptitle(f"{title}, {harness.processor(result['machine'])}")
    return figure


def roofline(results):
    """Points (flops a byte, GFLOP/s) under the roofs of one and more threads."""
    limits = next(result["limits"] for result in results if result["limits"])
    isa = next(result["versions"]["gpt2cy"]["isa"] for result in results if result["limits"])
    figure, panel = plt.subplots(figsize=(8, 5), layout="constrained")
    least, most = 0.125, 2048.0
    for threads, style in zip(threads_of(results), ("-", "--", ":"), strict=False):
        peak, bandwidth = (limits.get(f"{kind}/{threads}") for kind in (f"fma/{isa}", "read/dram-2m"))
        if peak and bandwidth:
            ridge = peak["median"] / bandwidth["median"]
            roof = [least * bandwidth["median"], peak["median"], peak["median"]]
            panel.plot([least, ridge, most], roof, f"k{style}", lw=1.2, label=f"limit, {named(threads)}")
    for threads, colour in zip(threads_of(results), ("tab:orange", "tab:blue", "tab:green"), strict=False):
        for label, mark, rows in points(results, isa, threads):
            x = [row["flops"] / row["bytes"] for row, _ in rows]
            y = [row["flops"] / row["median"] / 1e6 for row, _ in rows]
            panel.plot(x, y, mark, color=colour, label=f"{label}, {named(threads)}", markersize=6, alpha=0.8)
            beside = (6, 6 if mark == "o" else -10)  # pass and product are close to each other
            for (_, text), *at in zip(rows, x, y, strict=True):
                panel.annotate(text, at, textcoords="offset points", xytext=beside, fontsize=7, color=colour)
    panel.set(xscale="log", yscale="log", xlabel="flops for each byte of weights", ylabel="GFLOP/s")
    panel.grid(alpha=0.3, which="both")
    panel.legend(loc="lower right", fontsize=8)
    figure.suptitle(f"Roofline, float32, {isa}, {harness.processor(results[0]['machine'])}")
    return figure


def points(results, isa, threads):
    """(label, mark, [(row, text)]) of what there is to show with one number of threads."""
    for result in results:
        if result["bench"] == "forward":
            case = {"model": MODEL, "call": "forward", "batch": 1, "engine": "gpt2cy", "threads": threads}
            text = "T={length}"
            label, mark = f"forward pass of {MODEL}, T tokens", "o"
        else:
            case = {"layer": LAYER, "isa": isa, "threads": threads}
            text = "m={m}"
            label, mark = "matrix product [m, 768] by [768, 3072]", "x"
        rows = [row for row in result["rows"] if case.items() <= row.items() and "flops" in row]
        if rows:
            yield label, mark, [(row, text.format(**row)) for row in rows]


def threads_of(results):
    return sorted({row["threads"] for result in results for row in result["rows"]})


def named(threads):
    return f"{threads} thread" + "s" * (threads > 1)


def save(figure, path):
    """The same bytes for the same results: nothing in the file says when it was made, or by which version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
    print(f"wrote {path}")


def main(argv=None):
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--results", type=Path, default=harness.RESULTS, metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=IMAGES, metavar="FOLDER")
    args = parser.parse_args(argv)
    found = [result for bench in ("forward", "gemm") for _, result in harness.kept(bench, args.results)]
    of = [harness.slug(result["machine"]) for result in found]
    results = [result for result, machine in zip(found, of, strict=True) if machine == of[0]]
    if results and results[0]["bench"] == "forward":
        save(forward(results[0]), args.output / "forward.png")
    else:
        print("no forward-*.json: no forward.png", file=sys.stderr)
    limited = [result for result in results if result["limits"]]
    if limited:
        save(roofline(limited), args.output / "roofline.png")
    else:
        print("no result with the machine's limits: no roofline.png", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
