# SPDX-License-Identifier: Apache-2.0
"""Names: those of other formats to Hugging Face's, and a file's tensors to the parameters of a configuration.

    transformer.h.0.attn.c_attn.weight    h.0.attn.c_attn.weight    the prefix may be there or not
    module. _orig_mod.                    taken off where every name carries it (DataParallel, torch.compile)
    h.0.attn.bias, h.0.attn.masked_bias   buffers of causal masks: ignored
    blk.0.attn_qkv.weight                 GGUF's h.0.attn.c_attn.weight

nanoGPT has Hugging Face's names, but its linear weights are [out, in], as are those of llm.c and GGUF.
Whatever does not fit is collected and raised in one ValueError.
"""

import re
from dataclasses import dataclass

from gpt2cy.config import GPTConfig
from gpt2cy.weights.checkpoint import Stored, Tensor
from gpt2cy.weights.files import short

WRAPPERS = ("module.", "_orig_mod.")
BODY = "transformer."
HEAD = "lm_head.weight"
TABLE = "wte.weight"
MASKS = re.compile(r"h\.[0-9]+\.attn\.(bias|masked_bias)")
MOST_LINES = 10  # of one kind of problem in a message

GGUF_LAYERS = {
    "token_embd": "wte",
    "position_embd": "wpe",
    "output_norm": "ln_f",
    "output": "lm_head",
}
GGUF_BLOCK_LAYERS = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}

# llm.c writes the tensors of all blocks stacked, in this order and without names.
LLMC_BLOCK = tuple(
    f"{layer}.{kind}"
    for layer in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    for kind in ("weight", "bias")
)

# What the axes of a weight are called in a config.json.
_AXES = {
    "wte.weight": "vocab_size, n_embd",
    "wpe.weight": "n_positions, n_embd",
    "attn.c_attn.weight": "n_embd, 3 n_embd",
    "attn.c_proj.weight": "n_embd, n_embd",
    "mlp.c_fc.weight": "n_embd, n_inner or 4 n_embd",
    "mlp.c_fc.bias": "n_inner or 4 n_embd",
    "mlp.c_proj.weight": "n_inner or 4 n_embd, n_embd",
    "lm_head.weight": "vocab_size, n_embd",
}


def from_gguf(name: str) -> str:
    """Return Hugging Face's name of a GGUF tensor; one that has none stays as it is.

    Examples
    --------
    >>> from gpt2cy.weights.names import from_gguf
    >>> from_gguf("blk.3.ffn_up.bias"), from_gguf("token_embd.weight"), from_gguf("rope_freqs.weight")
    ('h.3.mlp.c_fc.bias', 'wte.weight', 'rope_freqs.weight')
    """
    block = re.fullmatch(r"blk\.([0-9]+)\.(\w+)\.(weight|bias)", name)
    if block and block[2] in GGUF_BLOCK_LAYERS:
        return f"h.{block[1]}.{GGUF_BLOCK_LAYERS[block[2]]}.{block[3]}"
    layer, _, kind = name.partition(".")
    return f"{GGUF_LAYERS[layer]}.{kind}" if layer in GGUF_LAYERS else name


def is_linear(name: str) -> bool:
    """Whether a parameter is the weight of a block's linear layer: other formats have those [out, in]."""
    return name.startswith("h.") and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))


@dataclass
class Resolved:
    """The parameters of a configuration, found; see Checkpoint."""

    tensors: dict[str, Tensor]
    ignored: list[str]
    spare_head: Tensor | None


