# SPDX-License-Identifier: Apache-2.0
"""Language models for the tests: of words, bytes and an end of text, and of GPT-2's vocabulary."""

import sys
from pathlib import Path

import pytest

import gpt2cy
from gpt2cy import tokenizer

sys.path.append(str(Path(__file__).parent))
from greedy import VOCAB_SIZE, GreedyTokenizer


@pytest.fixture(scope="session")
def lm(build):
    return gpt2cy.LanguageModel(build(VOCAB_SIZE, 24, 3, 2, 40), GreedyTokenizer())


@pytest.fixture(scope="session")
def gpt2_lm(build, gpt2_folder):
    """GPT-2's vocabulary, and little behind it."""
    pytest.importorskip("tiktoken")
    return gpt2cy.LanguageModel(build(50257, 8, 2, 1, 64), tokenizer.load(gpt2_folder, "tiktoken"))
