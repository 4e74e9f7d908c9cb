# SPDX-License-Identifier: Apache-2.0
"""One sentence on its way through a model: what every stage makes of it, in shapes and numbers.

    python examples/trace_a_forward.py                        a small model with random weights reads bytes
    python examples/trace_a_forward.py gpt2 --text "..."      a trained one

The numbers are those that the model computes with, copied as they pass (GPT.trace): the logits at the end are
the plain ones to the bit. In shapes T counts tokens and H heads; D is the width of a head, C of a row, F of a
row in the MLP, V the vocabulary.
"""

import argparse

import numpy as np

import gpt2cy

TEXT = "The cat sat on the mat."
STAGES = {
    "embed": "[T, C]: a row for each token: what it is (wte) plus where it stands (wpe)",
    "ln_1": "[T, C]: each row with mean 0 and variance 1, then gamma and beta",
    "attn.q": "[H, T, D]: what each position looks for; q, k and v come from one product",
    "attn.k": "[H, T, D]: what each position has to be found by",
    "attn.v": "[H, T, D]: what it hands on when it is found",
    "attn.scores": "[H, T, T]: q k^T over the root of D; -inf where the key is still to come",
    "attn.weights": "[H, T, T]: softmax of the scores: each row sums to 1",
    "attn.heads": "[H, T, D]: each head's mixture of the values",
    "attn.out": "[T, C]: c_proj mixes the heads: what attention adds to the residual stream",
    "resid_mid": "[T, C]: the stream after it",
    "ln_2": "[T, C]: normalised again",
    "mlp.pre": "[T, F]: c_fc: four times as wide",
    "mlp.hidden": "[T, F]: GELU: nearly nothing where it was negative",
    "mlp.out": "[T, C]: c_proj: what the MLP adds to the stream",
    "resid": "[T, C]: the stream after the block",
    "ln_f": "[T, C]: normalised for the last time",
    "logits": "[T, V]: a score for every token of the vocabulary, as the next one",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", nargs="?", help="a checkpoint, as gpt2cy.load takes it")
    parser.add_argument("--text", default=TEXT)
    args = parser.parse_args()
    lm = gpt2cy.load(args.source) if args.source else random_model()
    tokens = lm.encode(args.text)
    texts = [lm.tokenizer.token_text(token) for token in tokens]
    print(lm.model)
    print(f"{args.text!a}: {len(tokens)} tokens")
    print("  " + " ".join(f"{text!a}={token}" for text, token in zip(texts, tokens, strict=True)))

    seen = lm.model.trace(tokens, "*")
    print()
    show("embed", seen["embed"], STAGES["embed"])
    for layer in range(lm.model.config.n_layers):
        print(f"\nblock {layer}")
        for stage, meaning in STAGES.items():
            if (name := f"h.{layer}.{stage}") in seen:
                show(stage, seen[name], meaning if layer == 0 else "")
    print()
    for stage in ("ln_f", "logits"):
        show(stage, seen[stage], STAGES[stage])

    attention(seen, texts)
    residual(seen, lm.model.config.n_layers)
    print("\nwhat comes next")
    for text, token, share in lm.next_tokens(args.text, k=5):
        print(f"  {share:6.1%}  {text!a} (id {token}, logit {seen['logits'][-1, token]:.3f})")
    same = np.array_equal(seen["logits"], lm.model.forward(tokens))
    print(f"\nthe same bits as without looking: {same}")


def random_model():
    config = gpt2cy.GPTConfig(vocab_size=256, n_embd=64, n_heads=4, n_layers=2, block_size=128)
    return gpt2cy.LanguageModel(gpt2cy.GPT(config, seed=0, init_std=0.1), gpt2cy.tokenizer.ByteTokenizer())


def show(stage, array, meaning):
    """One line: name, shape, statistics of what is finite, meaning."""
    finite = array[np.isfinite(array)]
    numbers = (
        f"mean {finite.mean():+8.3f}  std {finite.std():8.3f}  {finite.min():+9.2f} to {finite.max():+9.2f}"
    )
    print(f"  {stage:13}{list(array.shape)!s:13} {numbers}  {meaning}".rstrip())


def attention(seen, texts):
    """Where the last token looks, head by head."""
    print(f"\nwhere the last token, {texts[-1]!a}, looks most")
    for name, weights in seen.items():
        if name.endswith(".attn.weights"):
            last = weights[:, -1]  # [H, T]
            heads = ", ".join(f"{texts[row.argmax()]!a}@{row.argmax()} {row.max():.0%}" for row in last)
            print(f"  {name.removesuffix('.attn.weights')}: {heads}")


def residual(seen, n_layers):
    """How large what each part adds is, beside the stream it is added to."""
    print("\nwhat each part adds to the residual stream (root mean square)")
    for layer in range(n_layers):
        added = ", ".join(f"{part} {rms(seen[f'h.{layer}.{part}.out']):.3f}" for part in ("attn", "mlp"))
        print(f"  block {layer}: {added}, stream {rms(seen[f'h.{layer}.resid']):.3f}")


def rms(array):
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))


if __name__ == "__main__":
    main()
