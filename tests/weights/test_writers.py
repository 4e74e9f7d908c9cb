# SPDX-License-Identifier: Apache-2.0
"""What a saved file holds, read by the formats' own readers; what is refused before anything is written."""

import contextlib
import json
import os
import struct
import tracemalloc
from pathlib import Path

import formula
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import gpt2cy
from gpt2cy.weights import writers
from gpt2cy.weights.hf_config import from_hf, to_hf
from gpt2cy.weights.writers.safetensors import byte_count

SIZES = (61, 12, 2, 3, 29)
TIED = {"tie_weights": True}
CONFIGS = {
    "tied": TIED,
    "untied": {"lm_head_bias": False},
    "no bias": {**TIED, "bias": False},
    "n_inner": {**TIED, "n_inner": 5},
    "options": {
        **TIED,
        "activation": "relu",
        "layer_norm_eps": 0.1,
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "tied, one layer, erf": {**TIED, "n_layers": 1, "activation": "gelu_erf"},
}


@pytest.fixture(params=CONFIGS)
def model(request, build):
    names = ("vocab_size", "n_embd", "n_heads", "n_layers", "block_size")
    return build(**dict(zip(names, SIZES, strict=True)) | CONFIGS[request.param])


@pytest.fixture
def tied(build):
    return build(*SIZES, **TIED)


def expected_tensors(model):
    """The model's parameters, and zeros for each bias that it does not have."""
    found = model.state_dict()
    for name in list(found):
        if name.endswith(".weight") and name not in ("wte.weight", "wpe.weight", "lm_head.weight"):
            width = found[name].shape[-1]
            found.setdefault(name.replace(".weight", ".bias"), np.zeros(width, np.float32))
    return found


def plain(names):
    return {name.removeprefix("transformer."): array for name, array in names.items()}


# ---- safetensors -----------------------------------------------------------------------------------------


def test_safetensors(tmp_path, model, same_bits):
    model.save_pretrained(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    found, expected = plain(load_file(tmp_path / "model.safetensors")), expected_tensors(model)
    assert set(found) == set(expected)
    for name, array in expected.items():
        same_bits(found[name], array)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
        assert all(name.startswith(("transformer.", "lm_head.")) for name in file.keys())  # noqa: SIM118
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields == to_hf(model.config)
    again = gpt2cy.GPT(from_hf(fields))
    again.load_state_dict(found)
    tokens = formula.tokens(model.config, 2, 29)
    same_bits(again(tokens), model(tokens))


def test_data_is_aligned_and_without_gaps(tmp_path, model):
    model.save_pretrained(tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    [length] = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    end = 0
    for entry in header.values():
        assert entry["data_offsets"][0] == end
        end = entry["data_offsets"][1]
    assert len(data) == 8 + length + end


@pytest.mark.parametrize("size", [1, 1000, "6KB", 2**40])
def test_shards(tmp_path, model, size, same_bits):
    model.save_pretrained(tmp_path, max_shard_size=size)
    expected = expected_tensors(model)
    names = {name for name in os.listdir(tmp_path) if name != "config.json"}
    if size == 2**40:
        assert names == {"model.safetensors"}
        return
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(array.nbytes for array in expected.values())}
    files = sorted(set(index["weight_map"].values()))
    assert names == {*files, "model.safetensors.index.json"}
    assert files == [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    shards = {name: load_file(tmp_path / name) for name in files}
    found = {}
    for name, shard in shards.items():
        assert {index["weight_map"][tensor] for tensor in shard} == {name}
        total = sum(array.nbytes for array in shard.values())
        assert total <= byte_count("size", size) or len(shard) == 1
        found |= plain(shard)
    assert set(found) == set(expected)
    for name, array in expected.items():
        same_bits(found[name], array)


def test_a_full_shard_takes_the_last_byte(tmp_path, tied):
    total = sum(array.nbytes for array in tied.state_dict().values())
    tied.save_pretrained(tmp_path / "one", max_shard_size=total)
    tied.save_pretrained(tmp_path / "two", max_shard_size=total - 1)
    assert len(os.listdir(tmp_path / "one")) == 2
    assert len(os.listdir(tmp_path / "two")) == 4


@pytest.mark.parametrize(
    ("value", "count"),
    [(1, 1), (np.int32(7), 7), ("5GB", 5 * 10**9), ("5gb", 5 * 10**9), ("1.5 KB", 1500), ("2KiB", 2048),
     ("3MiB", 3 << 20), ("1GIB", 1 << 30), ("1TB", 10**12), ("1TiB", 1 << 40)],
)  # fmt: skip
def test_byte_count(value, count):
    assert byte_count("max_shard_size", value) == count


@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-1, ValueError), (True, TypeError), (2.5, TypeError), (None, TypeError),
     ("", ValueError), ("5", ValueError), ("GB", ValueError), ("-5GB", ValueError), ("0GB", ValueError),
     ("5GB ", ValueError),
     ("1e9GB", ValueError), ("nanMB", ValueError), ("5" * 99 + "GB", ValueError), ("٣GB", ValueError)],
)  # fmt: skip
def test_bad_byte_counts(tmp_path, tied, value, error):
    with pytest.raises(error, match="max_shard_size: expected .* got "):
        tied.save_pretrained(tmp_path / "new", max_shard_size=value)
    assert os.listdir(tmp_path) == []


