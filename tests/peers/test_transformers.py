# SPDX-License-Identifier: Apache-2.0
"""The engine beside transformers' ``GPT2LMHeadModel`` in float64: the same random weights, the same logits.

Run by ``make test-peers`` in an environment that has torch and transformers.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from gpt2cy import GPT, GPTConfig

sys.path.append(str(Path(__file__).parents[1] / "golden"))
import formula
from make_golden import hf_logits, hf_model

TOLERANCE = {"atol": 1e-5, "rtol": 1e-4}

TIED = {"tie_weights": True, "lm_head_bias": False}
SIZES = {"vocab_size": 61, "n_embd": 12, "n_heads": 2, "n_layers": 3, "block_size": 29}
CONFIGS = {
    "tied": GPTConfig(**SIZES, **TIED),
    "untied": GPTConfig(**SIZES, lm_head_bias=False),
    "untied_head_bias": GPTConfig(**SIZES),
    "tied_head_bias": GPTConfig(**SIZES, tie_weights=True, lm_head_bias=True),
    "one_layer": GPTConfig(**SIZES | {"n_layers": 1}, **TIED),
    "head_dim_1": GPTConfig(**SIZES | {"n_heads": 12}, **TIED),
    "width_1": GPTConfig(**SIZES | {"n_embd": 1, "n_heads": 1}, **TIED),
    "n_inner_narrow": GPTConfig(**SIZES, **TIED, n_inner=5),
    "n_inner_wide": GPTConfig(**SIZES, **TIED, n_inner=101),
    "gelu_erf": GPTConfig(**SIZES, **TIED, activation="gelu_erf"),
    "relu": GPTConfig(**SIZES, **TIED, activation="relu"),
    "inverse_layer": GPTConfig(**SIZES, **TIED, scale_attn_by_inverse_layer_idx=True),
    "unscaled": GPTConfig(**SIZES, **TIED, scale_attn_weights=False),
    "eps": GPTConfig(**SIZES, **TIED, layer_norm_eps=0.1),
    "odd_sizes": GPTConfig(97, 35, 5, 2, 150, **TIED),
    "wide_heads": GPTConfig(131, 192, 2, 2, 70, **TIED),
    "tiny": GPTConfig.preset("tiny"),
}


def random_params(config, seed):
    """Random weights of every tensor; nothing is left at the 0 or 1 of a fresh model."""
    rng = np.random.default_rng(seed)
    std = 0.5 * np.sqrt(12.0 / config.n_embd)
    made = {}
    for name, shape in formula.shapes(config).items():
        mean, spread = (0.0, std) if len(shape) == 2 else (float(name.endswith("weight")), 0.2)
        made[name] = rng.normal(mean, spread, shape).astype(np.float32)
    return made


class Pair:
    """The same model twice, and ids [B, T] that fill its positions."""

    def __init__(self, config, seed):
        params = random_params(config, seed)
        self.config = config
        self.ours = GPT(config)
        self.ours.load_state_dict(params)
        self.theirs = hf_model(config, params)
        rng = np.random.default_rng(seed + 1)
        self.tokens = rng.integers(0, config.vocab_size, (3, config.block_size))
        self.logits = hf_logits(self.theirs, self.tokens)  # [B, T, V]


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request):
    return Pair(CONFIGS[request.param], seed=len(request.param))


def test_logits(pair):
    np.testing.assert_allclose(pair.ours(pair.tokens), pair.logits, **TOLERANCE)


def test_logits_of_one_sequence(pair):
    np.testing.assert_allclose(pair.ours(pair.tokens[1]), pair.logits[1], **TOLERANCE)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_logits_of_short_batches(pair, length):
    expected = hf_logits(pair.theirs, pair.tokens[:, :length])
    np.testing.assert_allclose(pair.ours(pair.tokens[:, :length]), expected, **TOLERANCE)


def test_next_logits(pair):
    np.testing.assert_allclose(pair.ours.next_logits(pair.tokens), pair.logits[:, -1], **TOLERANCE)


def test_sequences_of_different_lengths(pair):
    lengths = [pair.config.block_size, 1, 5]
    sequences = [row[:length] for row, length in zip(pair.tokens, lengths, strict=True)]
    for sequence, logits in zip(sequences, pair.ours.forward_many(sequences), strict=True):
        np.testing.assert_allclose(logits, hf_logits(pair.theirs, sequence[None])[0], **TOLERANCE)


def test_decoding_one_token_at_a_time(pair):
    cache = pair.ours.new_cache(batch_size=len(pair.tokens))
    prompt = 4
    np.testing.assert_allclose(
        pair.ours(pair.tokens[:, :prompt], cache=cache), pair.logits[:, :prompt], **TOLERANCE
    )
    for position in range(prompt, pair.config.block_size):
        step = pair.ours(pair.tokens[:, position : position + 1], cache=cache)
        np.testing.assert_allclose(step[:, 0], pair.logits[:, position], **TOLERANCE)


def test_decoding_in_chunks(pair):
    cache = pair.ours.new_cache(batch_size=len(pair.tokens))
    for chunk in (slice(0, 3), slice(3, 4), slice(4, 20), slice(20, None)):
        logits = pair.ours(pair.tokens[:, chunk], cache=cache)
        np.testing.assert_allclose(logits, pair.logits[:, chunk], **TOLERANCE)


def test_names_and_shapes_of_the_state_dict(pair):
    theirs = {
        name.removeprefix("transformer."): tuple(values.shape)
        for name, values in pair.theirs.state_dict().items()
    }
    if pair.config.tie_weights:
        del theirs["lm_head.weight"]
    assert {name: values.shape for name, values in pair.ours.state_dict().items()} == theirs


def test_number_of_parameters(pair):
    assert pair.config.n_params == sum(values.numel() for values in pair.theirs.parameters())


@pytest.mark.parametrize("name", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2"])
def test_number_of_parameters_of_released_models(name):
    config = GPTConfig.preset(name)
    with torch.device("meta"):
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=config.n_embd, n_head=config.n_heads, n_layer=config.n_layers)
        )
    assert config.n_params == model.num_parameters()


def test_a_cached_step_equals_their_cached_step():
    pair = Pair(CONFIGS["odd_sizes"], seed=5)
    cache = pair.ours.new_cache(batch_size=3)
    pair.ours(pair.tokens[:, :70], cache=cache)
    with torch.no_grad():
        prefill = pair.theirs(torch.tensor(pair.tokens[:, :70]), use_cache=True)
        step = pair.theirs(torch.tensor(pair.tokens[:, 70:71]), cache=prefill.cache, use_cache=True)
    np.testing.assert_allclose(
        pair.ours(pair.tokens[:, 70:71], cache=cache), step.logits.numpy(), **TOLERANCE
    )


def test_taking_turns_in_one_process():
    pair = Pair(CONFIGS["tiny"], seed=6)
    first = pair.ours(pair.tokens)
    for _ in range(5):
        np.testing.assert_allclose(hf_logits(pair.theirs, pair.tokens), pair.logits, **TOLERANCE)
        np.testing.assert_array_equal(pair.ours(pair.tokens), first)
