# SPDX-License-Identifier: Apache-2.0
"""Files that are missing, damaged, hostile or not what they seem: one error, soon, nothing allocated."""

import json
import os
import re
import struct
import sys
import time
import tracemalloc
from pathlib import Path

import makers
import numpy as np
import pytest
import safetensors
from makers import CONFIG

import gpt2cy
from gpt2cy import info
from gpt2cy.weights import load_into, open_checkpoint

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"
HTML = b"\n<!DOCTYPE html>\n<html><body>Not found</body></html>"


def refused(path, error=ValueError):
    """The message of the error, which must name the file and come soon without much memory."""
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(error) as caught:
            gpt2cy.GPT.from_pretrained(path)
        assert time.perf_counter() - start < 5  # a tenth of a second, on a machine that has time
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    return str(caught.value)


# ---- not a model -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"1234567", "a file of 7 bytes: it is cut short"),
        (LFS, "Git LFS pointer"),
        (HTML, "a web page"),
        (b'{"error": "not found"}', "it looks like JSON"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "Keras weights"),
        (struct.pack("<Q", 2**63) + b"{}" + bytes(50), "9,223,372,036,854,775,808"),
        (struct.pack("<Q", 2**64 - 1) + b"{}" + bytes(50), "18,446,744,073,709,551,615"),
        (struct.pack("<Q", 100_000_001) + b"{}" + bytes(50), "100,000,001"),
        (struct.pack("<Q", 0) + bytes(50), "expected safetensors"),
        (struct.pack("<Q", 8) + b'{"a": 1}' + bytes(50), "not a valid safetensors file"),
        (bytes(1000), "expected safetensors, a PyTorch checkpoint, llm.c's .bin or GGUF"),
    ],
    ids=range(12),
)
def test_not_a_model(tmp_path, content, says):
    makers.folder(tmp_path, {})
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert says in refused(path)
    with pytest.raises(safetensors.SafetensorError), safetensors.safe_open(path, "numpy"):
        pass  # the format's own reader says the same


