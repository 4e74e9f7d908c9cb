# SPDX-License-Identifier: Apache-2.0
"""PPL-03: log probabilities and perplexity of a text of 2,000 tokens, recorded from transformers.

``golden/make_golden.py`` wrote the file. The model sees 128 tokens at once; the strides are from 127, no more
overlap than there must be, to 1, all the context that fits for every token.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import gpt2cy

sys.path.append(str(Path(__file__).parent / "golden"))
import formula

STRIDES = (127, 64, 1)


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(__file__).parent / "golden" / "scores.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def model(golden):
    config = gpt2cy.GPTConfig(**json.loads(str(golden["config"])))
    model = gpt2cy.GPT(config)
    model.load_state_dict(formula.weights(config, float(golden["scale"])))
    return model


@pytest.mark.parametrize("stride", STRIDES)
def test_logprobs_and_perplexity(golden, model, stride):
    tokens, expected = golden["tokens"], golden[f"logprobs_{stride}"]
    found = model.token_logprobs(tokens, stride=stride)
    assert found.shape == expected.shape == (1999,)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-5)
    assert model.perplexity(tokens, stride=stride) == pytest.approx(golden[f"perplexity_{stride}"], rel=1e-6)


def test_no_stride_is_the_longest(golden, model):
    assert model.perplexity(golden["tokens"]) == model.perplexity(golden["tokens"], stride=127)


def test_a_wrong_stride_or_weighting_shows(golden):
    """Else agreement would prove nothing."""
    perplexities = [float(golden[f"perplexity_{stride}"]) for stride in STRIDES]
    for i, one in enumerate(perplexities):
        for other in perplexities[i + 1 :]:
            assert abs(one / other - 1) > 1e-4
    windows = np.split(golden["logprobs_64"], range(127, 1999, 64))
    mean_of_means = np.exp(-np.mean([window.mean() for window in windows]))
    assert abs(mean_of_means / golden["perplexity_64"] - 1) > 1e-4


def test_the_file_says_which_versions_wrote_it(golden):
    assert set(json.loads(str(golden["versions"]))) == {"torch", "transformers", "numpy"}
