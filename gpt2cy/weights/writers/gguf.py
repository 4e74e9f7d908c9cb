# SPDX-License-Identifier: Apache-2.0
"""GGUF of the gpt2 architecture, float32, as llama.cpp reads it.

Names are llama.cpp's; matrices are [out, in]. GGUF itself lists the sides from the fastest to the slowest,
which the gguf package sees to. There is no tokenizer in the file ("none"): llama.cpp takes token ids. Source:
github.com/ggml-org/llama.cpp, docs of gguf-py and the gpt2 converter.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from gpt2cy.config import GPTConfig
from gpt2cy.weights.names import GGUF_BLOCK_LAYERS, GGUF_LAYERS
from gpt2cy.weights.writers.tensors import Tensor, require, tensors

ARCHITECTURE = "gpt2"
NAMES = {ours: theirs for theirs, ours in (GGUF_LAYERS | GGUF_BLOCK_LAYERS).items()}


def check(config: GPTConfig, parameters: Mapping[str, NDArray]) -> None:
    """Raise a ValueError that names what the format cannot express, an ImportError if gguf is missing."""
    _library()
    require(
        "gguf",
        config,
        parameters,
        activation="gelu_tanh",
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
    )


def write(config: GPTConfig, parameters: Mapping[str, NDArray], path: str) -> None:
    """Write a model to a file; see `gpt2cy.weights.writers.save`."""
    gguf = _library()
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    try:
        writer.add_context_length(config.block_size)
        writer.add_embedding_length(config.n_embd)
        writer.add_feed_forward_length(config.inner)
        writer.add_block_count(config.n_layers)
        writer.add_head_count(config.n_heads)
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_vocab_size(config.vocab_size)
        writer.add_tokenizer_model("none")
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        everything = list(_named(config, parameters))
        for tensor in everything:
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in everything:
            writer.write_tensor_data(tensor.array())
    finally:
        writer.close()


def _named(config, parameters) -> Iterator[Tensor]:
    """The tensors under the file's names and in its layouts."""
    for tensor in tensors(config, parameters):
        layer, _, kind = tensor.name.rpartition(".")
        prefix = ""
        if layer.startswith("h."):
            _, number, layer = layer.split(".", 2)
            prefix = f"blk.{number}."
            if len(tensor.shape) == 2:
                tensor = tensor.transposed()
        yield tensor._replace(name=f"{prefix}{NAMES[layer]}.{kind}")


def _library():
    try:
        import gguf
    except ImportError:
        raise ImportError("format 'gguf' needs the gguf package: pip install 'gpt2cy[gguf]'") from None
    return gguf
