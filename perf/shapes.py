# SPDX-License-Identifier: Apache-2.0
"""What is measured: which models, with which weights, on how many tokens."""

import numpy as np

from gpt2cy import GPTConfig

# The four sizes with published times, and the released shape (its head is tied). Tiny gets more positions
# than its preset has, so that it too runs 256 tokens.
MODELS = {
    "tiny": GPTConfig.preset("tiny", block_size=256),
    "small": GPTConfig.preset("small"),
    "medium": GPTConfig.preset("medium"),
    "gpt2-small": GPTConfig.preset("gpt2-small"),
    "gpt2": GPTConfig.preset("gpt2"),
}
PUBLISHED = ("tiny", "small", "medium", "gpt2-small")
SHORTEST = 16
BATCHES = (2, 4, 8)
BATCH_LENGTH = 64
PROMPTS = (16, 64, 256, 1024)
DECODES = ((1, 16), (1, 900), (8, 16), (32, 16))  # batch, cached tokens


def lengths(config):
    """16, 32, 64, ... tokens, up to the model's positions."""
    return [SHORTEST << i for i in range((config.block_size // SHORTEST).bit_length())]


def weights(config, seed=0):
    """Random weights by their Hugging Face names.

    Biases are not 0 and gammas not 1, and the matrices' standard deviation 0.5 sqrt(12 / C) makes attention
    look at some tokens more than at others: no mistake of an engine stays hidden.
    """
    rng = np.random.default_rng(seed)
    std = np.float32(0.5 * np.sqrt(12 / config.n_embd))
    arrays = {}
    for name, shape in config.parameter_shapes().items():
        array = rng.standard_normal(shape, np.float32)
        array *= std if len(shape) == 2 else np.float32(0.1)
        if len(shape) == 1 and name.endswith(".weight"):
            array += np.float32(1)  # gamma
        arrays[name] = array
    return arrays