def test_a_folder_in_the_place_of_a_file(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(ValueError, match="model.safetensors: expected a file, found a folder"):
        open_checkpoint(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    assert "expected a file" in refused(tmp_path / "model.safetensors")


def test_nothing_there(tmp_path):
    for source in (tmp_path / "none", str(tmp_path / "none"), "a/b/c", "a//b", "x" * 5000, "a\0b", ""):
        with pytest.raises(FileNotFoundError, match="source: no file or folder|looked for"):
            os.chdir(tmp_path)
            open_checkpoint(source)
    with pytest.raises(FileNotFoundError, match="no model: looked for model.safetensors, "):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("source", [None, 3, b"path", ["a"]])
def test_no_path(source):
    with pytest.raises(TypeError, match="source: expected a path"):
        open_checkpoint(source)


def test_a_name_that_is_empty_is_shown(tmp_path):
    with pytest.raises(FileNotFoundError, match="^source: no file or folder '', and no id"):
        gpt2cy.GPT.from_pretrained("")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revision": 3}, r"revision: expected text \(str\) or None, got int"),
        ({"token": b"hf_secret"}, r"token: expected text \(str\), True, False or None, got bytes"),
        ({"local_files_only": "x"}, "local_files_only: expected True or False, got str 'x'"),
        ({"cache_dir": 3}, "cache_dir: expected a path or None, got int"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_of_the_hub_are_checked_for_files_too(tmp_path, tensors, options, message):
    for source in (makers.folder(tmp_path, tensors), "no/such/model"):
        for call in (gpt2cy.GPT.from_pretrained, gpt2cy.load, open_checkpoint, info.describe):
            with pytest.raises(TypeError, match=f"^{message}$"):
                call(source, **options)


def test_what_info_takes_for_a_check(tmp_path, tensors):
    with pytest.raises(TypeError, match="^check: expected True or False, got 1$"):
        info.describe(makers.folder(tmp_path, tensors), check=1)


def test_what_is_loaded_into_what(tmp_path, tensors):
    with pytest.raises(TypeError, match="^checkpoint: expected a Checkpoint, got NoneType$"):
        load_into(None, print)
    put = pytest.raises(TypeError, match="^put: expected a function, got NoneType$")
    with open_checkpoint(makers.folder(tmp_path, tensors)) as checkpoint, put:
        load_into(checkpoint, None)


def test_several_files_that_may_be_meant(tmp_path, tensors):
    makers.gguf(tmp_path / "a.gguf", CONFIG, tensors)
    makers.gguf(tmp_path / "b.gguf", CONFIG, tensors)
    with pytest.raises(FileNotFoundError, match="found a.gguf, b.gguf: name one"):
        open_checkpoint(tmp_path)


# ---- cut short -------------------------------------------------------------------------------------------


def each_format(tmp_path, tensors):
    nano = makers.nanogpt(CONFIG, tensors)
    yield "safetensors", makers.folder(tmp_path / "s", tensors) / "model.safetensors"
    yield "pytorch", makers.torch_zip(makers.folder(tmp_path / "p", {}) / "pytorch_model.bin", tensors)
    yield "pytorch, old", makers.torch_old(makers.folder(tmp_path / "o", {}) / "pytorch_model.bin", tensors)
    yield "nanogpt", makers.torch_zip(tmp_path / "ckpt.pt", nano)
    yield "llm.c", makers.llmc(tmp_path / "gpt2.bin", CONFIG, tensors)
    yield "gguf", without_padding(makers.gguf(tmp_path / "model.gguf", CONFIG, tensors))


def without_padding(path):
    """GGUF pads its end too, which nobody would miss."""
    os.truncate(path, path.stat().st_size - 16)
    return path


def test_every_cut_is_found_when_the_file_is_opened(tmp_path, tensors):
    for name, path in each_format(tmp_path, tensors):
        content = path.read_bytes()
        open_checkpoint(path).close()
        for size in [*range(200), *range(200, len(content), len(content) // 97), len(content) - 1]:
            path.write_bytes(content[:size])
            with pytest.raises(ValueError) as caught:
                open_checkpoint(path)
            assert str(path) in str(caught.value), (name, size)


def test_a_file_cut_short_after_it_was_opened(tmp_path, tensors):
    """An error, where a mapped file would end the process."""
    for _, path in each_format(tmp_path, tensors):
        with open_checkpoint(path) as checkpoint:
            os.truncate(path, 1000)
            with pytest.raises(OSError, match="was cut short while .* was being read"):
                for tensor in checkpoint.tensors.values():
                    tensor.read()


def test_a_file_replaced_after_it_was_opened(tmp_path, tensors):
    path = makers.folder(tmp_path, tensors) / "model.safetensors"
    with open_checkpoint(path) as checkpoint:
        makers.save(tmp_path / "new", {name: array + 1 for name, array in tensors.items()})
        os.replace(tmp_path / "new", path)
        np.testing.assert_array_equal(checkpoint.tensors["wte.weight"].read(), tensors["wte.weight"])


def test_a_loaded_model_does_not_need_its_file(tmp_path, tensors, same_bits):
    for _, path in each_format(tmp_path, tensors):
        model = gpt2cy.GPT.from_pretrained(path)
        before = model(makers.IDS)
        os.truncate(path, 0)
        path.unlink()
        same_bits(model(makers.IDS), before)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files are listed in /proc")
def test_no_file_stays_open_or_mapped(tmp_path, tensors):
    def held():
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), str(tmp_path) in maps

    before = held()
    paths = list(each_format(tmp_path, tensors))
    for _, path in paths:
        gpt2cy.GPT.from_pretrained(path)
        assert held() == before
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ValueError):
            gpt2cy.GPT.from_pretrained(path)
        assert held() == before
    with open_checkpoint(makers.folder(tmp_path / "again", tensors)):
        assert held() == (before[0] + 1, False)


# ---- shards ----------------------------------------------------------------------------------------------


def write_index(folder, index):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_missing_shard(tmp_path, tensors):
    makers.sharded(tmp_path, tensors)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model-00002-of-00002.safetensors: no such file"):
        open_checkpoint(tmp_path)


def test_an_index_that_names_the_wrong_shard(tmp_path, tensors):
    index = makers.sharded(tmp_path, tensors)
    index["weight_map"]["wpe.weight"] = "model-00001-of-00002.safetensors"
    write_index(tmp_path, index)
    with pytest.raises(ValueError, match="lack tensors .*: wpe.weight in model-00001-of-00002.safetensors"):
        open_checkpoint(tmp_path)


def test_an_index_that_lacks_a_tensor(tmp_path, tensors):
    index = makers.sharded(tmp_path, tensors)
    del index["weight_map"]["wpe.weight"]
    write_index(tmp_path, index)
    with pytest.raises(ValueError, match=r"missing: wpe.weight \[32, 12\]"):
        open_checkpoint(tmp_path)


def test_the_index_decides(tmp_path, tensors, gives):
    index = makers.sharded(tmp_path, tensors)
    shard = tmp_path / "model-00001-of-00002.safetensors"
    more = {n: tensors[n] for n, f in index["weight_map"].items() if f == shard.name} | {"more": np.ones(3)}
    makers.save(shard, more)
    gives(tmp_path, CONFIG, tensors)


@pytest.mark.parametrize("weight_map", [{}, [], None, "x", 3])
def test_a_weight_map_that_is_none(tmp_path, tensors, weight_map):
    makers.sharded(tmp_path, tensors)
    write_index(tmp_path, {"weight_map": weight_map})
    with pytest.raises(ValueError, match="index.json: weight_map: expected an object"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        *(
            "../other/model.safetensors",
            "{absolute}",
            "/etc/passwd",
            "a/../../x",
            "..\\other\\model.safetensors",
        ),
        *("", ".", "..", "a\0b", "C:model.safetensors", 5, None, ["x"]),
    ],
    ids=repr,
)
def test_an_index_opens_nothing_outside_its_folder(tmp_path, tensors, entry, monkeypatch):
    outside = makers.folder(tmp_path / "other", tensors) / "model.safetensors"
    folder = tmp_path / "model"
    index = makers.sharded(folder, tensors)
    entry = str(outside) if entry == "{absolute}" else entry
    index["weight_map"]["wpe.weight"] = entry
    write_index(folder, index)
    opened = []
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, _open=open, **k: opened.append(path) or _open(path, *a, **k)
    )
    with pytest.raises(
        ValueError, match="weight_map: wpe.weight: expected the name of a file beside it, found"
    ):
        open_checkpoint(folder)
    assert all(os.path.dirname(os.path.abspath(path)) == str(folder) for path in opened)


def test_symlinked_shards(tmp_path, tensors, gives):
    """The hub's cache is made of them."""
    makers.sharded(tmp_path / "blobs", tensors)
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    gives(tmp_path / "snapshot", CONFIG, tensors)


def test_a_single_file_goes_before_an_index(tmp_path, tensors, gives):
    makers.sharded(tmp_path, {name: array + 1 for name, array in tensors.items()})
    makers.save(tmp_path / "model.safetensors", tensors)
    gives(tmp_path, CONFIG, tensors)


def test_a_whole_model_among_the_shards(tmp_path, tensors):
    makers.sharded(tmp_path, tensors)
    makers.llmc(tmp_path / "model-00002-of-00002.safetensors", CONFIG, tensors)
    with pytest.raises(ValueError, match=r"expected a part of a model, found a whole one \(llm.c\)"):
        open_checkpoint(tmp_path)


# ---- hostile safetensors ---------------------------------------------------------------------------------

ENTRY = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": {**ENTRY, "data_offsets": [0, 16]}},
        {"a": {**ENTRY, "data_offsets": [-4, 8]}},
        {"a": {**ENTRY, "data_offsets": [12, 0]}},
        {"a": {**ENTRY, "shape": [2**62, 2**62]}},
        {"a": {**ENTRY, "shape": [-3]}},
        {"a": {**ENTRY, "shape": 3}},
        {"a": {**ENTRY, "dtype": "F99"}},
        {"a": {**ENTRY, "dtype": 7}},
        {"a": ENTRY, "b": ENTRY},
        {"a": {**ENTRY, "data_offsets": [0, 12], "shape": [3, 1, 1, 0]}},
        {"a": None},
        {"a": []},
        {"__metadata__": 3, "a": ENTRY},
        [],
    ],
    ids=range(14),
)
def test_headers_that_lie(tmp_path, header):
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(12))
    refused(path)
    with pytest.raises(safetensors.SafetensorError), safetensors.safe_open(path, "numpy"):
        pass


