# SPDX-License-Identifier: Apache-2.0
"""What every part of GPT-2 is there for: take one away at a time, and see what happens to the logits.

    python examples/break_it.py                         a small model with random weights reads bytes
    python examples/break_it.py gpt2 --text "..."       a trained one: there the loss says how much it hurts

Broken is the readable twin, gpt2cy.reference: plain NumPy in float64. Its layers are functions that call each
other by name, so a part is exchanged by giving another function its name for a while.
"""

import argparse
import dataclasses
import textwrap
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

import gpt2cy
from gpt2cy import reference
from gpt2cy.reference import layers

TEXT = "The rain in Spain stays mainly in the plain, and the train"


class Twin:
    """The reference on a model's weights, whole or with something exchanged."""

    def __init__(self, model, tokens):
        self.model, self.config, self.params, self.tokens = model, model.config, model.state_dict(), tokens
        self.whole = self.run()  # [T, V]

    def run(self, *, tokens=None, params=None, parts=None, **config):
        """Logits [T, V], with other tokens, weights, functions (by name) or fields of the configuration."""
        fields = SimpleNamespace(
            **{**dataclasses.asdict(self.config), **config}
        )  # takes what GPTConfig refuses
        exchanged = patch.multiple(layers, **parts) if parts else nullcontext()
        with exchanged, np.errstate(all="ignore"):
            return reference.forward(fields, params or self.params, tokens or self.tokens)

    def show(self, **exchanged):
        """Run, and print how far the logits are from those of the whole model."""
        logits = self.run(**exchanged)
        moved = np.abs(logits - self.whole).max()
        other = np.mean(logits.argmax(axis=-1) != self.whole.argmax(axis=-1))
        print(f"  logits move by up to {moved:.2g}; another favourite at {other:.0%} of the positions")
        print(f"  loss {self.loss(logits):.3f} nats a token, whole {self.loss(self.whole):.3f}")

    def loss(self, logits):
        """Mean of -log p(next token)."""
        chances = reference.softmax(logits[:-1])
        return -np.log(chances[np.arange(len(self.tokens) - 1), self.tokens[1:]]).mean()


def no_causal_mask(twin):
    twin.show(parts={"attention": attention_without_mask})
    last = (twin.tokens[-1] + 1) % twin.config.vocab_size
    for name, parts in [("with the mask", None), ("without", {"attention": attention_without_mask})]:
        before, after = twin.run(parts=parts), twin.run(parts=parts, tokens=[*twin.tokens[:-1], last])
        rows = np.any(before[:-1] != after[:-1], axis=-1).sum()
        print(f"  another last token changes the logits of {rows} earlier positions {name}")
    say("""Each position sees the answer that it is asked for. In training the loss would fall to almost
        nothing: the model learns to copy. In use there is no future to look at, and it has learned
        nothing else.""")


def no_scaling_of_scores(twin):
    twin.show(scale_attn_weights=False)
    width = twin.config.head_dim
    say(f"""A score adds up {width} products, and grows like the root of that: without the division the scores
        are {np.sqrt(width):.1f} times as large, and softmax turns from a mixture into a choice of one
        position.""")


def epsilon_0(twin):
    error(lambda: dataclasses.replace(twin.config, layer_norm_eps=0.0), "GPTConfig")
    twin.show(layer_norm_eps=0.0)
    flat = {**twin.params, "wpe.weight": twin.params["wpe.weight"].copy()}
    flat["wpe.weight"][0] = -twin.params["wte.weight"][twin.tokens[0]]  # they add up to a row of zeros
    for eps in (twin.config.layer_norm_eps, 0.0):
        finite = np.isfinite(twin.run(params=flat, layer_norm_eps=eps)).all(axis=-1).sum()
        print(f"  first row all zeros, epsilon {eps:g}: {finite} of {len(twin.tokens)} positions are finite")
    say("""Usually nothing happens. But a row whose numbers are all equal has variance 0, and 0 / 0 is NaN:
        attention then carries it to every later position.""")


def erf_gelu(twin):
    twin.show(activation="gelu_erf")
    say("""The exact curve and GPT-2's tanh form differ by less than 0.0005, which no one sees in the text.
        But a loader that takes the wrong one is wrong for ever: the kind of fault that only a comparison
        finds.""")


def no_maximum_subtracted(twin):
    parts = {"softmax": softmax_without_maximum}
    twin.show(parts=parts)
    loud = {name: array * 40 if "c_attn.weight" in name else array for name, array in twin.params.items()}
    for name, some in [("with", None), ("without", parts)]:
        finite = np.isfinite(twin.run(params=loud, parts=some)).all(axis=-1).sum()
        print(f"  q, k and v 40 times as large, {name}: {finite} of {len(twin.tokens)} positions are finite")
    say("""exp(x - m) / sum(exp(x - m)) is the same number whatever m is, until exp overflows: beyond 709 in
        float64, beyond 88 in float32. Nothing to see in a good model, NaN in one whose scores have grown.""")


