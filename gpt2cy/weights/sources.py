# SPDX-License-Identifier: Apache-2.0
"""What a source is: a file of some format, a folder, or an id on the hub.

A file's format is told from its first bytes, never from its name.
"""

import os
import re
from pathlib import Path

from gpt2cy import _checks
from gpt2cy.weights import names
from gpt2cy.weights.atomic import finish
from gpt2cy.weights.checkpoint import Checkpoint, closed_on_error
from gpt2cy.weights.files import File, is_plain_name, read_json, short
from gpt2cy.weights.hf_config import from_hf
from gpt2cy.weights.readers import Contents, gguf, llmc, pickle, safetensors

CONFIG = "config.json"
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
MODELS = ("model.safetensors", INDEXES[0], "pytorch_model.bin", INDEXES[1], "ckpt.pt")
HUB_ID = re.compile(r"(?=.{1,96}$)[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

# First bytes of what is often found in the place of a model.
STRANGERS = {
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: fetch it with git lfs pull",
    b"<": "a web page, not a model: the download went wrong",
    b"\x89HDF": "Keras weights (HDF5): save the model as safetensors",
    b"{": "JSON, not a model: give the folder that it lies in",
}


def open_source(source, **hub_options) -> Checkpoint:
    """Open a file, a folder or a hub id; see `gpt2cy.weights.open_checkpoint`."""
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source: expected a path or the id of a model, got {type(source).__name__}")
    _check_hub_options(**hub_options)
    path = Path(source)
    exists = os.path.exists(source)  # an empty name does not; Path makes the current folder of it
    if not exists and isinstance(source, str) and HUB_ID.fullmatch(source):
        from gpt2cy.weights import hub

        path = hub.fetch(source, **hub_options)
    elif not exists:
        raise FileNotFoundError(
            f"source: no file or folder {short(str(source), 200)!r}, and no id of a model either"
        )
    finish(path if path.is_dir() else path.parent)  # what an interrupted save had ready
    with closed_on_error() as open_file:
        if path.is_dir():
            return _open_folder(path, open_file)
        file = open_file(path)
        return _checkpoint(read_file(file), str(path), [file], path.parent)


def _check_hub_options(*, revision, token, local_files_only, cache_dir):
    """Wrong ones are named also where the source is on the disk; what a token is stays unsaid."""
    if revision is not None and not isinstance(revision, str):
        raise TypeError(f"revision: expected text (str) or None, got {type(revision).__name__}")
    if token is not None and not isinstance(token, (str, bool)):
        raise TypeError(f"token: expected text (str), True, False or None, got {type(token).__name__}")
    _checks.flag("local_files_only", local_files_only)
    if cache_dir is not None and not isinstance(cache_dir, (str, os.PathLike)):
        raise TypeError(f"cache_dir: expected a path or None, got {type(cache_dir).__name__}")


def read_file(file: File) -> Contents:
    """Return the contents of a file of any format that its first bytes show."""
    head = file.read(0, min(file.size, 64), "the header")
    if safetensors.header_length(file) is not None:  # first: the length may begin like anything else
        return safetensors.read(file)
    if head.startswith((pickle.ZIP, *pickle.PROTOCOLS)):
        return pickle.read(file)
    if head.startswith(gguf.MAGIC):
        return gguf.read(file)
    if head[:4] == llmc.MAGIC.to_bytes(4, "little"):
        return llmc.read(file)
    raise ValueError(f"{file}: {_stranger(file, head)}")


def _stranger(file, head):
    """What a file of no known format looks like."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    for start, what in STRANGERS.items():
        if text.startswith(start):
            return f"it looks like {what}"
    if not head:
        return "the file is empty"
    expected = "expected safetensors, a PyTorch checkpoint, llm.c's .bin or GGUF"
    if len(head) < 10:
        return f"{expected}, found a file of {file.size} bytes: it is cut short"
    length = int.from_bytes(head[:8], "little")
    return (
        f"{expected}, found the bytes {head[:8].hex(' ')} "
        f"(as the length of a safetensors header: {length:,}, in a file of {file.size:,} bytes)"
    )


# ---- folders ---------------------------------------------------------------------------------------------


def _open_folder(folder, open_file):
    """The model of a folder: by the names that transformers writes, or the only file that can be one."""
    found = next((folder / name for name in MODELS if (folder / name).exists()), None)
    if found is None:
        others = sorted(
            path for path in folder.iterdir() if path.suffix in (".gguf", ".bin", ".pt", ".safetensors")
        )
        if len(others) != 1:
            several = (
                f"; found {', '.join(short(path.name) for path in others[:5])}: name one" if others else ""
            )
            raise FileNotFoundError(f"{folder}: no model: looked for {', '.join(MODELS)}{several}")
        found = others[0]
    if found.name in INDEXES:
        return _open_shards(folder, found, open_file)
    file = open_file(found)
    return _checkpoint(read_file(file), str(found), [file], folder)


def _open_shards(folder, index, open_file):
    """A model in several files: the index says which tensor is in which, and decides."""
    fields = read_json(index)
    weight_map = fields.get("weight_map") if isinstance(fields, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index}: weight_map: expected an object of tensors and their files")
    for name, shard in weight_map.items():
        _check_shard_name(index, name, shard)
    files, shards = [], {}
    for shard in dict.fromkeys(weight_map.values()):
        if not (folder / shard).exists():
            raise FileNotFoundError(f"{folder / shard}: no such file, but {index.name} needs it")
        files.append(open_file(folder / shard))
        shards[shard] = read_file(files[-1])
        if shards[shard].config is not None:
            raise ValueError(
                f"{files[-1]}: expected a part of a model, found a whole one ({shards[shard].format})"
            )
    lacking = [
        f"{short(name)} in {shard}" for name, shard in weight_map.items() if name not in shards[shard].tensors
    ]
    if lacking:
        raise ValueError(f"{index}: the shards lack tensors that it names: {', '.join(lacking[:5])}")
    tensors = {name: shards[shard].tensors[name] for name, shard in weight_map.items()}
    return _checkpoint(Contents(shards[shard].format, tensors), str(index), files, folder)


def _check_shard_name(index, name, shard):
    """A shard lies beside its index: nothing else may be opened through it."""
    if not is_plain_name(shard):
        found = repr(short(shard)) if isinstance(shard, str) else type(shard).__name__
        raise ValueError(
            f"{index}: weight_map: {short(name)}: expected the name of a file beside it, found {found}"
        )


def _checkpoint(contents, where, files, folder):
    config = contents.config
    if config is None:
        path = folder / CONFIG
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file, but {where} needs one: its format has no sizes")
        config = from_hf(read_json(path), str(path))
    resolved = names.resolve(config, contents.tensors, where, contents.linear_transposed)
    return Checkpoint(
        config, resolved.tensors, contents.format, folder, files, resolved.ignored, resolved.spare_head
    )
