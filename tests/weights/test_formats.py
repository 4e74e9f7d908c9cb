# SPDX-License-Identifier: Apache-2.0
"""Every format gives the model that was written, to the bit; types become float32 as they should."""

import dataclasses
import json
from pathlib import Path

import makers
import numpy as np
import pytest
from makers import CONFIG, FIELDS, SIZES, TIED

import gpt2cy
from gpt2cy import GPTConfig
from gpt2cy.weights import open_checkpoint

UNTIED = GPTConfig(**SIZES, lm_head_bias=False)
NANO = dataclasses.replace(CONFIG, activation="gelu_erf")


def config_beside(path):
    (path / "config.json").write_text(json.dumps(FIELDS))


# ---- each format -----------------------------------------------------------------------------------------


def test_safetensors(tmp_path, tensors, gives):
    folder = makers.folder(tmp_path, tensors)
    gives(folder, CONFIG, tensors)
    gives(str(folder), CONFIG, tensors)
    gives(folder / "model.safetensors", CONFIG, tensors)


def test_shards(tmp_path, tensors, gives):
    makers.sharded(tmp_path, makers.prefixed(tensors))
    gives(tmp_path, CONFIG, tensors)


@pytest.mark.parametrize("write", [makers.torch_zip, makers.torch_old])
def test_pytorch(tmp_path, tensors, gives, write):
    config_beside(tmp_path)
    path = write(tmp_path / "pytorch_model.bin", makers.prefixed(tensors))
    gives(tmp_path, CONFIG, tensors)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.format == "pytorch"
        assert checkpoint.folder == tmp_path


@pytest.mark.parametrize("write", [makers.torch_zip, makers.torch_old])
@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "module._orig_mod."])
def test_nanogpt(tmp_path, tensors, gives, write, prefix):
    path = write(tmp_path / "ckpt.pt", makers.nanogpt(NANO, tensors, prefix))
    gives(path, NANO, tensors)
    gives(tmp_path, NANO, tensors)


def test_nanogpt_without_biases_and_with_a_padded_vocabulary(tmp_path, gives):
    config = dataclasses.replace(NANO, bias=False, vocab_size=64)
    tensors = makers.weights(config)
    path = makers.torch_zip(tmp_path / "ckpt.pt", makers.nanogpt(config, tensors))
    gives(path, config, tensors)
    path = makers.torch_zip(tmp_path / "ckpt.pt", makers.nanogpt(config, tensors, vocab_size=None))
    assert gives(path, config, tensors).next_logits([63]).shape == (64,)


@pytest.mark.parametrize("padded", [61, 64, 128])
@pytest.mark.parametrize("version", [3, 5])
def test_llmc(tmp_path, tensors, gives, version, padded):
    path = makers.llmc(tmp_path / "gpt2.bin", CONFIG, tensors, version, padded)
    expected = tensors if version == 3 else {n: makers.as_bfloat16(a) for n, a in tensors.items()}
    gives(path, CONFIG, expected)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.format == "llm.c"
        assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {"F32" if version == 3 else "BF16"}


@pytest.mark.parametrize("config", [CONFIG, UNTIED, GPTConfig(**SIZES, **TIED, n_inner=20)], ids=str)
def test_gguf(tmp_path, gives, config):
    tensors = makers.weights(config)
    path = makers.gguf(tmp_path / "model.gguf", config, tensors)
    gives(path, config, tensors)
    gives(tmp_path, config, tensors)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_gguf_of_other_types(tmp_path, gives, kind):
    gguf = pytest.importorskip("gguf")
    config = dataclasses.replace(CONFIG, n_embd=256)
    tensors = makers.weights(config)
    path = makers.gguf(tmp_path / "model.gguf", config, tensors, kind)

    def rounded(array):
        code = gguf.GGMLQuantizationType[kind]
        return gguf.quants.dequantize(gguf.quants.quantize(array, code), code).astype(np.float32)

    turned = {name: rounded(a) if a.ndim == 2 else a for name, a in makers.turned(tensors).items()}
    gives(path, config, makers.turned(turned))


