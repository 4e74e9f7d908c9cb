# SPDX-License-Identifier: Apache-2.0
"""The pickle machine builds data as Python's does, and refuses, unrun, everything that is more than data."""

import collections
import io
import os
import pickle
import struct
import subprocess
import zipfile

import makers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from makers import CONFIG

from gpt2cy.weights import open_checkpoint
from gpt2cy.weights.readers import unpickle

SCALARS = st.none() | st.booleans() | st.integers(-(2**1000), 2**1000) | st.floats() | st.text()
KEYS = st.text() | st.integers(-(2**70), 2**70)


def values(scalars):
    def containers(inner):
        return (
            st.lists(inner)
            | st.tuples(inner, inner)
            | st.dictionaries(KEYS, inner)
            | st.lists(inner).map(tuple)
        )

    return st.recursive(scalars, containers)


def load(content):
    stream = io.BytesIO(content)

    def read(count):
        data = stream.read(count)
        if len(data) < count:
            raise ValueError("too short")
        return data

    return unpickle.load(read)


@given(values(SCALARS | st.binary()), st.integers(3, 5))
def test_plain_data_as_python_reads_it(value, protocol):
    content = pickle.dumps(value, protocol)
    assert repr(load(content)) == repr(pickle.loads(content))


@given(values(SCALARS))
def test_protocol_2(value):  # in which bytes would be a call
    content = pickle.dumps(value, 2)
    assert repr(load(content)) == repr(pickle.loads(content))


def test_an_ordered_dict_and_its_state():
    value = collections.OrderedDict(a=1, b=[2])
    value._metadata = {"": {"version": 1}}
    assert load(pickle.dumps(value, 2)) == {"a": 1, "b": [2]}


def test_shared_and_cyclic_containers():
    row = [1]
    value = load(pickle.dumps([row, row], 2))
    assert value[0] is value[1]
    row.append(row)
    value = load(pickle.dumps(row, 2))
    assert value[1] is value


# ---- what is more than data ------------------------------------------------------------------------------


class Evil:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def marker_path(tmp_path):
    return tmp_path / "marker"


def attacks(marker):
    """Objects whose unpickling would make the file `marker`."""
    yield Evil(os.mkdir, str(marker))
    yield Evil(os.system, f"touch {marker}")
    yield Evil(eval, f"open({str(marker)!r}, 'w')")
    yield Evil(exec, f"open({str(marker)!r}, 'w')")
    yield Evil(open, str(marker), "w")
    yield Evil(subprocess.call, ["touch", str(marker)])
    yield Evil(pickle.loads, pickle.dumps(Evil(os.mkdir, str(marker))))
    yield {"wte.weight": Evil(os.mkdir, str(marker))}
    yield collections.OrderedDict(a=Evil(os.mkdir, str(marker)))


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("wrapped", ["plain", "zip", "old"])
def test_no_code_of_a_file_runs(tmp_path, wrapped, protocol):
    marker = marker_path(tmp_path)
    for attack in attacks(marker):
        path = makers.folder(tmp_path, {}) / "pytorch_model.bin"
        (tmp_path / "model.safetensors").unlink()
        content = pickle.dumps(attack, protocol)
        if wrapped == "plain":
            path.write_bytes(content)
        elif wrapped == "old":
            magic, rest = (
                makers.torch_old(path, {}).read_bytes()[:15],
                [pickle.dumps(v, 2) for v in (1001, {})],
            )
            path.write_bytes(magic + b"".join(rest) + content + pickle.dumps([], 2))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("archive/data.pkl", content)
        with pytest.raises(
            ValueError, match="(?s)pytorch_model.bin: refused: the pickle names '.*safetensors"
        ):
            open_checkpoint(tmp_path)
        assert not marker.exists()
    pickle.loads(pickle.dumps(Evil(os.mkdir, str(marker)), protocol))
    assert marker.exists()  # the attack is a real one


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.", "builtins.eval"),
        (b"\x80\x02cos\nsystem\n.", "os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "os.system"),
        (b"\x80\x02ctorch\nload\n.", "torch.load"),
        (b"\x80\x02ctorch.storage\n_load_from_bytes\n.", "torch.storage._load_from_bytes"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", "__globals__"),
        (b"\x80\x02ccollections\nOrderedDict.fromkeys\n.", "fromkeys"),
        (b"\x80\x02cgpt2cy.weights.readers.unpickle\nload\n.", "unpickle.load"),
        (b"\x80\x02c__main__\nGPTConfig\n)\x81.", "__main__.GPTConfig"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n.", "numpy.core.multiarray._reconstruct"),
    ],
)
def test_any_other_global_is_refused_by_name(content, name):
    with pytest.raises(unpickle.Refused, match=name):
        load(content)


@pytest.mark.parametrize(
    "content",
    [
        b"(S'a'\np0\n.",  # protocol 0
        b"\x80\x02ccollections\nOrderedDict\n)\x81.",  # NEWOBJ
        b"\x80\x02(icollections\nOrderedDict\n.",  # INST
        b"\x80\x02\x82\x01.",  # EXT1
        b"\x80\x04\x8f.",  # EMPTY_SET
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",  # BYTEARRAY8
        b"\x80\x02ccollections\nOrderedDict\nK\x01R.",
        b"\x80\x02K\x01)R.",
        b"\x80\x02ctorch\nFloatStorage\n)R.",
        b"\x80\x02X\x01\x00\x00\x00aQ.",
        b"\x80\x02}(]K\x01u.",  # a list as a key
        b"\x80\x02}()K\x01u.",  # a tuple as a key
    ],
    ids=range(12),
)
def test_opcodes_and_calls_that_data_does_not_need(content):
    with pytest.raises(unpickle.Refused):
        load(content)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b".", b"\x80", b"\x80\x02", b"\x80\x02N", b"\x80\x02NN.", b"\x80\x02t.", b"\x80\x02(."),
        *(b"\x80\x02a.", b"\x80\x02h\x05.", b"\x80\x02q\x05.", b"\x80\x02Nb.", b"\x80\x02}(K\x01u."),
        *(b"\x80\x02]K\x01K\x02s.", b"\x80\x02X\xff\xff\xff\x7fabc.", b"\x80\x04\x8d" + b"\xff" * 8 + b"."),
        *(b"\x80\x02X\x01\x00\x00\x00\xff.", b"\x80\x02c" + b"a" * 10_000, b"\x80\x02c\xff\n\xff\n."),
        *(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", b"\x80\x02ccollections\nOrderedDict\n(K\x01tR."),
        b"\x80\x04NN\x93.",
    ],
    ids=range(22),
)
def test_damage(content):
    with pytest.raises(ValueError):
        load(content)


