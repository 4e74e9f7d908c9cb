# SPDX-License-Identifier: Apache-2.0
"""What torch.save writes, without torch: pytorch_model.bin and nanoGPT's ckpt.pt, new form and old.

    new   a zip archive, stored uncompressed: NAME/data.pkl, a pickle; NAME/data/KEY, the numbers of a storage
    old   five pickles (magic number, version, system, the data, keys of storages), then for each key the
          count of its numbers (int64) and the numbers

The pickles are run by unpickle.py, which can build data and nothing else; the numbers stay where they are.
"""

import math
import struct
import zipfile

from gpt2cy.config import GPTConfig
from gpt2cy.weights.checkpoint import Stored
from gpt2cy.weights.files import File, Stream, short
from gpt2cy.weights.readers import Contents, unpickle

ZIP = b"PK\x03\x04"
PROTOCOLS = tuple(bytes([0x80, version]) for version in range(2, 6))
OLD_MAGIC = 0x1950A86A20F9469CFC6C
OLD_VERSION = 1001
HINT = "to try: convert the file to safetensors where it is trusted (safetensors.torch.save_file)"

DTYPES = {
    "torch.FloatStorage": ("F32", 4),
    "torch.HalfStorage": ("F16", 2),
    "torch.BFloat16Storage": ("BF16", 2),
    "torch.DoubleStorage": ("F64", 8),
    "torch.LongStorage": ("I64", 8),
    "torch.IntStorage": ("I32", 4),
    "torch.ShortStorage": ("I16", 2),
    "torch.CharStorage": ("I8", 1),
    "torch.ByteStorage": ("U8", 1),
    "torch.BoolStorage": ("BOOL", 1),
}


def read(file: File) -> Contents:
    """Return the contents of a file by torch.save, or raise ValueError saying what is wrong with it."""
    if file.read(0, min(file.size, len(ZIP)), "the header") == ZIP:
        data, places = _zip(file)
    else:
        data, places = _old(file)
    return _contents(file, data, places)


def _contents(file, data, places):
    """A dict of tensors is a state dict; nanoGPT puts one beside its sizes."""
    if type(data) is dict and type(data.get("model")) is dict:
        if type(data.get("model_args")) is not dict:
            raise ValueError(
                f"{file}: expected model_args beside model, as nanoGPT saves them, found no such dict"
            )
        tensors = _tensors(file, data["model"], places)
        config = _nanogpt_config(file, data["model_args"], tensors)
        return Contents("nanogpt", tensors, config, linear_transposed=True)
    if type(data) is not dict or not any(type(value) is unpickle.Tensor for value in data.values()):
        found = f"a dict of {_names(data)}" if type(data) is dict else type(data).__name__
        raise ValueError(f"{file}: expected a dict of tensors by name (a state dict), found {found}")
    return Contents("pytorch", _tensors(file, data, places))


def _names(values):
    names = [short(str(name), 30) for name in list(values)[:5]]
    return ", ".join(names) + (", ..." if len(values) > 5 else "") if names else "nothing"


