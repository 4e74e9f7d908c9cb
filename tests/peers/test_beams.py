# SPDX-License-Identifier: Apache-2.0
"""Beam search beside transformers', live: random models, prompts and settings."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gpt2cy

sys.path.append(str(Path(__file__).parents[1] / "golden"))
import formula
from make_beams import MODEL, hf_beams
from make_golden import hf_model


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """More only wait for each other, the models are so small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("seed", range(10))
def test_random_searches(seed):
    """The same ids in the same order with the same scores."""
    rng = np.random.default_rng(seed)
    config = gpt2cy.GPTConfig(**{**MODEL, "n_layers": 2})
    weights = {
        name: rng.normal(
            float(name.endswith("weight") and len(shape) == 1), 0.02 if "ln" in name else 0.25, shape
        )
        for name, shape in formula.shapes(config).items()
    }
    weights = {name: values.astype(np.float32) for name, values in weights.items()}
    model = gpt2cy.GPT(config)
    model.load_state_dict(weights)
    peer = hf_model(config, weights)
    for _ in range(3):
        num_beams = int(rng.integers(2, 7))
        settings = {
            "num_beams": num_beams,
            "num_return_sequences": int(rng.integers(1, num_beams + 1)),
            "max_new_tokens": int(rng.integers(1, 20)),
            "length_penalty": float(rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0])),
            "early_stopping": [False, True, "never"][rng.integers(3)],
            "stop_ids": rng.choice(23, size=rng.integers(0, 6), replace=False).tolist(),
            "no_repeat_ngram_size": int(rng.choice([0, 0, 2, 3])),
            "repetition_penalty": float(rng.choice([1.0, 1.0, 1.4])),
        }
        prompt = rng.integers(0, 23, rng.integers(1, 12)).tolist()
        expected = hf_beams(peer, prompt, settings)
        found = model.generate([prompt], details=True, **settings)
        assert [result.tokens.tolist() for result in found] == [ids for ids, _ in expected], settings
        np.testing.assert_allclose(
            [result.score for result in found], [score for _, score in expected], rtol=1e-3
        )
