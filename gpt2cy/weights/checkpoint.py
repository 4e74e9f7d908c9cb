# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that has been opened: its configuration, and its tensors under Hugging Face's names, unread.

    Stored       a tensor as it lies in a file: where, which numbers, which shape
    Tensor       a parameter of GPT-2 and the Stored that holds it, perhaps transposed
    Checkpoint   all of them, checked against the configuration (names.py)

A tensor is read in blocks of rows that fit the processor's cache, so that loading a model holds one block a
thread beside the model's own memory.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gpt2cy.config import GPTConfig
from gpt2cy.weights.dtypes import FLOATS, Format
from gpt2cy.weights.files import File

BLOCK_BYTES = 1 << 20  # what is read at a time, and packed while it is in the cache
_PANEL = 32  # rows of a transposed matrix go into whole panels of the packed one


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a file, row by row.

    `format` is None for numbers that are no floats: they may be listed, not read. With `turned` the tensor is
    a matrix and the rows in the file, which `shape` counts, are its columns.
    """

    file: File
    offset: int
    dtype: str
    shape: tuple[int, ...]
    format: Format | None = None
    turned: bool = False

    @classmethod
    def of(
        cls, file: File, offset: int, dtype: str, shape: tuple[int, ...], turned: bool = False
    ) -> "Stored":
        """One of plain numbers, of safetensors' names."""
        return cls(file, offset, dtype, tuple(shape), FLOATS.get(dtype), turned)

    @property
    def floats(self) -> Format:
        """The format of what can be read."""
        if self.format is None:
            raise ValueError(f"{self.file}: expected floats, found {self.dtype}")
        return self.format

    @property
    def logical_shape(self) -> tuple[int, ...]:
        """The shape that the file gives the tensor."""
        return self.shape[::-1] if self.turned else self.shape

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: of the last axis."""
        width = self.shape[-1] if self.shape else 1
        return width // self.floats.values * self.floats.nbytes

    def first_rows(self, count: int) -> "Stored":
        """The same without the rows behind the first ones."""
        return replace(self, shape=(count, *self.shape[1:]))

    def part(self, index: int) -> "Stored":
        """One of the tensors that lie stacked along the first axis."""
        shape = self.shape[1:]
        skipped = index * math.prod(shape) // self.floats.values * self.floats.nbytes
        return replace(self, offset=self.offset + skipped, shape=shape)

    @property
    def n_rows(self) -> int:
        """Rows of the last axis; a vector is one."""
        return math.prod(self.shape[:-1])

    @property
    def block_rows(self) -> int:
        """How many rows are read at a time."""
        width = self.shape[-1] if self.shape else 1
        most = max(1, BLOCK_BYTES // max(1, 4 * width, self.row_bytes))
        return most // _PANEL * _PANEL or most

    def blocks(self, what: str, rows: range | None = None, buffer=None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, float32 [r, last axis]) of the rows, each block in the same memory.

        `what` is the tensor's name for messages; `buffer`, BLOCK_BYTES of uint8, is used where it suffices.
        """
        rows = range(self.n_rows) if rows is None else rows
        most = min(self.block_rows, len(rows))
        if buffer is None or most * self.row_bytes > len(buffer):
            buffer = np.empty(most * self.row_bytes, np.uint8)
        for first in rows[:: most or 1]:
            count = min(most, rows.stop - first)
            block = buffer[: count * self.row_bytes]
            self.file.read_into(block, self.offset + first * self.row_bytes, what)
            try:
                numbers = self.floats.decode(block.reshape(count, -1))
            except ValueError as error:
                raise ValueError(f"{self.file}: {what} ({self.dtype}): {error}") from None
            yield first, numbers


@dataclass(frozen=True)
class Tensor:
    """A parameter of GPT-2 in a file.

    Attributes
    ----------
    name : str
        Hugging Face's, without prefix.
    shape : tuple of int
        Hugging Face's: weights of the blocks are [in, out].
    dtype : str
        In the file: "F32", "F16", "BF16", "F64" or a quantised type of GGUF.
    transposed : bool
        Whether the file has the matrix the other way round.
    """

    name: str
    shape: tuple[int, ...]
    stored: Stored
    transposed: bool = False

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.stored.n_rows * self.stored.row_bytes

    def blocks(self, rows: range | None = None, buffer=None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, rows) as they lie in the file; each block is gone when the next one comes.

        A vector is one row. With `transposed`, row i of the file is column i of the parameter.
        """
        return self.stored.blocks(self.name, rows, buffer)

    def read(self) -> np.ndarray:
        """Return the whole tensor: C-contiguous float32 of `shape`, memory of its own."""
        out = np.empty(self.shape, np.float32)
        rows = out.reshape(1, -1) if out.ndim == 1 else out.T if self.transposed else out
        for first, block in self.blocks():
            rows[first : first + len(block)] = block
        return out


@dataclass
class Checkpoint:
    """A model in a file or several, opened by `gpt2cy.weights.open_checkpoint`; a context manager.

    Attributes
    ----------
    config : GPTConfig
    tensors : dict of str to Tensor
        Every parameter of the configuration under its Hugging Face name, in model order.
    format : str
        "safetensors", "pytorch", "nanogpt", "llm.c" or "gguf".
    folder : Path or None
        Where files of a tokenizer would lie.
    files : list of File
        Those that hold the tensors.
    ignored : list of str
        Names in the files that are no weights: buffers of causal masks.
    spare_head : Tensor or None
        A head that the file has although the configuration ties it to wte: not used.
    """

    config: GPTConfig
    tensors: dict[str, Tensor]
    format: str
    folder: Path | None
    files: list[File]
    ignored: list[str] = field(default_factory=list)
    spare_head: Tensor | None = None

    def describe(self) -> dict:
        """Return what a user may want to know, of plain types.

        Returns
        -------
        dict
            "format", "files" (paths), "dtypes" (how many tensors of each), "nbytes" (of the tensors in the
            files), "n_params", "tied", "ignored" (names that are no weights).
        """
        dtypes: dict[str, int] = {}
        for tensor in self.tensors.values():
            dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + 1
        return {
            "format": self.format,
            "files": [str(file.path) for file in self.files],
            "dtypes": dtypes,
            "nbytes": sum(tensor.nbytes for tensor in self.tensors.values()),
            "n_params": self.config.n_params,
            "tied": self.config.tie_weights,
            "ignored": list(self.ignored),
        }

    def head_differs(self) -> bool:
        """Whether the file has a head that the configuration ties to wte, with other numbers than wte's."""
        head, table = self.spare_head, self.tensors["wte.weight"]
        if head is None or (head.stored, head.transposed) == (table.stored, table.transposed):
            return False
        if head.transposed != table.transposed:
            return not np.array_equal(head.read(), table.read(), equal_nan=True)
        pairs = zip(head.blocks(), table.blocks(), strict=True)
        return any(not np.array_equal(a, b, equal_nan=True) for (_, a), (_, b) in pairs)

    def close(self) -> None:
        """Close the files; tensors cannot be read any more."""
        for file in self.files:
            file.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


@contextlib.contextmanager
def closed_on_error():
    """Yield a function that opens Files; they are closed if the block raises, and stay open if not."""
    opened = []

    def open_file(path):
        opened.append(File(path))
        return opened[-1]

    try:
        yield open_file
    except BaseException:
        for file in opened:
            file.close()
        raise
