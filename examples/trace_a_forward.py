# SPDX-License-Identifier: Apache-2.0
"""One sentence on its way through a model: what every stage makes of it, in shapes and numbers.

    python examples/trace_a_forward.py                        a small model with random weights reads bytes
    python examples/trace_a_forward.py gpt2 --text "..."      a trained one

The numbers are those that the model computes with, copied as they pass: the logits at the end are the plain
ones to the bit.
"""

import argparse

import numpy as np

import gpt2cy
from gpt2cy.inspection import record

TEXT = "The cat sat on the mat."
STAGES = {
    "embed": "a row for each token: what it is (wte) plus where it stands (wpe)",
    "ln_1": "each row with mean 0 and variance 1, then gamma and beta",
    "attn.qkv": "one product makes queries, keys and values of all heads, side by side",
    "attn.heads": "each head's mixture of the values up to here, heads side by side",
    "attn.out": "c_proj mixes the heads: what attention adds to the residual",
    "resid_mid": "the residual stream after it",
    "ln_2": "normalised again",
    "mlp.pre": "c_fc: four times as wide",
    "mlp.hidden": "GELU: nearly nothing where it was negative",
    "mlp.out": "c_proj: what the MLP adds",
    "resid": "the residual stream after the block",
    "ln_f": "normalised for the last time",
    "logits": "a score for every token of the vocabulary, as the next one",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", nargs="?", help="a checkpoint, as gpt2cy.load takes it")
    parser.add_argument("--text", default=TEXT)
    args = parser.parse_args()
    lm = gpt2cy.load(args.source) if args.source else random_model()
    tokens = lm.encode(args.text)
    print(lm.model)
    print(f"{args.text!a}: {len(tokens)} tokens")
    print("  " + " ".join(f"{lm.tokenizer.token_text(token)!a}={token}" for token in tokens))

    seen = record(lm.model, tokens)
    block = None
    for name, array in seen.items():
        first, _, rest = name.partition(".")
        if first == "h" and rest.split(".")[0] != block:
            block = rest.split(".")[0]
            print(f"\nblock {block}")
        elif first != "h":
            print()
        stage = name if first != "h" else rest.partition(".")[2]
        show(stage, array, STAGES[stage] if block in (None, "0") or first != "h" else "")

    print("\nhow much each part adds to the residual stream (root mean square of its rows)")
    for layer in range(lm.model.config.n_layers):
        added = ", ".join(f"{part} {rms(seen[f'h.{layer}.{part}.out']):.3f}" for part in ("attn", "mlp"))
        print(f"  block {layer}: {added}, stream {rms(seen[f'h.{layer}.resid']):.3f}")

    print("\nwhat comes next")
    for text, token, share in lm.next_tokens(args.text, k=5):
        print(f"  {share:6.1%}  {text!a} (id {token}, logit {seen['logits'][-1, token]:.3f})")
    same = np.array_equal(seen["logits"], lm.model.forward(tokens))
    print(f"\nthe same bits as without looking: {same}")


def random_model():
    config = gpt2cy.GPTConfig(vocab_size=256, n_embd=64, n_heads=4, n_layers=2, block_size=128)
    return gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0, init_std=0.1), gpt2cy.tokenizer.ByteTokenizer())


def show(stage, array, meaning):
    """One line: name, shape, statistics, meaning."""
    numbers = f"mean {array.mean():+8.3f}  std {array.std():8.3f}  {array.min():+9.2f} to {array.max():+9.2f}"
    print(f"  {stage:11}{list(array.shape)!s:12} {numbers}  {meaning}".rstrip())


def rms(array):
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))


if __name__ == "__main__":
    main()
