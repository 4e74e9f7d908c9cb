# SPDX-License-Identifier: Apache-2.0
"""Greedy generation beside transformers', live: random models, ragged prompts, penalties, stop ids."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gpt2cy

sys.path.append(str(Path(__file__).parents[1] / "golden"))
import formula
from make_golden import HALF, PLAIN, hf_model

CONFIG = gpt2cy.GPTConfig(**{**PLAIN, "block_size": 64})
SETTINGS = [
    {},
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2},
    {"repetition_penalty": 0.8, "no_repeat_ngram_size": 3},
    {"stop_ids": [3, 17, 40]},
]


@pytest.fixture(scope="module")
def models():
    weights = formula.weights(CONFIG, HALF)
    model = gpt2cy.GPT(CONFIG)
    model.load_state_dict(weights)
    return model, hf_model(CONFIG, weights)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_greedy(models, settings):
    """All prompts in one ragged batch here, each alone there: the same ids, to the same end."""
    model, peer = models
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 61, length).tolist() for length in (1, 2, 7, 20, 33, 44)]
    prompts.append(prompts[-1][:40])
    found = model.generate(prompts, max_new_tokens=20, temperature=0, **settings)
    theirs = {**settings}
    stop_ids = theirs.pop("stop_ids", None)
    for prompt, new in zip(prompts, found, strict=True):
        with torch.no_grad():
            whole = peer.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=20,
                do_sample=False,
                eos_token_id=stop_ids,
                pad_token_id=0,
                **theirs,
            )
        assert new.tolist() == whole[0, len(prompt) :].tolist()
