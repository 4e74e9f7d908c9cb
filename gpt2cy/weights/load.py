# SPDX-License-Identifier: Apache-2.0
"""Numbers of a checkpoint into a model, with a progress bar where it takes long and somebody looks."""

import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gpt2cy.kernels.threads import get_num_threads
from gpt2cy.weights import names
from gpt2cy.weights.checkpoint import BLOCK_BYTES, Checkpoint

QUIET_SECONDS = 1.0
MOST_THREADS = 4  # more wait for memory
WORTH_A_THREAD = 16 << 20  # bytes
PART_BYTES = 8 << 20  # what a thread takes at a time


def load(checkpoint: Checkpoint, put) -> None:
    """Hand on every block of every tensor; see `gpt2cy.weights.load_into`."""
    if checkpoint.head_differs():
        warnings.warn(
            f"{checkpoint.files[0]}: lm_head.weight differs from wte.weight, but the configuration ties them "
            "(tie_word_embeddings): wte.weight is used for both",
            stacklevel=4,
        )
    sizes = [tensor.nbytes for tensor in checkpoint.tensors.values()]
    total = sum(sizes)
    local = threading.local()

    def move(part):
        tensor, rows = part
        if not hasattr(local, "buffer"):
            local.buffer = np.empty(min(BLOCK_BYTES, max(sizes)), np.uint8)
        if _is_turned_table(tensor):
            put(tensor.name, tensor.read(), 0, False)
        else:
            for first, block in tensor.blocks(rows, local.buffer):
                put(tensor.name, block, first, tensor.transposed)
        return len(rows) * tensor.stored.row_bytes

    n_threads = min(MOST_THREADS, get_num_threads(), 1 + total // WORTH_A_THREAD)
    with Progress(total) as progress:
        if n_threads == 1:
            for part in _parts(checkpoint):
                progress.add(move(part))
        else:
            with ThreadPoolExecutor(n_threads) as pool:
                for count in pool.map(move, _parts(checkpoint)):
                    progress.add(count)


def _is_turned_table(tensor):
    """Whether an embedding lies in columns, which no format does by itself: it is read whole."""
    return tensor.transposed and tensor.name in (names.TABLE, "wpe.weight")


def _parts(checkpoint):
    """(tensor, rows) of all tensors, in pieces of about PART_BYTES."""
    for tensor in checkpoint.tensors.values():
        stored = tensor.stored
        step = stored.block_rows * max(1, PART_BYTES // max(1, stored.block_rows * stored.row_bytes))
        step = stored.n_rows if _is_turned_table(tensor) else step
        for first in range(0, stored.n_rows, step):
            yield tensor, range(first, min(first + step, stored.n_rows))


class Progress:
    """A bar of tqdm on stderr, once QUIET_SECONDS have passed; nothing without tqdm or without a terminal."""

    def __init__(self, total: int):
        self.total, self.done = total, 0
        self.start = time.monotonic()
        self.bar: Any = None
        self.wanted = sys.stderr is not None and sys.stderr.isatty()

    def add(self, count: int) -> None:
        self.done += count
        if self.bar is not None:
            self.bar.update(count)
        elif self.wanted and time.monotonic() - self.start > QUIET_SECONDS:
            self.wanted = False
            try:
                from tqdm import tqdm  # type: ignore[import-untyped]  # it has no types
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
