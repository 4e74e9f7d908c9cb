# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints of every format, written by a few lines each: no torch, and none of our own readers.

Sizes are such that no two axes are equal, so that a swapped one shows.
"""

import json
import struct
import zipfile

import formula
import numpy as np
import safetensors.numpy

from gpt2cy import GPTConfig

SIZES = {"vocab_size": 61, "n_embd": 12, "n_heads": 2, "n_layers": 2, "block_size": 32}
FIELDS = {"model_type": "gpt2", "vocab_size": 61, "n_embd": 12, "n_head": 2, "n_layer": 2, "n_positions": 32}
TIED = {"tie_weights": True, "lm_head_bias": False}
CONFIG = GPTConfig(**SIZES, **TIED)
IDS = [[5, 60, 0, 17, 17, 3, 42]]
LINEAR = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")


def weights(config=CONFIG):
    return formula.weights(config)


def turned(tensors):
    """With linear weights of the blocks [out, in], as nanoGPT, llm.c and GGUF have them."""
    return {
        name: np.ascontiguousarray(a.T) if name.startswith("h.") and name.endswith(LINEAR) else a
        for name, a in tensors.items()
    }


def prefixed(tensors, prefix="transformer."):
    return {prefix + name: array for name, array in tensors.items()}


# ---- safetensors -----------------------------------------------------------------------------------------


def folder(path, tensors, **fields):
    """A folder with config.json and model.safetensors."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({**FIELDS, **fields}))
    save(path / "model.safetensors", tensors)
    return path


def save(path, tensors):
    safetensors.numpy.save_file({name: np.ascontiguousarray(a) for name, a in tensors.items()}, path)


def raw_safetensors(path, entries):
    """A file of (name, dtype, shape, bytes), for types that NumPy lacks."""
    header, data = {}, b""
    for name, dtype, shape, content in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def sharded(path, tensors, **fields):
    """The same in two shards with an index; the index."""
    folder(path, tensors, **fields)
    (path / "model.safetensors").unlink()
    names = list(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        save(path / file, {name: tensors[name] for name in part})
    weight_map = {name: file for file, part in parts.items() for name in part}
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


# ---- torch.save ------------------------------------------------------------------------------------------

STORAGES = {"float32": "Float", "float16": "Half", "float64": "Double", "int64": "Long", "bool": "Bool",
            "uint8": "Byte"}  # fmt: skip


class Pickle:
    """Assembles the pickles that torch.save makes, opcode by opcode (protocol 2)."""

    def __init__(self, old=False, storages=None):
        self.storages = {} if storages is None else storages  # key -> (type, bytes, count)
        self.old = old
        self.keys = {}  # id of an array -> key: the same array twice is one storage

    def dump(self, value):
        return b"\x80\x02" + self.value(value) + b"."

    def value(self, value):
        if isinstance(value, np.ndarray | Bfloat16):
            return self.tensor(value)
        if isinstance(value, dict):
            items = b"".join(self.value(part) for item in value.items() for part in item)
            return b"}(" + items + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(self.value, value)) + b"e"
        if isinstance(value, tuple):
            return b"(" + b"".join(map(self.value, value)) + b"t"
        if isinstance(value, str):
            return b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        if isinstance(value, bool) or value is None:
            return {True: b"\x88", False: b"\x89", None: b"N"}[value]
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        return b"J" + struct.pack("<i", value)

    def tensor(self, array):
        key = self.keys.setdefault(id(array), str(len(self.keys)))
        kind, content, shape, strides = described(array)
        count = int(np.prod(shape))
        self.storages[key] = (kind, content, count)
        last = [None] if self.old else []
        reference = b"(" + self.value("storage") + b"ctorch\n" + kind.encode() + b"\n"
        reference += b"".join(map(self.value, [key, "cpu", count, *last])) + b"tQ"
        rest = b"".join(map(self.value, (0, shape, strides, False))) + b"ccollections\nOrderedDict\n)R"
        return b"ctorch._utils\n_rebuild_tensor_v2\n(" + reference + rest + b"tR"


class Bfloat16:
    """A tensor of bfloat16, of its bits."""

    def __init__(self, bits):
        self.bits = bits


def described(array):
    """(storage type, bytes, shape, strides) as torch has them, in Fortran order too."""
    if isinstance(array, Bfloat16):
        array, kind = array.bits, "BFloat16Storage"
    else:
        kind = STORAGES[array.dtype.name] + "Storage"
    strides = tuple(step // array.itemsize for step in array.strides)
    return kind, array.tobytes(order="A"), array.shape, strides


def torch_zip(path, value, root="archive"):
    """What torch.save writes."""
    pickle = Pickle()
    data = pickle.dump(value)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}/data.pkl", data)
        archive.writestr(f"{root}/byteorder", "little")
        for key, (_, content, _) in pickle.storages.items():
            archive.writestr(f"{root}/data/{key}", content)
        archive.writestr(f"{root}/version", "3\n")
    return path


