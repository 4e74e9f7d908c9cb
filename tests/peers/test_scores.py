# SPDX-License-Identifier: Apache-2.0
"""Scores beside transformers: its logits in float64, and the loss that it computes itself."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gpt2cy import GPT, GPTConfig

sys.path.append(str(Path(__file__).parents[1] / "golden"))
import formula
from make_golden import HALF, hf_logits, hf_logprobs, hf_model

CONFIGS = {
    "tied": GPTConfig(61, 12, 2, 3, 29, tie_weights=True, lm_head_bias=False),
    "untied_head_bias": GPTConfig(97, 35, 5, 2, 150),
    "padded": GPTConfig(64, 24, 3, 2, 40, tie_weights=True, lm_head_bias=False),
}


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request):
    config = CONFIGS[request.param]
    params = formula.weights(config, HALF)
    ours = GPT(config)
    ours.load_state_dict(params)
    return config, ours, hf_model(config, params)


def test_every_number_of_a_row(pair):
    config, ours, theirs = pair
    tokens = formula.tokens(config, 1, config.block_size)[0]
    rows = torch.log_softmax(torch.tensor(hf_logits(theirs, tokens[None])[0, :-1]), -1)
    scores = ours.score_many([tokens], top=4)[0]
    targets = torch.tensor(tokens[1:, None])
    chosen = rows.gather(1, targets)
    np.testing.assert_allclose(scores.logprobs, chosen[:, 0], atol=2e-5, rtol=1e-5)
    np.testing.assert_allclose(scores.entropies, -(rows.exp() * rows).sum(1), atol=2e-5, rtol=1e-5)
    np.testing.assert_array_equal(scores.ranks, (rows > chosen).sum(1))
    values, ids = rows.topk(4)
    np.testing.assert_array_equal(scores.top_ids, ids)
    np.testing.assert_allclose(scores.top_logprobs, values, atol=2e-5, rtol=1e-5)


def test_perplexity_is_exp_of_their_loss(pair):
    config, ours, theirs = pair
    tokens = formula.tokens(config, 1, config.block_size)[0]
    ids = torch.tensor(tokens[None])
    with torch.no_grad():
        loss = theirs(ids, labels=ids).loss.item()
    assert ours.perplexity(tokens) == pytest.approx(np.exp(loss), rel=1e-6)


def test_their_loss_behind_a_context(pair):
    """Labels of -100 hide the context from their mean."""
    config, ours, theirs = pair
    tokens = formula.tokens(config, 1, 20)[0]
    ids = torch.tensor(tokens[None])
    labels = ids.clone()
    labels[:, :13] = -100
    with torch.no_grad():
        loss = theirs(ids, labels=labels).loss.item()
    assert ours.score_many([tokens], [13])[0].logprob / 7 == pytest.approx(-loss, rel=1e-5)


@pytest.mark.parametrize("overlap", [1, 10])
def test_windows(pair, overlap):
    config, ours, theirs = pair
    tokens = formula.tokens(config, 1, 3 * config.block_size + 5)[0]
    stride = config.block_size - overlap
    expected = hf_logprobs(theirs, tokens, config.block_size, stride)
    found = ours.token_logprobs(tokens, stride=stride)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=1e-5)
    assert ours.perplexity(tokens, stride=stride) == pytest.approx(np.exp(-expected.mean()), rel=1e-6)
