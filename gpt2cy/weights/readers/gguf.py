# SPDX-License-Identifier: Apache-2.0
"""GGUF of the gpt2 architecture: the header, read and checked here; numbers through the `gguf` package.

    magic, version, number of tensors, number of fields
    fields    key, type, value          strings and arrays begin with their length
    tensors   name, axes (the fastest first), type, offset from the data
    data      aligned

The package's own reader maps the file and trusts counts and offsets, so it is not used: what is wrong is
found here before anything is allocated. Its tables of block sizes and its dequantisation are. Linear weights
are [out, in].
"""

import math
import struct

import numpy as np

from gpt2cy.config import GPTConfig
from gpt2cy.weights.checkpoint import Stored
from gpt2cy.weights.dtypes import FLOATS, Format
from gpt2cy.weights.files import File, Stream, short
from gpt2cy.weights.names import from_gguf
from gpt2cy.weights.readers import Contents

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_AXES = 4
MOST_NAME = 4096  # bytes of a key or a tensor's name
MOST_TEXT = 1 << 16  # bytes of a string that is kept

SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING, ARRAY = 8, 9

FIELDS = {
    "n_embd": "embedding_length",
    "n_heads": "attention.head_count",
    "n_layers": "block_count",
    "block_size": "context_length",
    "layer_norm_eps": "attention.layer_norm_epsilon",
}


def read(file: File) -> Contents:
    """Return the contents of a GGUF file, or raise ValueError saying what is wrong with it."""
    package = _package()
    stream = Stream(file, 0, file.size, "the header")
    try:
        fields, tensors = _header(stream, package)
    except (ValueError, struct.error) as error:
        raise ValueError(f"{file}: header: {error}") from None
    architecture = fields.get("general.architecture")
    if architecture != "gpt2":
        raise ValueError(f"{file}: general.architecture: expected gpt2, found {short(str(architecture))}")
    return Contents("gguf", tensors, _config(file, fields, tensors), linear_transposed=True)


def _package():
    try:
        import gguf
    except ImportError:
        raise ImportError("reading GGUF files needs another package: pip install 'gpt2cy[gguf]'") from None
    return gguf


# ---- the header ------------------------------------------------------------------------------------------


