# SPDX-License-Identifier: Apache-2.0
"""What tests of checkpoints share: makers.py on the path, and the model that a file should give."""

import sys
from pathlib import Path

import pytest

import gpt2cy

sys.path.append(str(Path(__file__).parent))
import makers


@pytest.fixture
def tensors():
    """Weights of makers.CONFIG, by Hugging Face's names."""
    return makers.weights()


@pytest.fixture
def gives(same_bits):
    """Assert that a source loads as the model of a configuration and weights, to the bit."""

    def check(source, config, tensors, **options):
        model = gpt2cy.GPT.from_pretrained(source, **options)
        assert model.config == config
        expected = gpt2cy.GPT(config, seed=0)
        expected.load_state_dict(tensors)
        for (name, array), (other, wanted) in zip(
            model.named_parameters(), expected.named_parameters(), strict=True
        ):
            assert name == other
            same_bits(array, wanted)
        same_bits(model(makers.IDS), expected(makers.IDS))
        return model

    return check
