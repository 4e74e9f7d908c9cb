# SPDX-License-Identifier: Apache-2.0
"""Text from a model: a stream, several samples at once, a beginning that is kept.

python examples/generate.py                    a model of random weights that writes bytes: noise
python examples/generate.py gpt2 "It was"      a folder (or hub id), and a prompt
"""

import sys

import gpt2cy
from gpt2cy.tokenizer import ByteTokenizer


def random_bytes():
    """A model that has learnt nothing."""
    config = gpt2cy.GPTConfig(vocab_size=256, n_embd=128, n_heads=4, n_layers=4, block_size=128)
    return gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0), ByteTokenizer())


source, prompt = [*sys.argv[1:], *[None, "Once upon a time"][len(sys.argv[1:]) :]]
lm = random_bytes() if source is None else gpt2cy.load(source)
settings = gpt2cy.Sampling(temperature=0.8, top_p=0.95, max_new_tokens=24)

stream = lm.stream(prompt, settings, seed=1)
for piece in stream:
    print(repr(piece), end=" ", flush=True)
print(f"\nseed {stream.seed}, ended by {stream.result.finish_reason}")

for result in lm.generate(prompt, settings, n=3, seed=1):
    print(f"sample {result.sample}: {result.text!r}")

cache = lm.model.prefill(lm.encode(prompt))  # read once, continued in two ways
for more in (", there was", ", nobody"):
    result = lm.generate(more, settings, cache=cache, seed=1)
    print(f"{more!r}: {result.text!r}")
again = lm.generate(prompt + more, settings, seed=1)
print("the same without the cache:", again.tokens.tolist() == result.tokens.tolist())
