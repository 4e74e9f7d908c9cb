# SPDX-License-Identifier: Apache-2.0
"""The memory of the process while models grow, beside what GPTConfig.memory_plan said beforehand.

    python examples/memory.py
    python examples/memory.py --up-to gpt2-small

Linux only: it reads what is resident from /proc. Weights are there once they are set, and the memory of a
call while it runs. What stays behind is the C library's, for the next one that asks.
"""

import argparse
import gc
import sys

import numpy as np

import gpt2cy

SIZES = ("tiny", "small", "medium", "gpt2-small")
N_TOKENS = 64
MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--up-to", choices=SIZES, default="medium", help="(default: %(default)s)")
    args = parser.parse_args()
    if sys.platform != "linux":
        sys.exit("examples/memory.py: reads /proc, which only Linux has")
    sizes = SIZES[: SIZES.index(args.up_to) + 1]
    once = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)  # NumPy's generators, and the threads
    once([[1] * N_TOKENS], once.new_cache())
    print(f"MiB; one sequence of {N_TOKENS} tokens, cached")
    print(f"{'':12}{'weights':>18}{'with the call':>18}{'left behind':>14}")
    print(f"{'':12}{'planned':>9}{'grown':>9}{'planned':>9}{'peak':>9}{'':>14}")
    for name in sizes:
        show(name)


def show(name):
    """Build a model, run it, let it go; one line of memory."""
    config = gpt2cy.GPTConfig.preset(name)
    plan = config.memory_plan(1, N_TOKENS)
    start_anew()
    before = resident("VmRSS")
    model = gpt2cy.GPT(config, seed=0)
    weights = resident("VmRSS") - before
    logits = model(np.arange(N_TOKENS)[None] % config.vocab_size, cache := model.new_cache())
    peak = resident("VmHWM") - before
    del model, cache, logits
    gc.collect()
    left = resident("VmRSS") - before
    print(f"{name:12}{plan['weights'] / MIB:9.1f}{weights / MIB:9.1f}", end="")
    print(f"{plan['total'] / MIB:9.1f}{peak / MIB:9.1f}{left / MIB:14.1f}")


def resident(name):
    """Bytes of the process that are in memory: VmRSS now, VmHWM at most."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{name}:"))


def start_anew():
    """Forget what was the most."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


if __name__ == "__main__":
    main()