def _nanogpt_config(file, sizes, tensors):
    """nanoGPT's model_args; its MLP has the erf GELU, its head is tied."""
    names = {"n_embd": "n_embd", "n_heads": "n_head", "n_layers": "n_layer", "block_size": "block_size"}
    lacking = [theirs for theirs in names.values() if theirs not in sizes]
    if lacking:
        raise ValueError(f"{file}: model_args: missing {', '.join(lacking)}")
    fields = {ours: sizes[theirs] for ours, theirs in names.items()}
    vocab = sizes.get("vocab_size")
    if vocab is None:  # as train.py leaves it where GPT-2's own is padded: the table knows
        tables = [
            stored.shape[0]
            for name, stored in tensors.items()
            if name.endswith("wte.weight") and stored.shape
        ]
        vocab = tables[0] if tables else 50304
    fields |= {"vocab_size": vocab, "bias": sizes.get("bias", True)}
    try:
        return GPTConfig(**fields, activation="gelu_erf", tie_weights=True, lm_head_bias=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: model_args: {error}") from None


def _tensors(file, values, places):
    tensors = {}
    for name, value in values.items():
        if type(name) is not str or type(value) is not unpickle.Tensor:
            raise ValueError(f"{file}: {short(str(name))}: expected a tensor, found {type(value).__name__}")
        tensors[name] = _stored(file, name, value, places)
    return tensors


def _stored(file, name, tensor, places):
    """A tensor's place in the file; it must fill its part of the storage, in rows or in columns."""
    name = short(name)
    storage = tensor.storage
    dtype, size = DTYPES[storage.type]
    if tensor.offset + math.prod(tensor.shape) > storage.count:
        raise ValueError(
            f"{file}: {name}: its shape {list(tensor.shape)[:8]} exceeds its storage of {storage.count:,}"
        )
    axes = [(n, stride) for n, stride in zip(tensor.shape, tensor.strides, strict=True) if n != 1]
    contiguous, turned = _strides([n for n, _ in axes]), False
    if [stride for _, stride in axes] != contiguous and 0 not in tensor.shape:
        if len(tensor.shape) != 2 or tensor.strides != (1, tensor.shape[0]):
            raise ValueError(
                f"{file}: {name}: expected contiguous numbers, found strides {list(tensor.strides)[:8]}\n"
                "  to try: tensor.contiguous() before torch.save"
            )
        turned = True
    shape = tensor.shape[::-1] if turned else tensor.shape
    return Stored.of(file, places[storage.key] + tensor.offset * size, dtype, shape, turned)


def _strides(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    return strides


# ---- the new form ----------------------------------------------------------------------------------------


def _zip(file):
    """(what data.pkl builds, offset of each storage)."""
    members = _members(file)
    pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise ValueError(
            f"{file}: a zip archive, but not by torch.save: expected one data.pkl, found {len(pickles)}"
        )
    root = pickles[0].removesuffix("data.pkl")
    offset, size = members[pickles[0]]
    order = members.get(root + "byteorder")
    if order is not None and file.read(order[0], min(order[1], 16), "byteorder") != b"little":
        raise ValueError(
            f"{file}: expected little-endian numbers: save it on such a machine, or as safetensors"
        )
    data = _run(Stream(file, offset, offset + size, "data.pkl"))
    places = {}
    for storage in _storages(file, data):
        name = f"{root}data/{storage.key}"
        if name not in members:
            raise ValueError(f"{file}: expected a member {short(name)}, found none: the file is incomplete")
        places[storage.key], size = members[name]
        _check_size(file, storage, size)
    return data, places


def _members(file):
    """Name -> (offset, size) of the members, each found to lie within the file, uncompressed."""
    try:
        infos = zipfile.ZipFile(file.handle).infolist()
    except (
        zipfile.BadZipFile,
        NotImplementedError,  # of zipfile: a version of the format beyond it
        ValueError,
        EOFError,
        struct.error,
        OverflowError,
    ) as error:
        raise ValueError(f"{file}: damaged zip archive: {short(str(error))}: it may be cut short") from None
    members = {}
    for info in infos:
        name = short(info.filename)
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.flag_bits & 1
            or info.file_size != info.compress_size
        ):
            raise ValueError(f"{file}: {name}: expected a member stored as it is, found a compressed one")
        if info.filename in members:
            raise ValueError(f"{file}: {name}: two members of that name")
        local = file.read(info.header_offset, 30, f"the header of {name}")
        if local[:4] != ZIP:
            raise ValueError(f"{file}: {name}: its header is not where the archive says: the file is damaged")
        offset = info.header_offset + 30 + sum(struct.unpack("<2H", local[26:30]))
        file.check(offset, info.file_size, name)
        members[info.filename] = offset, info.file_size
    return members


# ---- the old form ----------------------------------------------------------------------------------------


def _old(file):
    stream = Stream(file, 0, file.size, "the pickle")
    magic = _run(stream)  # an error names what a hostile pickle would call
    if type(magic) is not int or magic != OLD_MAGIC:
        raise ValueError(f"{file}: a plain pickle: expected what torch.save writes\n  {HINT}")
    version, _, data, keys = (_run(stream) for _ in range(4))
    if type(version) is not int or version != OLD_VERSION or type(keys) is not list:
        raise ValueError(f"{file}: expected version {OLD_VERSION} of torch.save's old form, found another")
    storages = {storage.key: storage for storage in _storages(file, data)}
    places, offset = {}, stream.offset
    for key in keys:
        if type(key) is not str or key not in storages or key in places:
            raise ValueError(
                f"{file}: storages: a key that no tensor has, or the same twice: the file is damaged"
            )
        (count,) = struct.unpack("<q", file.read(offset, 8, f"the size of storage {short(key)}"))
        storage = storages[key]
        size = storage.count * DTYPES[storage.type][1]
        if count != storage.count:
            raise ValueError(
                f"{file}: storage {short(key)}: expected {storage.count:,} numbers, found {count:,}"
            )
        file.check(offset + 8, size, f"storage {short(key)}")
        places[key] = offset + 8
        offset += 8 + size
    if lacking := set(storages) - set(places):
        raise ValueError(f"{file}: storage {short(min(lacking))} is not in the file: it is incomplete")
    return data, places


# ---- both ------------------------------------------------------------------------------------------------


def _run(stream):
    try:
        return unpickle.load(stream.read)
    except unpickle.Refused as error:
        raise ValueError(f"{stream.file}: refused: {error}\n  {HINT}") from None
    except ValueError as error:
        raise ValueError(f"{stream.file}: {stream.what}: {error}") from None


def _storages(file, data):
    """The storages of all tensors in the data."""
    seen, todo, found = set(), [data], {}
    while todo:
        value = todo.pop()
        if type(value) is unpickle.Tensor:
            storage = value.storage
            if storage.type not in DTYPES:
                raise ValueError(f"{file}: expected a storage of numbers, found {short(storage.type)}")
            if found.setdefault(storage.key, storage) != storage:
                raise ValueError(f"{file}: storage {short(storage.key)} has two sizes: the file is damaged")
        elif type(value) in (dict, list, tuple) and id(value) not in seen:
            seen.add(id(value))
            todo.extend(value.values() if type(value) is dict else value)
    return found.values()


def _check_size(file, storage, size):
    needed = storage.count * DTYPES[storage.type][1]
    if size != needed:
        raise ValueError(f"{file}: storage {short(storage.key)}: expected {needed:,} bytes, found {size:,}")
