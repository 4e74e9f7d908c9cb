# SPDX-License-Identifier: Apache-2.0
"""A folder as Hugging Face has it: config.json and model.safetensors, or shards and their index.

    model.safetensors     u64 n | JSON header [n] | float32 data, tensor after tensor

The header is written here and not by the safetensors package: its `serialize_file` takes the addresses of all
tensors at once, and ours exist one at a time, unpacked from the kernels' layout. That would double the memory
of a model, to save fifteen lines. The tests read every file with the package.
"""

import json
import os
import re
import secrets
import struct
from collections.abc import Mapping, Sequence

from numpy.typing import NDArray

from gpt2cy import _checks
from gpt2cy.config import GPTConfig
from gpt2cy.weights.atomic import ENTRY, read_start, replacing
from gpt2cy.weights.hf_config import to_hf
from gpt2cy.weights.writers.tensors import Tensor, require, tensors

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {unit[0] + "IB": 1 << 10 * (i + 1) for i, unit in enumerate(_UNITS)}
_MOST_INDEX_BYTES = 1 << 26


def write(
    config: GPTConfig, parameters: Mapping[str, NDArray], folder: str, max_shard_size: int | str = "5GB"
) -> None:
    """Write a model into an existing folder; see `gpt2cy.weights.writers.save`."""
    shards = _split(_named(config, parameters), max_shard_size)
    text = json.dumps(to_hf(config), indent=2).encode() + b"\n"
    with replacing(folder) as changes:
        names = _shard_names(folder, len(shards))
        for name, shard in zip(names, shards, strict=True):
            write_file(changes.create(name), shard)
        if len(shards) > 1:
            _write_bytes(changes.create(INDEX), _index(names, shards))
        for name in _others(folder, changes.files.keys()):
            changes.remove(name)
        if _read(os.path.join(folder, ENTRY), len(text) + 1) != text:
            _write_bytes(changes.create(ENTRY), text)


def check(config: GPTConfig, parameters: Mapping[str, NDArray], max_shard_size: int | str = "5GB") -> None:
    """Raise what `write` would raise about its arguments."""
    byte_count("max_shard_size", max_shard_size)
    require("safetensors", config, parameters)


def write_file(path: str, part: Sequence[Tensor]) -> None:
    """Write tensors to one file, one after the other."""
    header: dict = {"__metadata__": {"format": "pt"}}  # transformers insists on the metadata
    end = 0
    for tensor in part:
        begin, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in part:
            file.write(tensor.array().data)


def byte_count(name: str, value: int | str) -> int:
    """Return a size in bytes, given as a number or as text: "5GB" is 5e9, "5GiB" is 5 * 2**30.

    Raises
    ------
    TypeError, ValueError
        If it is neither, or not positive.

    Examples
    --------
    >>> from gpt2cy.weights.writers.safetensors import byte_count
    >>> byte_count("max_shard_size", "1.5MB")
    1500000
    """
    if not isinstance(value, str):
        return _checks.integer(name, value, 1)
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?([KMGT]I?B)", value, re.ASCII | re.IGNORECASE)
    count = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if count < 1:
        raise ValueError(f"{name}: expected a number of bytes or text such as '5GB', got {value[:40]!r}")
    return count


def _named(config, parameters):
    """The tensors under the names that GPT2LMHeadModel gives them."""
    return [
        tensor if tensor.name.startswith("lm_head.") else tensor._replace(name=f"transformer.{tensor.name}")
        for tensor in tensors(config, parameters)
    ]


def _split(everything, max_shard_size):
    """Lists of tensors, each filled up to the size; a tensor that is larger has a shard of its own."""
    limit = byte_count("max_shard_size", max_shard_size)
    shards = [[]]
    room = limit
    for tensor in everything:
        if shards[-1] and tensor.nbytes > room:
            shards.append([])
            room = limit
        shards[-1].append(tensor)
        room -= tensor.nbytes
    return shards


def _shard_names(folder, count):
    """Names that the folder does not have yet, except for the one of an unsharded file: see `atomic`."""
    if count == 1:
        return [WEIGHTS]
    for tag in ("", secrets.token_hex(4) + "-"):
        names = [f"model-{tag}{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        if not any(os.path.lexists(os.path.join(folder, name)) for name in names):
            break
    return names


def _index(names, shards):
    places = {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    total = sum(tensor.nbytes for shard in shards for tensor in shard)
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2)
    return text.encode() + b"\n"


def _others(folder, ours):
    """Files of the old checkpoint that the new one does not have; those readers open first come first."""
    names = [name for name in (WEIGHTS, INDEX) if name not in ours]
    try:
        listed = json.loads(_read(os.path.join(folder, INDEX), _MOST_INDEX_BYTES))["weight_map"].values()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        listed = ()  # no index, or none that can be read: nothing in it to remove
    texts = {name for name in listed if isinstance(name, str)}
    names += sorted(name for name in texts - ours if re.fullmatch(r"model[\w-]+\.safetensors", name))
    return [name for name in names if not os.path.isdir(os.path.join(folder, name))]


def _read(path, most):
    """The first bytes of a file; none if there is no such file or it cannot be read."""
    try:
        return read_start(path, most) if os.path.isfile(path) else b""
    except OSError:
        return b""


def _write_bytes(path, data):
    with open(path, "wb") as file:
        file.write(data)
