# SPDX-License-Identifier: Apache-2.0
"""An induction head made by hand, and the studies that find it.

    python examples/induction_head.py
    python examples/induction_head.py --out folder        pictures too; needs matplotlib

A text that repeats itself can be continued by looking up what came next the last time. Two heads do it:

    block 0, head 0    looks at the token before, and notes which it was            S: "before me was D"
    block 1, head 0    looks for a note of the present token, says what is there    D: "a note of D, at S"

Here nobody has trained them. Every weight is written down: each row of the residual stream has room for four
things side by side, and a head moves a token from one room to another.

    room       token       position      note         answer
    columns    0 .. 19     20 .. 83      84 .. 103    104 .. 123
"""

import argparse
from pathlib import Path

import numpy as np

import gpt2cy
from gpt2cy.inspection import studies, zero
from gpt2cy.tokenizer import Tokenizer

VOCAB, POSITIONS, WIDTH, HEADS = 20, 64, 128, 2
TOKEN, POSITION, NOTE, ANSWER = (slice(start, start + size) for start, size in
                                 ((0, 20), (20, 64), (84, 20), (104, 20)))  # fmt: skip
LETTERS = "_ABCDEFGHIJKLMNOPQRS"
TEXT = "_HEADSOFBIRKHEAD"  # "_" begins every text


class Letters(Tokenizer):
    """A token a letter."""

    def __init__(self):
        super().__init__({i: letter.encode() for i, letter in enumerate(LETTERS)})

    def _encode_plain(self, text):
        return [LETTERS.index(letter) for letter in text]


def induction_model():
    """A model of two blocks in which only the two heads are not 0."""
    config = gpt2cy.GPTConfig(VOCAB, WIDTH, HEADS, 2, POSITIONS, n_inner=1)
    weights = {name: np.zeros(shape, np.float32) for name, shape in config.parameter_shapes().items()}
    for norm in ("h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f"):
        weights[f"{norm}.weight"][:] = 1
    weights["wte.weight"][:, TOKEN] = np.eye(VOCAB)
    weights["wpe.weight"][:, POSITION] = np.eye(POSITIONS)

    def head(block, query, key, value, result):
        """Head 0: what it asks with, what it looks at, and from where to where it moves what it finds."""
        qkv = weights[f"h.{block}.attn.c_attn.weight"]
        qkv[:, :POSITIONS], qkv[:, WIDTH : WIDTH + POSITIONS] = query, key
        qkv[value, 2 * WIDTH : 2 * WIDTH + VOCAB] = np.eye(VOCAB)
        weights[f"h.{block}.attn.c_proj.weight"][:VOCAB, result] = 0.15 * np.eye(VOCAB)

    def room(columns, strength, shift=0):
        """Reads a room into the first columns of a head."""
        matrix = np.zeros((WIDTH, POSITIONS), np.float32)
        size = columns.stop - columns.start
        matrix[columns, :size] = strength * np.eye(size, k=shift)
        return matrix

    # A position's key is its successor's query: who asks finds the one before.
    head(0, query=room(POSITION, 2), key=room(POSITION, 2, shift=1), value=TOKEN, result=NOTE)
    head(1, query=room(TOKEN, 3), key=room(NOTE, 3), value=TOKEN, result=ANSWER)
    weights["lm_head.weight"][:, ANSWER] = 2 * np.eye(VOCAB)
    model = gpt2cy.GPT(config, seed=0)
    model.load_state_dict(weights)
    return gpt2cy.LanguageModel(model, Letters())


def continued(lm):
    return lm.generate(TEXT, max_new_tokens=6, temperature=0).text


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to save pictures")
    args = parser.parse_args()
    lm = induction_model()

    print(f"{TEXT}: what comes next?")
    print(f"  it goes on with {continued(lm)}")
    print("  how probable it found each letter:")
    shares = np.exp(lm.model.token_logprobs(lm.encode(TEXT)))
    print("  " + " ".join(f"{letter} {share:.0%}" for letter, share in zip(TEXT[1:], shares, strict=True)))

    print("\nwhich heads look where, on random letters that come twice")
    found = studies.induction_scores(lm, length=18, first="_")
    for table in (found.previous, found.induction, found.duplicate):
        layer, head, score = table.top(1)[0]
        print(f"  {table.what}: most in block {layer}, head {head}: {score:.2f}")

    print("\nwhat adds to the logit of S by itself")
    parts = studies.direct_attribution(lm, TEXT, "S")
    print("  " + ", ".join(f"{name} {value:.2f}" for name, value in parts.layers.items()))

    print("\nthe log probability of S without a head")
    ablation = studies.head_ablation(lm, TEXT, "S")
    print(f"  none left out: {ablation.baseline:.2f}")
    for (layer, head), value in np.ndenumerate(ablation.values):
        print(f"  block {layer}, head {head} left out: {value:.2f}")

    print("\nwhere S is carried: put back into a text that has Q after the first HEAD")
    patching = studies.patching(lm, TEXT, TEXT.replace("S", "Q"), "S", "Q")
    for layer, row in enumerate(patching.recovered):
        places = ", ".join(f"{TEXT[i]} at {i}" for i in np.flatnonzero(row > 0.5))
        print(f"  before block {layer}: in {places}")

    with lm.model.edit({"h.0.attn.heads": zero(head=0)}):
        print(f"\nwithout notes it goes on with {continued(lm)}")
    if args.out:
        save(lm, {"ablation": ablation, "patching": patching}, args.out)


def save(lm, results, folder):
    """Pictures of these results, and of where the two heads look."""
    results |= {"notes": studies.attention_maps(lm, TEXT, layers=0, heads=0)}
    results |= {"induction": studies.attention_maps(lm, TEXT, layers=1, heads=0)}
    results |= {"lens": studies.logit_lens(lm, TEXT)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        result.plot().figure.savefig(folder / f"{name}.png", dpi=100)
    print(f"saved {', '.join(f'{name}.png' for name in results)} in {folder}")


if __name__ == "__main__":
    main()
