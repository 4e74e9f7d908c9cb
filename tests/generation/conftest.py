# SPDX-License-Identifier: Apache-2.0
"""A language model whose tokens are words, bytes and an end of text."""

import sys
from pathlib import Path

import pytest

import gpt2cy

sys.path.append(str(Path(__file__).parent))
from greedy import VOCAB_SIZE, GreedyTokenizer


@pytest.fixture(scope="session")
def lm(build):
    return gpt2cy.LanguageModel(build(VOCAB_SIZE, 24, 3, 2, 40), GreedyTokenizer())