# ---- llm.c -----------------------------------------------------------------------------------------------


def read_llmc(path):
    """A reader of llm.c's files of our own: (header, tensors by Hugging Face's names, rows of padding)."""
    data = np.fromfile(path, "<i4")
    header, rest = data[:256], data[256:].view("<f4")
    magic, version, P, V, L, _, C, padded = header[:8]
    assert (magic, version) == (20240326, 3)
    assert not header[8:].any()

    def take(*shape):
        nonlocal rest
        count = int(np.prod(shape))
        part, rest = rest[:count].reshape(shape), rest[count:]
        return part

    wte = take(padded, C)
    found = {"wte.weight": wte[:V], "wpe.weight": take(P, C)}
    stacked = {
        "ln_1.weight": (C,), "ln_1.bias": (C,),
        "attn.c_attn.weight": (3 * C, C), "attn.c_attn.bias": (3 * C,),
        "attn.c_proj.weight": (C, C), "attn.c_proj.bias": (C,),
        "ln_2.weight": (C,), "ln_2.bias": (C,),
        "mlp.c_fc.weight": (4 * C, C), "mlp.c_fc.bias": (4 * C,),
        "mlp.c_proj.weight": (C, 4 * C), "mlp.c_proj.bias": (C,),
    }  # fmt: skip
    for name, shape in stacked.items():
        for layer, array in enumerate(take(L, *shape)):
            found[f"h.{layer}.{name}"] = np.ascontiguousarray(array.T)
    found |= {"ln_f.weight": take(C), "ln_f.bias": take(C)}
    assert len(rest) == 0
    return header, found, wte[V:]


@pytest.mark.parametrize("vocab_size", [61, 128, 129])
@pytest.mark.parametrize("bias", [True, False])
def test_llmc(tmp_path, build, bias, vocab_size, same_bits):
    model = build(vocab_size, *SIZES[1:], **TIED, bias=bias)
    model.save(tmp_path / "model.bin", format="llm.c")
    header, found, padding = read_llmc(tmp_path / "model.bin")
    padded = {61: 128, 128: 128, 129: 256}[vocab_size]
    assert header[2:8].tolist() == [29, vocab_size, 3, 2, 12, padded]
    assert len(padding) == padded - vocab_size
    assert not padding.any()
    expected = expected_tensors(model)
    assert set(found) == set(expected)
    for name, array in expected.items():
        same_bits(found[name], array)


# ---- GGUF ------------------------------------------------------------------------------------------------

# llama.cpp's names, written out again here
GGUF_NAMES = {
    "wte.weight": "token_embd.weight",
    "wpe.weight": "position_embd.weight",
    "ln_f.weight": "output_norm.weight",
    "ln_f.bias": "output_norm.bias",
    "lm_head.weight": "output.weight",
    "h.2.ln_1.bias": "blk.2.attn_norm.bias",
    "h.2.attn.c_attn.weight": "blk.2.attn_qkv.weight",
    "h.2.attn.c_proj.weight": "blk.2.attn_output.weight",
    "h.2.ln_2.weight": "blk.2.ffn_norm.weight",
    "h.2.mlp.c_fc.weight": "blk.2.ffn_up.weight",
    "h.2.mlp.c_proj.weight": "blk.2.ffn_down.weight",
    "h.2.mlp.c_proj.bias": "blk.2.ffn_down.bias",
}


