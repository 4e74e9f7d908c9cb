# SPDX-License-Identifier: Apache-2.0
"""llm.c's model files: 256 int32 of header, then the tensors in a fixed order, those of all blocks stacked.

    header  magic, version (3: float32, 5: bfloat16), positions, vocabulary, blocks, heads, width, rows of wte
    then    wte [rows, C], wpe [P, C], LLMC_BLOCK each [L, ...], ln_f weight and bias

Linear weights are [out, in]. Rows of wte behind the vocabulary are padding, as the header says: they are left
out.
"""

import math
import struct

from gpt2cy.config import GPTConfig
from gpt2cy.weights.checkpoint import Stored
from gpt2cy.weights.files import File
from gpt2cy.weights.names import LLMC_BLOCK, is_linear
from gpt2cy.weights.readers import Contents

MAGIC = 20240326
HEADER = 256 * 4
DTYPES = {3: "F32", 5: "BF16"}


def read(file: File) -> Contents:
    """Return the contents of an llm.c model file, or raise ValueError saying what is wrong with it."""
    fields = struct.unpack("<8i", file.read(0, HEADER, "the header")[:32])
    _, version, positions, vocab, layers, heads, width, padded = fields
    if version not in DTYPES:
        raise ValueError(
            f"{file}: expected version 3 (float32) or 5 (bfloat16) of llm.c's format, found {version}"
        )
    try:
        config = GPTConfig(vocab, width, heads, layers, positions, tie_weights=True, lm_head_bias=False)
    except ValueError as error:
        raise ValueError(f"{file}: header: {error}") from None
    if padded < vocab:
        raise ValueError(f"{file}: header: expected a padded vocabulary of at least {vocab}, found {padded}")
    n_params = config.n_params + (padded - vocab) * width
    needed = HEADER + n_params * (4 if version == 3 else 2)
    if file.size != needed:
        raise ValueError(
            f"{file}: expected {needed:,} bytes by its header, found {file.size:,}: cut short or damaged"
        )
    return Contents("llm.c", _tensors(file, config, padded, DTYPES[version]), config, linear_transposed=True)


def _tensors(file, config, padded, dtype):
    shapes = config.parameter_shapes()
    tensors = {}
    offset = HEADER

    def take(shape):
        nonlocal offset
        stored = Stored.of(file, offset, dtype, shape)
        offset += math.prod(shape) * stored.format.nbytes
        return stored

    tensors["wte.weight"] = take((padded, config.n_embd)).first_rows(config.vocab_size)
    tensors["wpe.weight"] = take(shapes["wpe.weight"])
    for name in LLMC_BLOCK:
        shape = shapes[f"h.0.{name}"]
        stacked = take((config.n_layers, *(reversed(shape) if is_linear(f"h.0.{name}") else shape)))
        tensors |= {f"h.{i}.{name}": stacked.part(i) for i in range(config.n_layers)}
    for name in ("ln_f.weight", "ln_f.bias"):
        tensors[name] = take(shapes[name])
    return tensors