@pytest.mark.parametrize(
    ("kind", "nbytes", "scale"), [("Q6_K", 210, 208), ("Q4_K", 144, 0), ("Q3_K", 110, 108)]
)
def test_gguf_of_types_that_the_package_only_reads(tmp_path, kind, nbytes, scale):
    gguf = pytest.importorskip("gguf")
    config = dataclasses.replace(CONFIG, n_embd=256)
    blocks = np.random.default_rng(0).integers(0, 256, (61, nbytes), np.uint8)
    blocks[:, scale : scale + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    path = makers.gguf(tmp_path / "model.gguf", config, makers.weights(config), blocks=(kind, blocks))
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    with open_checkpoint(path) as checkpoint:
        table = checkpoint.tensors["wte.weight"]
        assert table.dtype == kind
        np.testing.assert_array_equal(table.read(), expected)


def test_gguf_agrees_with_the_packages_own_reader(tmp_path, tensors):
    gguf = pytest.importorskip("gguf")
    path = makers.gguf(tmp_path / "model.gguf", CONFIG, tensors, "F16")
    with open_checkpoint(path) as checkpoint:
        stored = {makers.gguf_name(name): tensor.stored for name, tensor in checkpoint.tensors.items()}
        for tensor in gguf.GGUFReader(path).tensors:
            ours = stored.pop(tensor.name)
            assert ours.shape == tuple(reversed(tensor.shape.tolist()))
            assert (ours.offset, ours.dtype) == (tensor.data_offset, tensor.tensor_type.name)
        assert stored == {}


SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.mark.skipif(not SHARED.is_dir(), reason="no trained model beside the project")
def test_a_trained_model_predicts_its_text():
    """Of 512 pieces of text the right one is far likelier than by chance (6.2 nats) or by frequency alone."""
    folder = SHARED / "tiny-gpt2-shakespeare"
    pieces = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    text = (SHARED / "tinyshakespeare.txt").read_text()[-2000:].replace(" ", "\u0120").replace("\n", "\u010a")
    ids = []
    while text:
        piece = max((p for p in pieces if text.startswith(p)), key=len)
        ids.append(pieces[piece])
        text = text[len(piece) :]
    ids = np.array(ids[:250])
    logits = gpt2cy.GPT.from_pretrained(folder)(ids[:-1]).astype(np.float64)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), ids[1:]]
    assert losses.mean() < 4


# ---- the format is told from the first bytes -------------------------------------------------------------


def test_the_name_says_nothing(tmp_path, tensors, gives):
    config_beside(tmp_path)
    makers.save(tmp_path / "a.gguf", tensors)
    makers.torch_zip(tmp_path / "b.safetensors", tensors)
    makers.torch_old(tmp_path / "c", tensors)
    makers.llmc(tmp_path / "d.pt", CONFIG, tensors)
    makers.gguf(tmp_path / "e.bin", CONFIG, tensors)
    makers.torch_zip(tmp_path / "f.gguf", makers.nanogpt(NANO, tensors))
    for name in ("a.gguf", "b.safetensors", "c", "d.pt", "e.bin"):
        gives(tmp_path / name, CONFIG, tensors)
    gives(tmp_path / "f.gguf", NANO, tensors)


def test_safetensors_under_pytorchs_name(tmp_path, tensors, gives):
    makers.folder(tmp_path, tensors)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    gives(tmp_path, CONFIG, tensors)


# ---- numbers ---------------------------------------------------------------------------------------------

EDGES = np.array([0.0, -0.0, 1.0, -1.5, 65504.0, 6e-8, np.inf, -np.inf, np.nan], np.float16)


@pytest.mark.parametrize("write", ["safetensors", "torch_zip", "torch_old"])
@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_types_become_float32(tmp_path, tensors, gives, write, dtype):
    config_beside(tmp_path)
    path = tmp_path / "model"
    tensors["wte.weight"].reshape(-1)[: len(EDGES)] = EDGES
    if dtype == "bfloat16":
        expected = {name: makers.as_bfloat16(array) for name, array in tensors.items()}
        bits = {name: makers.upper_halves(array) for name, array in tensors.items()}
        given = {name: makers.Bfloat16(array) for name, array in bits.items()}
    else:
        given = {name: array.astype(dtype) for name, array in tensors.items()}
        expected = {name: array.astype(np.float32) for name, array in given.items()}
    if write != "safetensors":
        getattr(makers, write)(path, given)
    elif dtype == "bfloat16":
        entries = [(name, "BF16", list(array.shape), array.tobytes()) for name, array in bits.items()]
        makers.raw_safetensors(path, entries)
    else:
        makers.save(path, given)
    with np.errstate(all="ignore"):
        gives(path, CONFIG, expected)


