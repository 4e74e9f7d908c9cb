# SPDX-License-Identifier: Apache-2.0
"""What may be drawn, beside transformers' own logits processors: the same ids, the same probabilities.

Random logits have no ties, and no seed here puts a share of probability within rounding of a boundary.
"""

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from gpt2cy.generation.sampler import Sampler
from gpt2cy.generation.sampling import Sampling
from gpt2cy.kernels import raw

WARPERS = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical_p": TypicalLogitsWarper,
}
SETTINGS = [
    {},
    {"temperature": 0.7},
    {"temperature": 3.0},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"typical_p": 0.3},
    {"typical_p": 0.95},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.8},
    {"top_p": 0.95, "typical_p": 0.9},
    {"temperature": 0.9, "top_k": 100, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.97},
]


def logits(vocab_size, kind, seed):
    """Random ones: a bell, or one with a few ids far above it, or with half of the ids banned."""
    rng = np.random.default_rng([seed, vocab_size])
    x = rng.standard_normal(vocab_size)
    if kind == "model":
        x = 2 * x - 35 + 15 * rng.random(vocab_size) ** 8
    if kind == "masked":
        x[rng.random(vocab_size) < 0.5] = -np.inf
    return x.astype(np.float32)


def warped(x, settings):
    """transformers' scores, in the order in which its ``generate`` applies the processors.

    In float64: its float32 sums over a vocabulary are off by 1e-6, which now and then is an id.
    """
    names = [name for name in WARPERS if name in settings]
    processors = LogitsProcessorList([WARPERS[name](settings[name]) for name in names])
    scores = processors(torch.zeros((1, 0), dtype=torch.long), torch.from_numpy(x)[None].double())
    return scores[0]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["bell", "model", "masked"])
@pytest.mark.parametrize("vocab_size", [7, 300, 50257])
def test_the_same_ids_may_be_drawn(vocab_size, kind, settings):
    for seed in range(3):
        x = logits(vocab_size, kind, seed)
        scores = warped(x, settings)
        chosen = Sampling(**settings)
        weights, _ = raw.select(
            x,
            1 / chosen.temperature,
            chosen.top_k or 0,
            1.0 if chosen.top_p is None else chosen.top_p,
            chosen.min_p or 0.0,
            1.0 if chosen.typical_p is None else chosen.typical_p,
        )
        expected = torch.softmax(scores.double(), -1).numpy()
        grain = (expected > 1e-12 * expected.max()) & (expected < 1e-11 * expected.max())  # half a quantum
        theirs = (expected > 0) & (expected > 1e-12 * expected.max())
        np.testing.assert_array_equal((weights > 0)[~grain], theirs[~grain])
        found = weights / weights.sum(dtype=np.float64)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.2, 5.0])
def test_repetition_penalty(penalty):
    for seed, (n_prompt, n_new) in enumerate([(0, 3), (5, 0), (40, 60)]):
        x = logits(50, "bell", seed)
        x[:3] = 0.0, -0.0, -np.inf
        ids = np.random.default_rng(seed).integers(0, 50, n_prompt + n_new)
        row = Sampler(Sampling(repetition_penalty=penalty), 50, 0, 0, 0, ids[:n_prompt])
        for token in ids[n_prompt:]:
            row.accept(token)
        processor = RepetitionPenaltyLogitsProcessor(penalty)
        expected = processor(torch.from_numpy(ids)[None], torch.from_numpy(x)[None].clone())[0].numpy()
        row.edit(x)
        np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_repeat_ngram(size):
    for n in (1, 2, 3, 10, 60):
        ids = np.random.default_rng([size, n]).integers(0, 5, n)
        x = logits(8, "bell", n)
        processor = NoRepeatNGramLogitsProcessor(size)
        expected = processor(torch.from_numpy(ids)[None], torch.from_numpy(x)[None].clone())[0].numpy()
        Sampler(Sampling(no_repeat_ngram_size=size), 8, 0, 0, 0, ids).edit(x)
        np.testing.assert_array_equal(x, expected)