def resolve(config: GPTConfig, found: dict[str, Stored], where: str, linear_transposed: bool) -> Resolved:
    """Find every parameter of a configuration among the tensors of a file.

    Parameters
    ----------
    config : GPTConfig
    found : dict of str to Stored
        By the names of the file, or those that `from_gguf` gives.
    where : str
        The file or folder, for the message.
    linear_transposed : bool
        Whether the file has the linear weights of the blocks [out, in].

    Raises
    ------
    ValueError
        With everything that is missing, unexpected or of another shape or kind.
    """
    problems: list[str] = []
    hints: dict[str, None] = {}
    named, ignored = _plain_names(found, problems)
    _same_blocks(config, named, where)
    shapes = config.parameter_shapes()
    if config.tie_weights and TABLE not in named and HEAD in named:
        named[TABLE] = named[HEAD]  # one tensor under either of its names
    spare = named.pop(HEAD, None) if config.tie_weights else None
    tensors = {}
    for name, shape in shapes.items():
        if name not in named:
            problems.append(f"missing: {name} {list(shape)}")
            continue
        tensors[name] = _parameter(name, shape, named[name], linear_transposed, problems, hints)
    head = None
    if spare is not None:
        head = _parameter(HEAD, shapes[TABLE], spare, False, problems, hints)
    problems += [
        f"unexpected: {short(name)} {_shape(named[name].logical_shape)}"
        for name in named
        if name not in shapes
    ]
    if problems:
        raise ValueError(_message(where, config, named, problems, hints))
    return Resolved(tensors, ignored, head)


def _plain_names(found, problems):
    """(tensors without prefixes and masks, names of the masks)."""
    strip = ""
    while wrapper := next(
        (w for w in WRAPPERS if found and all(n.startswith(strip + w) for n in found)), None
    ):
        strip += wrapper
    named, ignored, spelt = {}, [], {}
    for full, stored in found.items():
        name = full[len(strip) :].removeprefix(BODY)
        if MASKS.fullmatch(name):
            ignored.append(full)
        elif name in named:
            problems.append(f"twice: {short(spelt[name])} and {short(full)} are both {name}")
        else:
            named[name], spelt[name] = stored, full
    return named, ignored


def _same_blocks(config, named, where):
    """Refuse a number of blocks that the file cannot have, before anything is made for each of them."""
    if config.n_layers > len(named):
        raise ValueError(
            f"{where}: expected {config.n_layers} blocks (n_layer), found {len(named)} tensors in all; "
            "the configuration belongs to another file"
        )


def _parameter(name, shape, stored, linear_transposed, problems, hints):
    """The Tensor of a parameter; what is wrong with it goes to problems and hints."""
    turned = linear_transposed and is_linear(name)
    expected = shape[::-1] if turned else tuple(shape)
    found = stored.logical_shape
    if stored.format is None:
        problems.append(f"{name}: expected floating-point numbers, found {short(stored.dtype)}")
        hints["convert the tensors to float32, for example with torch: tensor.float()"] = None
    elif found != expected:
        axes = _AXES.get(re.sub(r"^h\.[0-9]+\.", "", name), "n_embd" if len(shape) == 1 else "")
        axes = ", ".join(reversed(axes.split(", "))) if turned else axes
        problems.append(f"{name}: expected {_shape(expected)} ({axes}), found {_shape(found)}")
        if found == expected[::-1] and len(found) == 2:
            order = "[out, in]" if turned else "[in, out]"
            hints[f"weights of this format are {order}: transpose them; nothing is transposed by guess"] = (
                None
            )
        elif name in (TABLE, HEAD):
            hints["vocab_size of the configuration must be the number of rows of wte.weight"] = None
    return Tensor(name, tuple(shape), stored, turned != stored.turned)


def _message(where, config, named, problems, hints):
    if HEAD not in named and not config.tie_weights:
        hints["set tie_word_embeddings to true if the head is the token embedding"] = None
    for wrapper in WRAPPERS:
        if any(name.startswith(wrapper) for name in named):
            hints[f"take {wrapper!r} off all names or none"] = None
    blocks = {match[1] for name in named if (match := re.match(r"h\.([0-9]+)\.", name))}
    if blocks and len(blocks) != config.n_layers:
        hints[f"the file has {len(blocks)} blocks, the configuration {config.n_layers} (n_layer)"] = None
    lines = [f"{where}: the tensors do not fit the configuration:"]
    for kind in ("twice: ", "missing: ", "unexpected: ", ""):
        these = [problem for problem in problems if problem.startswith(kind)]
        problems = [problem for problem in problems if not problem.startswith(kind)]
        lines += these[:MOST_LINES]
        lines += [f"{kind}and {len(these) - MOST_LINES} more"] if len(these) > MOST_LINES else []
    lines += [f"to try: {hint}" for hint in hints]
    return "\n  ".join(lines)


def _shape(shape):
    text = str(list(shape))
    return text if len(text) <= 80 else f"{len(shape)} axes"
