# SPDX-License-Identifier: Apache-2.0
"""What width, heads and layers cost: each is varied alone, and parameters, memory and time are measured.

    python examples/experiment.py
    python examples/experiment.py --plot sizes.png      needs matplotlib: the extra `plot`

Parameters grow with the square of the width, and in proportion to the layers; heads cost nothing but time.
"""

import argparse
import statistics
import time

import numpy as np

import gpt2cy

BASE = {"vocab_size": 512, "n_embd": 128, "n_heads": 4, "n_layers": 4, "block_size": 64}
SWEEPS = {"n_embd": (64, 128, 256, 384), "n_heads": (1, 2, 4, 8, 16), "n_layers": (1, 2, 4, 8)}
N_TOKENS = 64
COLUMNS = ("parameters", "MiB", "ms", "GFLOP/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plot", metavar="FILE", help="draw the table into an image")
    args = parser.parse_args()
    print(f"a forward pass of {N_TOKENS} tokens; what is not varied: {BASE}")
    results = {}
    for field, values in SWEEPS.items():
        print(f"\n{field:>8}" + "".join(f"{column:>12}" for column in COLUMNS))
        results[field] = [measure(gpt2cy.GPTConfig(**{**BASE, field: value})) for value in values]
        for value, row in zip(values, results[field], strict=True):
            print(
                f"{value:8}{row['parameters']:12,}{row['MiB']:12.2f}{row['ms']:12.3f}{row['GFLOP/s']:12.1f}"
            )
    if args.plot:
        draw(results, args.plot)
        print(f"\ndrawn: {args.plot}")


def measure(config):
    """One row of the table."""
    model = gpt2cy.GPT(config, seed=0)
    tokens = np.arange(N_TOKENS)[None] % config.vocab_size
    samples = []
    model(tokens)
    for _ in range(15):
        start = time.perf_counter()
        model(tokens)
        samples.append(time.perf_counter() - start)
    seconds = statistics.median(samples)
    in_products = config.n_params - N_TOKENS * config.n_embd - config.vocab_size * config.n_embd
    return {
        "parameters": config.n_params,
        "MiB": config.memory_plan(1, N_TOKENS)["total"] / 2**20,
        "ms": 1e3 * seconds,
        "GFLOP/s": 2e-9 * N_TOKENS * in_products / seconds,  # all but the two tables that are looked up
    }


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, len(results), figsize=(10, 7), sharey="row", layout="constrained")
    for column, (field, rows) in enumerate(results.items()):
        for row, quantity in enumerate(COLUMNS[:3]):
            axes[row, column].plot(SWEEPS[field], [found[quantity] for found in rows], "o-", color="tab:blue")
            axes[row, column].set_ylim(bottom=0)
            axes[row, column].set_xticks(SWEEPS[field])
            axes[row, column].grid(alpha=0.3)
            axes[row, 0].set_ylabel(quantity)
        axes[-1, column].set_xlabel(field)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
