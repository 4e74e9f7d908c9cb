# SPDX-License-Identifier: Apache-2.0
"""Build a model, look at its parts and weights, and let it continue a text greedily with a cache."""

import gpt2cy

model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
print(model, model.config.parameter_counts())
for name, array in model.state_dict().items():
    if name.startswith("h.0."):
        print(f"{name:22} {array.shape!s:12} mean {array.mean():+.4f}  std {array.std():.4f}")

tokens = list(b"Once upon a time")  # bytes serve as token ids
cache = model.new_cache()
logits = model.next_logits(tokens, cache)
for _ in range(8):
    tokens.append(int(logits.argmax()))
    logits = model.next_logits(tokens[-1:], cache)
print("continued with", tokens[16:], "- positions cached:", cache.lengths)
print("same bits without the cache:", (logits == model.next_logits(tokens)).all())
