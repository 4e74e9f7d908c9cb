# SPDX-License-Identifier: Apache-2.0
"""How likely a model finds a text, token by token, and which of two answers is likelier.

python examples/score.py                       a model of random weights that reads bytes
python examples/score.py gpt2 "A text."        a folder (or hub id), and a text
"""

import sys

import gpt2cy
from gpt2cy.tokenizer import ByteTokenizer

source, text = [*sys.argv[1:], *[None, "To be, or not to be"][len(sys.argv[1:]) :]]
if source is None:
    config = gpt2cy.GPTConfig(vocab_size=256, n_embd=128, n_heads=4, n_layers=4, block_size=128)
    lm = gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())
else:
    lm = gpt2cy.load(source)

score = lm.score(text, top=1)
for token in score:
    if token.logprob is not None:
        best = token.top[0]
        print(f"{token.text!r:8} {token.surprisal:6.2f} bits, rank {token.rank:3}; likeliest {best.text!r}")
print(f"perplexity {score.perplexity:.2f}, {score.bits_per_byte:.3f} bits per byte")
print("words:", ", ".join(f"{word.text} ({word.n_tokens} tokens)" for word in score.words()))

found = lm.compare(text, [", that is the question", ", no"], by="per_token")
for answer in found.ranking():
    print(f"{answer.text!r}: {answer.logprob:.3f}, {answer.per_token:.3f} a token")