@pytest.mark.parametrize("name", ["tied", "untied", "no bias", "n_inner"])
def test_gguf(tmp_path, build, name, same_bits):
    gguf = pytest.importorskip("gguf")
    model = build(*SIZES, **CONFIGS[name])
    model.save(tmp_path / "model.gguf", format="gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    eps = fields.pop("gpt2.attention.layer_norm_epsilon")
    assert np.float32(eps) == np.float32(1e-5)
    assert fields == {
        "general.architecture": "gpt2",
        "general.file_type": 0,
        "gpt2.context_length": 29,
        "gpt2.embedding_length": 12,
        "gpt2.feed_forward_length": model.config.inner,
        "gpt2.block_count": 3,
        "gpt2.attention.head_count": 2,
        "gpt2.vocab_size": 61,
        "tokenizer.ggml.model": "none",
    }
    expected = expected_tensors(model)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == len(expected)
    for ours, theirs in GGUF_NAMES.items():
        if ours in expected:
            array = expected[ours].T if ours.startswith("h.") else expected[ours]
            assert tensors[theirs].tensor_type == gguf.GGMLQuantizationType.F32
            assert tensors[theirs].shape.tolist() == list(array.shape[::-1])  # GGUF counts sides backwards
            assert tensors[theirs].data_offset % 32 == 0
            same_bits(np.array(tensors[theirs].data), np.ascontiguousarray(array))


def test_without_the_gguf_package(tmp_path, python):
    code = """if True:
        import os, sys
        sys.modules["gguf"] = None  # the import fails
        import gpt2cy
        model = gpt2cy.GPT(gpt2cy.GPTConfig(7, 4, 2, 1, 5, tie_weights=True))
        try:
            model.save(sys.argv[1] + "/model.gguf", "gguf")
        except ImportError as error:
            print(error, os.listdir(sys.argv[1]))
    """
    out = python(code, tmp_path).strip()
    assert out == "format 'gguf' needs the gguf package: pip install 'gpt2cy[gguf]' []"


# ---- what a format cannot express ------------------------------------------------------------------------


def save_as(model, folder, form):
    if form == "gguf":
        pytest.importorskip("gguf")
    path = folder / ("new" if form == "safetensors" else "new.bin")
    model.save(path, format=form)
    return path


@pytest.mark.parametrize("form", writers.FORMATS)
def test_a_head_bias_is_refused_unless_it_is_zero(tmp_path, build, form):
    model = build(*SIZES, **TIED, lm_head_bias=True)
    with pytest.raises(ValueError, match=f"format '{form}' cannot express this model:\n  lm_head.bias: "):
        save_as(model, tmp_path, form)
    assert os.listdir(tmp_path) == []
    model.lm_head.bias = np.zeros(61)
    assert save_as(model, tmp_path, form).exists()
    model.lm_head.bias = np.where(np.arange(61) == 60, np.nan, 0)
    with pytest.raises(ValueError, match="lm_head.bias"):
        save_as(model, tmp_path, form)


OPTIONS = {
    "activation": ("gelu_erf", "expected 'gelu_tanh', got 'gelu_erf'"),
    "layer_norm_eps": (1e-6, "expected 1e-05, got 1e-06"),
    "n_inner": (47, "inner: expected 48, got 47"),
    "scale_attn_weights": (False, "expected True, got False"),
    "scale_attn_by_inverse_layer_idx": (True, "expected False, got True"),
    "tie_weights": (False, "expected True, got False"),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("form", writers.FORMATS)
def test_options_that_a_format_lacks_are_refused_by_name(tmp_path, build, form, option):
    value, message = OPTIONS[option]
    model = build(*SIZES, **{**TIED, "lm_head_bias": False, option: value})
    lacking = {
        "safetensors": set(),
        "llm.c": set(OPTIONS),
        "gguf": {"activation", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"},
    }
    if option not in lacking[form]:
        assert save_as(model, tmp_path, form).exists()
        return
    with pytest.raises(ValueError, match=f"format '{form}' cannot express this model:\n  .*{message}"):
        save_as(model, tmp_path, form)
    assert os.listdir(tmp_path) == []


def test_all_that_is_refused_is_said_at_once(tmp_path, build):
    model = build(*SIZES, activation="relu")
    with pytest.raises(ValueError, match="(?s)tie_weights.*activation.*lm_head.bias"):
        model.save(tmp_path / "model.bin", format="llm.c")


@pytest.mark.parametrize(
    ("form", "error"), [("pt", ValueError), ("GGUF", ValueError), (None, TypeError), (3, TypeError)]
)
def test_bad_formats(tmp_path, tied, form, error):
    with pytest.raises(error, match="format: expected one of 'safetensors', 'llm.c', 'gguf', got"):
        tied.save(tmp_path / "new", format=form)
    assert os.listdir(tmp_path) == []


# ---- memory, threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", writers.FORMATS)
def test_memory_is_that_of_one_tensor(tmp_path, form):
    """Eight layers of eight 64 KB blocks; the format's own structures are small beside one tensor."""
    model = gpt2cy.GPT(gpt2cy.GPTConfig(128, 128, 2, 8, 128, **TIED), seed=0)
    largest = 4 * 4 * 128 * 128
    save_as(model, tmp_path, form)  # imports
    tracemalloc.start()
    try:
        save_as(model, tmp_path, form)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert model.nbytes > 24 * largest
    copies = 1 if form == "safetensors" else 2  # a matrix and its transpose
    assert peak < copies * largest + 200_000


@pytest.mark.parametrize("form", writers.FORMATS)
def test_weights_do_not_change_during_a_save(tmp_path, tied, form, same_bits):
    class Path(os.PathLike):
        """Asked in the middle of a save."""

        asked = 0

        def __fspath__(self):
            self.asked += 1
            with pytest.raises(RuntimeError, match="weights cannot be assigned while a call is using them"):
                tied.wte.weight = np.zeros((61, 12))
            same_bits(tied([1, 2, 3]), expected)
            return str(tmp_path / "new")

    if form == "gguf":
        pytest.importorskip("gguf")
    expected = tied([1, 2, 3])
    path = Path()
    tied.save(path, format=form)
    assert path.asked == 1  # it might answer differently the second time
    tied.wte.weight = np.zeros((61, 12))
    with contextlib.suppress(OSError):
        tied.save(tmp_path / "no" / "folder", format=form)
    tied.wte.weight = np.ones((61, 12))


# ---- names -----------------------------------------------------------------------------------------------


NAMES = ["plain", "with space", "ünï 中文 🙂", "a" * 255, "-rf", "new\nline", "'quo\"te"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [str, Path])
def test_names(tmp_path, tied, name, kind):
    tied.save(kind(tmp_path / name), format="llm.c")
    assert os.listdir(tmp_path) == [name]
    os.unlink(tmp_path / name)
    tied.save_pretrained(kind(tmp_path / name))
    assert sorted(os.listdir(tmp_path / name)) == ["config.json", "model.safetensors"]


def test_relative_names(tmp_path, tied, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tied.save("model.bin", format="llm.c")
    tied.save_pretrained(".")
    tied.save_pretrained("a/b//c/")
    assert sorted(os.listdir()) == ["a", "config.json", "model.bin", "model.safetensors"]
    assert sorted(os.listdir("a/b/c")) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("path", ["", "a\0b"])
@pytest.mark.parametrize(("form", "name"), [("safetensors", "folder"), ("llm.c", "path")])
def test_paths_that_name_nothing(tied, path, form, name):
    with pytest.raises(ValueError, match=f"{name}: expected a path, got"):
        tied.save(path, format=form)


@pytest.mark.parametrize("path", [None, 3, ["a"], object(), b"b"])
def test_things_that_are_no_path(tied, path):
    with pytest.raises(TypeError, match="folder: expected a path, got"):
        tied.save_pretrained(path)


def test_a_file_where_a_folder_should_be(tmp_path, tied):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="folder: expected a folder, got a file: .*file"):
        tied.save_pretrained(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        tied.save_pretrained(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_where_a_file_should_be(tmp_path, tied):
    with pytest.raises(IsADirectoryError, match="path: expected a file's name for format 'llm.c'"):
        tied.save(tmp_path, format="llm.c")
    with pytest.raises(IsADirectoryError, match="path: expected a file's name for format 'llm.c'"):
        tied.save(f"{tmp_path}/new/", format="llm.c")
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).mkdir()
        with pytest.raises(IsADirectoryError, match=name):
            tied.save_pretrained(tmp_path)
        assert os.listdir(tmp_path) == [name]
        (tmp_path / name).rmdir()


def test_a_folder_that_is_not_there(tmp_path, tied):
    with pytest.raises(FileNotFoundError, match="path: expected a file in a folder that exists"):
        tied.save(tmp_path / "no" / "model.bin", format="llm.c")
    assert os.listdir(tmp_path) == []


def test_a_link_is_replaced_and_not_followed(tmp_path, tied):
    """A snapshot of the hub's cache is a folder of links into the store that other snapshots share."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blob").write_text("shared")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(tmp_path / "store" / "blob")
    tied.save_pretrained(folder)
    assert (tmp_path / "store" / "blob").read_text() == "shared"
    assert not (folder / "config.json").is_symlink()
    assert load_file(folder / "model.safetensors")


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_permissions_are_the_usual_ones(tmp_path, tied):
    before = os.umask(0o027)
    try:
        tied.save_pretrained(tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
