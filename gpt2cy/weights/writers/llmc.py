# SPDX-License-Identifier: Apache-2.0
"""llm.c's .bin of float32 weights (magic 20240326, version 3).

    int32 header[256]   magic, version, positions, V, layers, heads, C, padded V; the rest is 0
    float32 data        wte [padded V, C], wpe, each of a block's twelve tensors for all layers together, ln_f

Matrices are [out, in], as in torch.nn.Linear. The vocabulary is padded with rows of zeros to a multiple of
128. The header has no room for other options than GPT-2's own. Source: github.com/karpathy/llm.c,
train_gpt2.py.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from gpt2cy.config import GPTConfig
from gpt2cy.weights.readers.llmc import HEADER, MAGIC
from gpt2cy.weights.writers.tensors import Tensor, require, tensors

FLOAT32 = 3  # version
VOCABULARY_MULTIPLE = 128


def check(config: GPTConfig, parameters: Mapping[str, NDArray]) -> None:
    """Raise a ValueError that names what the format cannot express."""
    require(
        "llm.c",
        config,
        parameters,
        tie_weights=True,
        activation="gelu_tanh",
        layer_norm_eps=1e-5,
        inner=4 * config.n_embd,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
    )


def write(config: GPTConfig, parameters: Mapping[str, NDArray], path: str) -> None:
    """Write a model to a file; see `gpt2cy.weights.writers.save`."""
    padded = -(-config.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
    header = np.zeros(HEADER // 4, "<i4")
    header[:8] = (
        MAGIC,
        FLOAT32,
        config.block_size,
        config.vocab_size,
        config.n_layers,
        config.n_heads,
        config.n_embd,
        padded,
    )
    with open(path, "wb") as file:
        file.write(header.tobytes())
        for tensor in _in_order(config, parameters):
            file.write(tensor.array().data)
            if tensor.name == "wte.weight":
                file.write(bytes(4 * (padded - config.vocab_size) * config.n_embd))


def _in_order(config, parameters) -> Iterator[Tensor]:
    """The tensors in the file's order and layouts."""
    everything = {tensor.name: tensor for tensor in tensors(config, parameters)}
    parts = [name.removeprefix("h.0.") for name in everything if name.startswith("h.0.")]
    yield everything["wte.weight"]
    yield everything["wpe.weight"]
    for part in parts:
        for layer in range(config.n_layers):
            tensor = everything[f"h.{layer}.{part}"]
            yield tensor.transposed() if len(tensor.shape) == 2 else tensor
    yield everything["ln_f.weight"]
    yield everything["ln_f.bias"]
