# SPDX-License-Identifier: Apache-2.0
"""Model weights and token ids made by an integer formula: the same numbers on every machine, with no file.

A random generator's stream may change between releases; integer arithmetic does not. Element i of a tensor
is made from i and the tensor's name alone, by the finaliser of MurmurHash3 on 32-bit integers: a tensor's
values do not depend on which other tensors the model has. Biases are not 0 and layer norm weights not 1, as
they are in a fresh model, so that a forgotten one shows.
"""

import zlib

import numpy as np

STD = 0.3


def integers(name, count):
    """Return ``count`` uint32 that look random, a function of ``name`` and position only."""
    h = np.arange(count, dtype=np.uint32) + np.uint32(zlib.crc32(name.encode()))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
    return h ^ (h >> np.uint32(16))


def uniform(name, shape):
    """Return float64 values spread evenly over [-1, 1): multiples of 2**-23, so exact in float32 too."""
    top = integers(name, int(np.prod(shape))) >> np.uint32(8)  # 24 bits
    return (top.astype(np.float64) / 2**23 - 1.0).reshape(shape)


def shapes(config):
    """Return the shape of every tensor of a model, by its Hugging Face name, in model order."""
    V, P, C = config.vocab_size, config.block_size, config.n_embd
    F = config.n_inner or 4 * C
    sizes = {"wte.weight": (V, C), "wpe.weight": (P, C)}
    for layer in range(config.n_layers):
        block = {
            "ln_1": (C,),
            "attn.c_attn": (C, 3 * C),
            "attn.c_proj": (C, C),
            "ln_2": (C,),
            "mlp.c_fc": (C, F),
            "mlp.c_proj": (F, C),
        }
        for name, size in block.items():
            sizes[f"h.{layer}.{name}.weight"] = size
            if config.bias:
                sizes[f"h.{layer}.{name}.bias"] = size[-1:]
    sizes["ln_f.weight"] = (C,)
    if config.bias:
        sizes["ln_f.bias"] = (C,)
    if not config.tie_weights:
        sizes["lm_head.weight"] = (V, C)
    has_head_bias = config.lm_head_bias
    if has_head_bias is None:
        has_head_bias = config.bias and not config.tie_weights
    if has_head_bias:
        sizes["lm_head.bias"] = (V,)
    return sizes


def weights(config, scale=1.0):
    """Return a float32 state dict for a model.

    Matrices have mean 0 and standard deviation ``STD * sqrt(12 / n_embd)``: large enough for attention to be
    far from uniform, small enough for float32 rounding to stay well below atol 1e-5 with rtol 1e-4. Biases
    lie in [-0.25, 0.25) and layer norm weights in [0.5, 1.5). ``scale`` multiplies all that feeds the
    residual stream (embeddings, linear layers), and neither the layer norms nor an untied head.
    """
    std = STD * np.sqrt(12.0 / config.n_embd)
    made = {}
    for name, shape in shapes(config).items():
        values = uniform(name, shape)
        if name.endswith(".bias"):
            values *= 0.25
        elif len(shape) == 1:
            values = 1.0 + 0.5 * values
        else:
            values *= np.sqrt(3.0) * std
        if not name.startswith("lm_head.") and "ln_" not in name:
            values *= scale
        made[name] = values.astype(np.float32)
    return made


def tokens(config, batch, time):
    """Return int64 ids [batch, time] that spread over the whole vocabulary."""
    return (integers("tokens", batch * time) % config.vocab_size).astype(np.int64).reshape(batch, time)
