# SPDX-License-Identifier: Apache-2.0
"""The names of activations: which there are, what shape each has, and which a pattern means.

Letters of a shape: T new positions, S all positions up to the last, H heads, D a head's width, C width,
F the MLP's width, V vocabulary; never a batch axis: these are the shapes of one sequence.
"""

import difflib
from fnmatch import fnmatchcase
from typing import NamedTuple

IN_BLOCK = {
    "ln_1": "TC",
    "attn.q": "HTD",
    "attn.k": "HTD",
    "attn.v": "HTD",
    "attn.scores": "HTS",
    "attn.weights": "HTS",
    "attn.heads": "HTD",
    "attn.per_head": "HTC",
    "attn.out": "TC",
    "resid_mid": "TC",
    "ln_2": "TC",
    "mlp.pre": "TF",
    "mlp.hidden": "TF",
    "mlp.out": "TC",
    "resid": "TC",
}


class Name(NamedTuple):
    """One activation: `kind` is its name within the block, `layer` the block's number, or 0 outside."""

    text: str
    kind: str
    layer: int
    axes: str
    sizes: dict[str, int]

    @property
    def position_axis(self) -> int:
        """Which axis counts positions."""
        return self.axes.index("T")

    def shape(self, n_new: int, n_all: int) -> tuple[int, ...]:
        """The shape for so many new positions, and so many in all."""
        sizes = {**self.sizes, "T": n_new, "S": n_all}
        return tuple(sizes[axis] for axis in self.axes)

    @property
    def described(self) -> str:
        """The shape in words: "[H=4, T, D=32]"."""
        parts = [f"{axis}={self.sizes[axis]}" if axis in self.sizes else axis for axis in self.axes]
        return f"[{', '.join(parts)}]"


def of(model) -> dict[str, Name]:
    """Return all names of a model in the order of computation; an alias leads to the name it stands for."""
    blocks = model.blocks
    attention, mlp = blocks[0].attn, blocks[0].mlp
    sizes = {
        "H": attention.n_heads,
        "D": attention.head_dim,
        "C": model.wte.n_embd,
        "F": mlp.c_fc.out_features,
        "V": model.lm_head.out_features,
    }

    def name(text, kind, layer, axes):
        return Name(text, kind, layer, axes, {axis: sizes[axis] for axis in axes if axis in sizes})

    names = {"embed": name("embed", "embed", 0, "TC")}
    names["resid.0"] = names["embed"]
    for layer in range(len(blocks)):
        for kind, axes in IN_BLOCK.items():
            names[f"h.{layer}.{kind}"] = name(f"h.{layer}.{kind}", kind, layer, axes)
        names[f"resid.{layer + 1}"] = names[f"h.{layer}.resid"]
    names["ln_f"] = name("ln_f", "ln_f", 0, "TC")
    names["logits"] = name("logits", "logits", 0, "TV")
    return names


def select(names: dict[str, Name], patterns, argument: str) -> dict[str, Name]:
    """Return those of the names that a pattern or a list of them matches, in the names' order.

    Raises ValueError for a pattern that matches none.
    """
    if isinstance(patterns, str):
        patterns = [patterns]
    try:
        patterns = list(patterns)
    except TypeError:
        raise TypeError(
            f"{argument}: expected a name, a pattern or a list of them, got {type(patterns).__name__}"
        ) from None
    matched = set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"{argument}: expected names or patterns (str), got {type(pattern).__name__}")
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            raise ValueError(f"{argument}: {pattern!r} matches no activation; {nearest(names, pattern)}")
        matched |= found
    if not matched:
        raise ValueError(f"{argument}: expected at least one name or pattern, got none")
    return {text: name for text, name in names.items() if text in matched}


def nearest(names, pattern):
    """What may have been meant."""
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
    return "nearest: " + ", ".join(near) if near else "trace_names() lists them"
