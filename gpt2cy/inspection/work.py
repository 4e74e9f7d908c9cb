# SPDX-License-Identifier: Apache-2.0
"""What a pass through a model has to do, operation by operation: the least, whatever the program.

flops   2 for each multiply-add of a matrix product or of attention. Nothing else counts: norms, activations
        and softmax would add a few per cent.
bytes   each weight once, and the keys and values cached before the call once. Activations can stay in a
        cache, and a table that is looked up is hardly read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gpt2cy.config import GPTConfig

_FLOAT_BYTES = 4
_PRODUCTS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")

# In the order of computation; each ends where inspection/clock.pyx reads the clock.
IN_BLOCK = ("ln_1", "attn.c_attn", "attn.heads", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
OPERATIONS = ("embed", *IN_BLOCK, "ln_f", "lm_head")


@dataclass(frozen=True)
class Work:
    """One operation of one layer.

    Attributes
    ----------
    operation : str
        One of `OPERATIONS`.
    layer : int or None
        Which block it is in; None outside of the blocks.
    flops, bytes : int
    """

    operation: str
    layer: int | None
    flops: int
    bytes: int

    @property
    def name(self) -> str:
        """Such as "h.0.attn.c_attn" or "lm_head"."""
        return self.operation if self.layer is None else f"h.{self.layer}.{self.operation}"


def of_pass(config: GPTConfig, lengths: list[int], past: list[int], last_only: bool = False) -> list[Work]:
    """Return the work of one pass, in the order of computation.

    Parameters
    ----------
    config : GPTConfig
    lengths, past : list of int
        Of each sequence: its new tokens, and those cached before them.
    last_only : bool
        Whether only the logits of each sequence's last token are asked for. The last block then needs keys
        and values of all tokens, but the rest only of the last ones.

    Examples
    --------
    >>> from gpt2cy import GPTConfig
    >>> from gpt2cy.inspection import work
    >>> work.of_pass(GPTConfig.preset("tiny"), [16], [0])[2]
    Work(operation='attn.c_attn', layer=0, flops=1572864, bytes=198144)
    """
    found, shapes = [Work("embed", None, 0, 0)], config.parameter_shapes()
    for layer in range(config.n_layers):
        shorter = last_only and layer == config.n_layers - 1
        found += _of_block(config.n_embd, shapes, layer, lengths, past, shorter)
    rows = len(lengths) if last_only else sum(lengths)
    head = config.n_embd * config.vocab_size
    n_bytes = _FLOAT_BYTES * (head + config.vocab_size * config.has_lm_head_bias)
    norm = _FLOAT_BYTES * config.parameter_counts()["ln_f"]
    return [*found, Work("ln_f", None, 0, norm), Work("lm_head", None, 2 * rows * head, n_bytes)]


def _of_block(width, shapes, layer, lengths, past, last_only) -> Iterator[Work]:
    rows = sum(lengths)
    left = len(lengths) if last_only else rows  # rows behind the keys and values
    for operation in IN_BLOCK:
        sizes = [math.prod(shapes.get(f"h.{layer}.{operation}.{kind}", (0,))) for kind in ("weight", "bias")]
        flops, n_bytes = 0, _FLOAT_BYTES * sum(sizes)
        if operation in _PRODUCTS:
            flops = 2 * left * sizes[0]
        if operation == "attn.c_attn":
            flops += 2 * (rows - left) * 2 * width * width
        if operation == "attn.heads":
            # A key's numbers meet a query's, and then a value's the sum: each once, so 4 flops a number.
            flops = (
                4
                * width
                * sum(
                    n + m if last_only else n * m + n * (n + 1) // 2
                    for n, m in zip(lengths, past, strict=True)
                )
            )
            n_bytes = 2 * _FLOAT_BYTES * width * sum(past)
        yield Work(operation, layer, flops, n_bytes)