def _header(stream, package):
    """(fields with one value, tensors by Hugging Face's names)."""
    stream.skip(len(MAGIC))
    version = _number(stream, "<I")
    if version not in VERSIONS:
        swapped = " (a big-endian file)" if version in (v << 24 for v in VERSIONS) else ""
        raise ValueError(f"expected version 2 or 3 of GGUF, found {version}{swapped}")
    n_tensors, n_fields = _number(stream, "<Q"), _number(stream, "<Q")
    if n_tensors * 32 + n_fields * 13 > stream.left:  # what the shortest ones take
        raise ValueError(
            f"{n_tensors:,} tensors and {n_fields:,} fields do not fit a file of {stream.end:,} bytes"
        )
    fields = {}
    for _ in range(n_fields):
        key = _text(stream, MOST_NAME)
        if key in fields:
            raise ValueError(f"{short(key)}: two fields of that name")
        fields[key] = _value(stream, _number(stream, "<I"))
    infos = {}
    for _ in range(n_tensors):
        name = _text(stream, MOST_NAME)
        if name in infos:
            raise ValueError(f"{short(name)}: two tensors of that name")
        infos[name] = _info(stream, name)
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment: expected a power of two, found {alignment}")
    data = -(-stream.offset // alignment) * alignment
    tensors = {}
    for name, (shape, kind, offset) in infos.items():
        if offset % alignment:
            raise ValueError(f"{short(name)}: expected an offset aligned to {alignment}, found {offset}")
        tensors[from_gguf(name)] = _stored(stream.file, package, name, shape, kind, data + offset)
    return fields, tensors


def _number(stream, form):
    return struct.unpack(form, stream.read(struct.calcsize(form)))[0]


def _text(stream, most):
    length = _number(stream, "<Q")
    if length > most:
        raise ValueError(f"expected a text of at most {most:,} bytes, found one of {length:,}")
    return stream.read(length).decode("utf-8", "replace")


def _value(stream, kind):
    """A field's value; an array or a long text is passed over: None."""
    if kind in SCALARS:
        return _number(stream, SCALARS[kind])
    if kind == STRING:
        length = _number(stream, "<Q")
        if length <= MOST_TEXT:
            return stream.read(length).decode("utf-8", "replace")
        return stream.skip(length)
    if kind != ARRAY:
        raise ValueError(f"expected a type of field from 0 to 12, found {kind}")
    element, count = _number(stream, "<I"), _number(stream, "<Q")
    if element in SCALARS:
        return stream.skip(count * struct.calcsize(SCALARS[element]))
    if element != STRING:
        raise ValueError(f"expected an array of numbers or texts, found elements of type {element}")
    if count * 8 > stream.left:
        raise ValueError(f"an array of {count:,} texts does not fit the file")
    for _ in range(count):
        stream.skip(_number(stream, "<Q"))
    return None


def _info(stream, name):
    """(shape, type, offset) of a tensor."""
    n_axes = _number(stream, "<I")
    if n_axes > MOST_AXES:
        raise ValueError(f"{short(name)}: expected at most {MOST_AXES} axes, found {n_axes}")
    axes = [_number(stream, "<Q") for _ in range(n_axes)]
    return tuple(reversed(axes)), _number(stream, "<I"), _number(stream, "<Q")


def _stored(file, package, name, shape, kind, offset):
    name = short(name)
    try:
        kind = package.GGMLQuantizationType(kind)
    except ValueError:
        raise ValueError(
            f"{name}: expected a type of tensor that the gguf package knows, found {kind}"
        ) from None
    block, nbytes = package.GGML_QUANT_SIZES[kind]
    width = shape[-1] if shape else 1
    if width % block:
        raise ValueError(
            f"{name}: expected rows of whole blocks of {block} numbers ({kind.name}), found {width}"
        )
    file.check(offset, math.prod(shape) // block * nbytes, name)
    return Stored(
        file, offset, kind.name, shape, FLOATS.get(kind.name) or _quantised(package, kind, block, nbytes)
    )


def _quantised(package, kind, block, nbytes):
    """How the package turns this type into float32; None where it cannot."""

    def decode(rows):
        with np.errstate(all="ignore"):  # scales of a damaged file may be infinite
            return np.ascontiguousarray(package.quants.dequantize(rows, kind), np.float32)

    try:
        decode(np.zeros((1, nbytes), np.uint8))
    except NotImplementedError:  # a type that the package only knows the size of
        return None
    return Format(block, nbytes, decode)


# ---- the configuration -----------------------------------------------------------------------------------


def _config(file, fields, tensors):
    """What the fields say; the vocabulary and what is there at all is the tensors' matter."""
    lacking = [f"gpt2.{name}" for name in FIELDS.values() if fields.get(f"gpt2.{name}") is None]
    if "wte.weight" not in tensors or lacking:
        raise ValueError(f"{file}: missing: {', '.join(lacking or ['token_embd.weight'])}")
    values = {ours: fields[f"gpt2.{name}"] for ours, name in FIELDS.items()}
    if (
        type(values["layer_norm_eps"]) is float
    ):  # 1e-5 was rounded to float32: the shortest number that is the same
        values["layer_norm_eps"] = float(str(np.float32(values["layer_norm_eps"])))
    inner = fields.get("gpt2.feed_forward_length")
    if fields.get("gpt2.attention.head_count_kv", values["n_heads"]) != values["n_heads"]:
        raise ValueError(
            f"{file}: gpt2.attention.head_count_kv: expected as many as heads: this is not plain GPT-2"
        )
    try:
        return GPTConfig(
            **values,
            vocab_size=(tensors["wte.weight"].shape or (0,))[0],
            n_inner=None if type(inner) is int and inner == 4 * values["n_embd"] else inner,
            bias=any(name.startswith("h.") and name.endswith(".bias") for name in tensors),
            tie_weights="lm_head.weight" not in tensors,
            lm_head_bias="lm_head.bias" in tensors,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: fields gpt2.*: {error}") from None