def test_bfloat16_bit_patterns(tmp_path, tensors, same_bits):
    patterns = [0x3F80, 0xBF80, 0x0001, 0x0080, 0x7F7F, 0x7F80, 0x8000, 0xFF80, 0x7FC1, 0, 0x4049, 0xC000]
    bits = np.array(patterns, "<u2")
    entries = [
        (name, "F32", list(a.shape), a.tobytes()) for name, a in tensors.items() if name != "ln_f.weight"
    ]
    makers.raw_safetensors(
        tmp_path / "model.safetensors", [("ln_f.weight", "BF16", [12], bits.tobytes()), *entries]
    )
    config_beside(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        values = checkpoint.tensors["ln_f.weight"].read()
    same_bits(values, (bits.astype(np.uint32) << 16).view(np.float32))
    known = [1.0, -1.0, 9.1835e-41, 1.17549e-38, 3.38953e38, np.inf, -0.0]
    np.testing.assert_allclose(values[:7], known, rtol=1e-5)


def test_float64_rounds_to_the_nearest_and_never_overflows(tmp_path, tensors):
    given = {name: array.astype(np.float64) for name, array in tensors.items()}
    given["ln_f.weight"][3] = 0.1
    makers.folder(tmp_path, given)
    model = gpt2cy.GPT.from_pretrained(tmp_path)
    assert model.ln_f.gamma[3] == np.float32(0.1)
    given["ln_f.weight"][3] = 1e39
    makers.folder(tmp_path, given)
    with pytest.raises(
        ValueError, match=r"model.safetensors: ln_f.weight \(F64\): .* within float32, found 1e\+39"
    ):
        gpt2cy.GPT.from_pretrained(tmp_path)


@pytest.mark.parametrize("write", [makers.torch_zip, makers.torch_old])
def test_tensors_in_columns(tmp_path, tensors, gives, write):
    """torch saves a transposed tensor as it lies in memory."""
    config_beside(tmp_path)
    given = {n: np.asfortranarray(a) if a.ndim == 2 else a for n, a in tensors.items()}
    gives(write(tmp_path / "model", given), CONFIG, tensors)
    nano = makers.nanogpt(NANO, tensors)
    nano["model"] = {n: np.asfortranarray(a) if a.ndim == 2 else a for n, a in nano["model"].items()}
    gives(write(tmp_path / "ckpt.pt", nano), NANO, tensors)


@pytest.mark.parametrize("name", ["wte.weight", "wpe.weight", "lm_head.weight", "h.0.attn.c_attn.weight"])
def test_a_tensor_larger_than_a_block(tmp_path, gives, monkeypatch, name):
    """Blocks, parts and threads cut wherever they like."""
    from gpt2cy.weights import checkpoint, load

    monkeypatch.setattr(checkpoint, "BLOCK_BYTES", 200)
    monkeypatch.setattr(load, "PART_BYTES", 1000)
    monkeypatch.setattr(load, "WORTH_A_THREAD", 1)
    gpt2cy.set_num_threads(3)
    config = GPTConfig(97, 12, 2, 2, 77, lm_head_bias=False)
    tensors = makers.weights(config)
    for write, columns in ((makers.torch_zip, False), (makers.torch_zip, True)):
        given = dict(tensors)
        if columns:
            given[name] = np.asfortranarray(given[name])
        write(tmp_path / "pytorch_model.bin", given)
        fields = {**FIELDS, "vocab_size": 97, "n_positions": 77, "tie_word_embeddings": False}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        gives(tmp_path, config, tensors)
    makers.gguf(tmp_path / "m.gguf", config, tensors)
    gives(tmp_path / "m.gguf", config, tensors)


# ---- what a checkpoint says of itself --------------------------------------------------------------------


def test_a_checkpoint_describes_itself(tmp_path, tensors):
    folder = makers.folder(
        tmp_path, makers.prefixed(tensors | {"h.0.attn.bias": np.ones((1, 1, 32, 32), np.float32)})
    )
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.config == CONFIG
        assert list(checkpoint.tensors) == list(CONFIG.parameter_shapes())
        described = checkpoint.describe()
        json.dumps(described)
        assert described["format"] == "safetensors"
        assert described["dtypes"] == {"F32": len(tensors)}
        assert described["nbytes"] == 4 * described["n_params"] == 4 * CONFIG.n_params
        assert described["ignored"] == ["transformer.h.0.attn.bias"]
        for name, tensor in checkpoint.tensors.items():
            array = tensor.read()
            assert array.flags.c_contiguous and array.shape == tensor.shape
            np.testing.assert_array_equal(array, tensors[name])
    with pytest.raises((ValueError, OSError)):
        tensor.read()  # closed


def test_transposed_tensors_are_read_as_hugging_face_has_them(tmp_path, tensors):
    makers.llmc(tmp_path / "model.bin", CONFIG, tensors)
    with open_checkpoint(tmp_path / "model.bin") as checkpoint:
        for name, tensor in checkpoint.tensors.items():
            array = tensor.read()
            assert array.flags.c_contiguous
            np.testing.assert_array_equal(array, tensors[name])
