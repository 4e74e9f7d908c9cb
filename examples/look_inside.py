# SPDX-License-Identifier: Apache-2.0
"""Build a model, look at its weights, and let it continue a text, one token at a time with a cache."""

import gpt2cy

model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
print(model)

for name, array in model.named_parameters():
    print(f"{name:22} {array.shape!s:12} mean {array.mean():+.4f}  std {array.std():.4f}")
print("one head is", model.blocks[0].attn.head_dim, "wide; layer.weight is a copy:", model.ln_f.gamma[:3])

tokens = list(b"Once upon a time")
cache = model.new_cache()
logits = model.next_logits(tokens, cache)
for _ in range(8):
    tokens.append(int(logits.argmax()))
    logits = model.next_logits(tokens[-1:], cache)
print("continued with", tokens[16:], "- cache holds", cache.lengths, "positions")
print("same bits without a cache:", bool((logits == model.next_logits(tokens)).all()))