# ---- hostile llm.c and GGUF ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        (1, 1, "expected version 3 .* or 5 .*, found 1"),
        (1, -3, "found -3"),
        (2, 0, "header: block_size"),
        (2, 2**31 - 1, "expected .* bytes by its header"),
        (3, -61, "header: vocab_size"),
        (4, 0, "header: n_layers"),
        (4, 2**31 - 1, "bytes by its header"),
        (5, 5, "header: n_heads: expected an integer >= 1 that divides"),
        (5, 0, "header: n_heads"),
        (6, -12, "header: n_embd"),
        (7, 60, "padded vocabulary of at least 61, found 60"),
        (7, 10**9, "bytes by its header"),
    ],
)
def test_llmc_headers_that_lie(tmp_path, tensors, field, value, says):
    path = makers.llmc(tmp_path / "model.bin", CONFIG, tensors, **{f"f{field}": value})
    assert re.search(says, refused(path))


def test_llmc_with_more_behind_it(tmp_path, tensors):
    path = makers.llmc(tmp_path / "model.bin", CONFIG, tensors)
    path.write_bytes(path.read_bytes() + bytes(4))
    assert "cut short or damaged" in refused(path)


def gguf_header(*parts):
    """Bytes of a header: numbers as (form, value), texts with their length, bytes as they are."""
    out = b"GGUF"
    for part in parts:
        if isinstance(part, str):
            out += struct.pack("<Q", len(part)) + part.encode()
        else:
            out += part if isinstance(part, bytes) else struct.pack(part[0], part[1])
    return out