def heads_swapped(twin):
    twin.show(parts={"_merge_heads": merge_heads_backwards})
    say("""Each head's answer meets the rows of c_proj that belong to another. All shapes fit, so no error
        tells; a loader that cuts q, k and v in another order than they were put together does the same.""")


def no_positions(twin):
    none = {**twin.params, "wpe.weight": np.zeros_like(twin.params["wpe.weight"])}
    twin.show(params=none)
    for name, params in [("with", twin.params), ("without", none)]:
        rows = twin.run(tokens=[twin.tokens[0]] * 6, params=params)
        print(
            f"  six times one token, {name} positions: its logits differ by {np.ptp(rows, axis=0).max():.2g}"
        )
    say("""Attention mixes the rows before it as a set: without positions the only trace of order is how many
        there are.""")


def heads_that_do_not_divide(twin):
    n_heads = next(n for n in range(3, twin.config.n_embd) if twin.config.n_embd % n)
    error(lambda: dataclasses.replace(twin.config, n_heads=n_heads), "GPTConfig")
    error(lambda: twin.run(n_heads=n_heads), "the twin")
    say("The same mistake, said before and after the fact: only the first says what to change.")


def ids_out_of_range(twin):
    for wrong in (twin.config.vocab_size, -1):
        ids = [*twin.tokens[:3], wrong]
        error(lambda ids=ids: twin.model(ids), "gpt2cy")
        error(lambda ids=ids: twin.run(tokens=ids), "the twin")
    same = np.array_equal(
        twin.params["wte.weight"][-1], twin.params["wte.weight"][twin.config.vocab_size - 1]
    )
    print(f"  NumPy alone: row -1 is row {twin.config.vocab_size - 1}: {same}")
    say("""A table in C gives whatever lies beyond its end, and NumPy counts negative ids from there: so ids
        are checked where they come in, once.""")


BREAKS = (
    no_causal_mask, no_scaling_of_scores, epsilon_0, erf_gelu, no_maximum_subtracted, heads_swapped,
    no_positions, heads_that_do_not_divide, ids_out_of_range,
)  # fmt: skip


# ---- the functions that are put in place of others ---------------------------------------------------------


def attention_without_mask(
    x, c_attn_weight, c_attn_bias, c_proj_weight, c_proj_bias, n_heads, scale, steps=None
):
    """reference.attention, where every position sees every other."""
    qkv = reference.linear(x, c_attn_weight, c_attn_bias)  # [T, 3C]
    q, k, v = (layers._split_heads(part, n_heads) for part in np.split(qkv, 3, axis=-1))  # 3 x [H, T, D]
    mixture = reference.softmax(scale * (q @ np.swapaxes(k, -1, -2)))  # [H, T, T]
    return reference.linear(layers._merge_heads(mixture @ v), c_proj_weight, c_proj_bias)


def softmax_without_maximum(x):
    """reference.softmax, as the formula is written."""
    powers = np.exp(x)
    return powers / powers.sum(axis=-1, keepdims=True)


def merge_heads_backwards(x, merge=layers._merge_heads):
    """Heads [..., H, T, D] side by side, the last one first: [..., T, C]."""
    return merge(x[..., ::-1, :, :])


# ---- the page ----------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", nargs="?", help="a checkpoint, as gpt2cy.load takes it")
    parser.add_argument("--text", default=TEXT)
    args = parser.parse_args()
    if args.source:
        lm = gpt2cy.load(args.source)
        twin = Twin(lm.model, lm.encode(args.text))
    else:
        config = gpt2cy.GPTConfig(vocab_size=256, n_embd=32, n_heads=4, n_layers=3, block_size=64)
        model = gpt2cy.GPT(config, seed=0, init_std=0.3)
        twin = Twin(model, list(args.text.encode()[: config.block_size]))
    print(f"{twin.model}\n{len(twin.tokens)} tokens; loss {twin.loss(twin.whole):.3f} nats a token")
    for broken in BREAKS:
        print(f"\n{broken.__name__.replace('_', ' ').upper()}")
        broken(twin)


def error(call, whose):
    """Print the error that must come."""
    try:
        call()
    except ValueError as found:
        print(f"  {whose}: ValueError: {found}")
    else:
        print(f"  {whose}: no error")


def say(text):
    print(textwrap.fill(" ".join(text.split()), 100, initial_indent="    ", subsequent_indent="    "))


if __name__ == "__main__":
    main()
