# SPDX-License-Identifier: Apache-2.0
"""Numbers of a checkpoint into a model, with a progress bar where it takes long and somebody looks."""

import sys
import time
import warnings

from gpt2cy.weights.checkpoint import Checkpoint

QUIET_SECONDS = 1.0


def load(checkpoint: Checkpoint, put) -> None:
    """Hand on every block of every tensor; see `gpt2cy.weights.load_into`."""
    if checkpoint.head_differs():
        warnings.warn(
            f"{checkpoint.files[0]}: lm_head.weight differs from wte.weight, but the configuration ties them "
            "(tie_word_embeddings): wte.weight is used for both",
            stacklevel=4,
        )
    with Progress(sum(tensor.nbytes for tensor in checkpoint.tensors.values())) as progress:
        for name, tensor in checkpoint.tensors.items():
            for first, rows in tensor.blocks():
                put(name, rows, first, tensor.transposed)
                progress.add(rows.size * tensor.nbytes // max(1, tensor.size))


class Progress:
    """A bar of tqdm on stderr, once QUIET_SECONDS have passed; nothing without tqdm or without a terminal."""

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.start = time.monotonic()
        self.bar = None
        self.wanted = sys.stderr is not None and sys.stderr.isatty()

    def add(self, count: int) -> None:
        self.done += count
        if self.bar is not None:
            self.bar.update(count)
        elif self.wanted and time.monotonic() - self.start > QUIET_SECONDS:
            self.wanted = False
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self.bar = tqdm(
                total=self.total, initial=self.done, unit="B", unit_scale=True, desc="loading", leave=False
            )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.bar is not None:
            self.bar.close()