def field(key, kind, *value):
    """The header of a file with one field."""
    return gguf_header(("<I", 3), ("<Q", 0), ("<Q", 1), key, ("<I", kind), *value)


def tensor(n_axes, *axes, kind=0, offset=0):
    """The header of a file with one tensor."""
    sizes = [("<Q", size) for size in axes]
    return gguf_header(
        ("<I", 3), ("<Q", 1), ("<Q", 0), "t", ("<I", n_axes), *sizes, ("<I", kind), ("<Q", offset)
    )


MORE = bytes(50)
LIES = {
    "an old version": (
        gguf_header(("<I", 1), ("<Q", 0), ("<Q", 0)),
        "expected version 2 or 3 of GGUF, found 1",
    ),
    "big-endian": (gguf_header((">I", 3), ("<Q", 0), ("<Q", 0)), "a big-endian file"),
    "tensors": (gguf_header(("<I", 3), ("<Q", 2**60), ("<Q", 0)), "do not fit a file"),
    "fields": (gguf_header(("<I", 3), ("<Q", 0), ("<Q", 2**63)), "do not fit a file"),
    "a long key": (gguf_header(("<I", 3), ("<Q", 0), ("<Q", 1), ("<Q", 2**40), MORE), "a text of at most"),
    "type of field": (field("key", 13, MORE), "type of field from 0 to 12, found 13"),
    "a long text": (field("key", 8, ("<Q", 2**62), MORE), "ends before"),
    "a long array": (field("key", 9, ("<I", 4), ("<Q", 2**62), MORE), "ends before"),
    "an array of many texts": (field("key", 9, ("<I", 8), ("<Q", 2**62), MORE), "does not fit"),
    "an array of a long text": (field("key", 9, ("<I", 8), ("<Q", 1), ("<Q", 2**62), MORE), "ends before"),
    "an array of arrays": (field("key", 9, ("<I", 9), ("<Q", 2), MORE), "elements of type 9"),
    "alignment": (field("general.alignment", 4, ("<I", 3), MORE), "expected a power of two, found 3"),
    "alignment 0": (field("general.alignment", 4, ("<I", 0), MORE), "expected a power of two, found 0"),
    "a text as alignment": (field("general.alignment", 8, "32", MORE), "expected a power of two"),
    "axes": (tensor(9, *range(9)), "at most 4 axes, found 9"),
    "a large axis": (tensor(1, 2**50), "the file ends at"),
    "large axes": (tensor(4, 2**63, 2**63, 2**63, 2**63), "the file ends at"),
    "offset": (tensor(1, 1, offset=2**40), "the file ends at"),
    "alignment of a tensor": (tensor(1, 1, offset=33), "aligned to 32, found 33"),
    "type of tensor": (tensor(1, 1, kind=999), "type of tensor that the gguf package knows, found 999"),
    "half a block": (tensor(1, 33, kind=2), "whole blocks of 32 numbers (Q4_0), found 33"),
    "another model": (field("general.architecture", 8, "llama"), "expected gpt2, found llama"),
    "no model": (field("general.name", 8, "gpt2"), "expected gpt2, found None"),
    "no sizes": (field("general.architecture", 8, "gpt2"), "missing: gpt2.embedding_length, "),
    "two fields": (
        gguf_header(("<I", 3), ("<Q", 0), ("<Q", 2), *["key", ("<I", 0), b"\1"] * 2, MORE),
        "key: two fields of that name",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_gguf_headers_that_lie(tmp_path, lie):
    pytest.importorskip("gguf")
    header, says = LIES[lie]
    path = tmp_path / "model.gguf"
    path.write_bytes(header)
    assert says in refused(path)


def test_gguf_of_something_that_is_not_plain_gpt2(tmp_path, tensors):
    path = makers.gguf(tmp_path / "model.gguf", CONFIG, tensors, **{"attention.head_count_kv": 1})
    assert "gpt2.attention.head_count_kv" in refused(path)


def test_gguf_without_its_package(tmp_path, tensors, monkeypatch):
    path = makers.gguf(tmp_path / "model.gguf", CONFIG, tensors)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"pip install 'gpt2cy\[gguf\]'"):
        open_checkpoint(path)