def torch_old(path, value):
    """What torch.save wrote before version 1.6."""
    pickle = Pickle(old=True)
    magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
    system = {
        "protocol_version": 1001,
        "little_endian": True,
        "type_sizes": {"short": 2, "int": 4, "long": 4},
    }
    parts = [
        magic,
        pickle.dump(1001),
        pickle.dump(system),
        pickle.dump(value),
        pickle.dump(list(pickle.storages)),
    ]
    for _, content, count in pickle.storages.values():
        parts.append(struct.pack("<q", count) + content)
    path.write_bytes(b"".join(parts))
    return path


def nanogpt(config, tensors, prefix="", **changes):
    """What nanoGPT's train.py saves."""
    state = turned(tensors)
    named = {f"{prefix}transformer.{name}": array for name, array in state.items()}
    named[f"{prefix}lm_head.weight"] = state["wte.weight"]  # the same storage
    sizes = {
        "n_layer": config.n_layers, "n_head": config.n_heads, "n_embd": config.n_embd,
        "block_size": config.block_size, "bias": config.bias, "vocab_size": config.vocab_size, "dropout": 0.0,
    }  # fmt: skip
    return {
        "model": named,
        "optimizer": {
            "state": {0: {"step": np.array(3, np.float32), "exp_avg": np.ones((2, 3), np.float32)}}
        },
        "model_args": sizes | changes,
        "iter_num": 7,
        "best_val_loss": np.array(2.5, np.float32),
        "config": {"out_dir": "out", "learning_rate": 6e-4, "compile": True, "init_from": None},
    }


# ---- llm.c -----------------------------------------------------------------------------------------------

LLMC_ORDER = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
              "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
              "mlp.c_proj.weight", "mlp.c_proj.bias")  # fmt: skip


def llmc(path, config, tensors, version=3, padded=None, **header):
    """llm.c's model file; version 5 keeps the upper halves of the numbers."""
    padded = config.vocab_size if padded is None else padded
    state = turned(tensors)
    fields = np.zeros(256, "<i4")
    fields[:8] = (
        20240326, version, config.block_size, config.vocab_size, config.n_layers, config.n_heads,
        config.n_embd, padded,
    )  # fmt: skip
    for index, value in header.items():
        fields[int(index[1:])] = value
    parts = [state["wte.weight"], np.zeros((padded - config.vocab_size, config.n_embd), np.float32)]
    parts.append(state["wpe.weight"])
    parts += [state[f"h.{i}.{name}"] for name in LLMC_ORDER for i in range(config.n_layers)]
    parts += [state["ln_f.weight"], state["ln_f.bias"]]
    numbers = np.concatenate([part.reshape(-1) for part in parts]).astype("<f4")
    content = numbers.tobytes() if version == 3 else upper_halves(numbers).tobytes()
    path.write_bytes(fields.tobytes() + content)
    return path


def upper_halves(numbers):
    """The bits of bfloat16 by cutting off."""
    return (numbers.view(np.uint32) >> 16).astype("<u2")


def as_bfloat16(numbers):
    """What is left of float32 numbers after that."""
    return (numbers.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


# ---- GGUF ------------------------------------------------------------------------------------------------

GGUF_NAMES = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output",
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name):
    layer, _, kind = name.rpartition(".")
    if layer.startswith("h."):
        _, index, layer = layer.split(".", 2)
        return f"blk.{index}.{GGUF_NAMES[layer]}.{kind}"
    return f"{GGUF_NAMES[layer]}.{kind}"


def gguf(path, config, tensors, matrices="F32", arch="gpt2", blocks=None, **fields):
    """GGUF by its own package. `matrices`: the type of what has two axes; `blocks`: wte's type and bytes."""
    import gguf

    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.block_size)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.inner)
    writer.add_block_count(config.n_layers)
    writer.add_head_count(config.n_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_token_list([f"token {i}" for i in range(config.vocab_size)])
    writer.add_description("a text of some length " * 10)
    for name, value in fields.items():
        writer.add_uint32(f"{arch}.{name}", value)
    kind = gguf.GGMLQuantizationType[matrices]
    for name, array in turned(tensors).items():
        if name == "wte.weight" and blocks is not None:
            writer.add_tensor(gguf_name(name), blocks[1], raw_dtype=gguf.GGMLQuantizationType[blocks[0]])
        elif array.ndim == 2 and kind != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