def test_an_index_of_the_memo_costs_nothing():
    """Python's own machine would allocate room for all below it."""
    assert load(b"\x80\x02K\x07r\xff\xff\xff\xff0j\xff\xff\xff\xff.") == 7


def test_a_pickle_that_never_ends(monkeypatch):
    monkeypatch.setattr(unpickle, "MOST_STEPS", 1000)
    with pytest.raises(ValueError, match="more than 1,000 steps"):
        load(b"\x80\x02" + b"N" * 2000)


# ---- tensors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ((61, 12), (62, 12), "exceeds its storage of 732"),
        ((61, 12), (-1, 12), "impossible shape"),
        ((61, 12), (2**30, 2**30), "exceeds its storage"),
        ((12, 1), (0, 0), "expected contiguous numbers, found strides"),
        ((12, 1), (13, 1), "expected contiguous numbers, found strides"),
        ("FloatStorage", "EvilStorage", "expected a storage of numbers, found torch.EvilStorage"),
        ("FloatStorage", "LongStorage", "storage 0: expected 5,856 bytes, found 2,928"),
    ],
)
def test_tensors_that_lie(tmp_path, tensors, old, new, says):
    path = makers.torch_zip(makers.folder(tmp_path, {}) / "pytorch_model.bin", tensors)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    old, new = (part.encode() if type(part) is str else makers.Pickle().value(part) for part in (old, new))
    assert old in parts["archive/data.pkl"]
    parts["archive/data.pkl"] = parts["archive/data.pkl"].replace(old, new, 1)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=says):
        open_checkpoint(path)


def rewritten(path, change, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path) as archive:
        parts = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in change(parts):
            archive.writestr(name, content)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data/3": None}, "expected a member archive/data/3"),
        ({"data/3": bytes(8)}, "storage 3: expected .* bytes, found 8"),
        ({"data.pkl": None}, "expected one data.pkl, found 0"),
        ({"/data.pkl": b"\x80\x02N."}, "expected one data.pkl, found 2"),
        ({"byteorder": b"big"}, "expected little-endian numbers"),
        ({"data.pkl": b"\x80\x02N."}, "found NoneType"),
        ({"data.pkl": b"\x80\x02}."}, "found a dict of nothing"),
    ],
    ids=range(7),
)
def test_archives_that_lack_something(tmp_path, tensors, change, says):
    path = makers.torch_zip(makers.folder(tmp_path, {}) / "pytorch_model.bin", tensors)
    root = {
        f"archive/{name}" if name[0] != "/" else "other" + name: content for name, content in change.items()
    }
    rewritten(path, lambda parts: [(n, c) for n, c in (dict(parts) | root).items() if c is not None])
    with pytest.raises(ValueError, match=says):
        open_checkpoint(path)


def test_a_compressed_archive(tmp_path, tensors):
    path = makers.torch_zip(makers.folder(tmp_path, {}) / "pytorch_model.bin", tensors)
    rewritten(path, lambda parts: parts, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="stored as it is, found a compressed one"):
        open_checkpoint(path)


def test_tensors_that_lie_apart(tmp_path, tensors):
    tensors["wpe.weight"] = tensors["wpe.weight"][::2, ::2][:, :, None].swapaxes(0, 1)
    path = makers.torch_zip(makers.folder(tmp_path, {}) / "pytorch_model.bin", tensors)
    with pytest.raises(ValueError, match=r"(?s)wpe.weight: .*tensor.contiguous\(\)|exceeds"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"n_head": 5}, "model_args: n_heads: expected an integer >= 1 that divides"),
        ({"n_layer": "2"}, "model_args: n_layers"),
        ({"vocab_size": 62}, "wte.weight: expected"),
        ({"bias": False}, "unexpected: h.0.ln_1.bias"),
    ],
)
def test_nanogpt_sizes_that_lie(tmp_path, tensors, changes, says):
    path = makers.torch_zip(tmp_path / "ckpt.pt", makers.nanogpt(CONFIG, tensors, **changes))
    with pytest.raises(ValueError, match=says):
        open_checkpoint(path)


def test_nanogpt_without_its_sizes(tmp_path, tensors):
    value = makers.nanogpt(CONFIG, tensors)
    del value["model_args"]["n_embd"]
    with pytest.raises(ValueError, match="model_args: missing n_embd"):
        open_checkpoint(makers.torch_zip(tmp_path / "ckpt.pt", value))
    del value["model_args"]
    with pytest.raises(ValueError, match="expected model_args beside model"):
        open_checkpoint(makers.torch_zip(tmp_path / "ckpt.pt", value))
