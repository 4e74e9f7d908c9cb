# SPDX-License-Identifier: Apache-2.0
"""Loading: memory, threads, the progress bar, and what happens when it fails half-way."""

import io
import json
import sys
import threading

import makers
import numpy as np
import pytest
from makers import CONFIG, FIELDS

import gpt2cy
from gpt2cy.weights import load, open_checkpoint

PEAK = """
import re, sys, gpt2cy, gpt2cy.weights.load, gpt2cy.weights.sources, safetensors
def peak():  # ru_maxrss would begin with what the parent has
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
before = peak()
model = gpt2cy.GPT.from_pretrained(sys.argv[1])
print(peak() - before, 4 * model.config.n_params)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_peak_memory(tmp_path, python, dtype):
    """A large vocabulary on one small layer, 200 MB: at most 1.15 times the float32 weights."""
    rng = np.random.default_rng(0)
    sizes = {"vocab_size": 200_000, "n_embd": 256, "n_layer": 1}
    config = gpt2cy.GPTConfig(200_000, 256, 2, 1, 32, **makers.TIED)
    tensors = {
        n: rng.standard_normal(s, np.float32).astype(dtype) for n, s in config.parameter_shapes().items()
    }
    folder = makers.folder(tmp_path, tensors, **sizes)
    grown, wanted = map(int, python(PEAK, folder).split())
    assert wanted > 200_000_000
    assert wanted <= grown <= 1.15 * wanted


def test_threads_give_the_same_model(tmp_path, tensors, gives, monkeypatch):
    monkeypatch.setattr(load, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(load, "PART_BYTES", 500)
    folder = makers.folder(tmp_path, tensors)
    for n_threads in (1, 2, 7):
        gpt2cy.set_num_threads(n_threads)
        gives(folder, CONFIG, tensors)
    assert not any(thread.name.startswith("ThreadPool") for thread in threading.enumerate())


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_in_the_middle_comes_out(tmp_path, tensors, monkeypatch, n_threads):
    monkeypatch.setattr(load, "WORTH_A_THREAD", 1)
    gpt2cy.set_num_threads(n_threads)
    given = {name: array.astype(np.float64) for name, array in tensors.items()}
    given["h.1.ln_2.bias"][5] = -1e300
    with pytest.raises(
        ValueError, match=r"h.1.ln_2.bias \(F64\): expected numbers within float32, found -1e\+300"
    ):
        gpt2cy.GPT.from_pretrained(makers.folder(tmp_path, given))


def test_a_model_that_does_not_fit_the_memory(tmp_path, tensors, monkeypatch):
    from gpt2cy.kernels import host

    monkeypatch.setattr(host, "ALWAYS_FITS", 0)
    monkeypatch.setattr(host, "available_memory", lambda: 1000)
    with pytest.raises(MemoryError, match="needed"):
        gpt2cy.GPT.from_pretrained(makers.folder(tmp_path, tensors))


def test_weights_that_are_not_finite_are_loaded(tmp_path, tensors, gives):
    tensors["h.0.mlp.c_fc.weight"][3, 4] = np.nan
    tensors["wpe.weight"][0, 0] = np.inf
    gives(makers.folder(tmp_path, tensors), CONFIG, tensors)


def test_random_weights_are_not_drawn(tmp_path, tensors, monkeypatch):
    monkeypatch.setattr(np.random, "default_rng", lambda *args: pytest.fail("weights were drawn"))
    gpt2cy.GPT.from_pretrained(makers.folder(tmp_path, tensors))


def test_a_loaded_model_is_like_any_other(tmp_path, tensors, same_bits):
    import pickle

    model = gpt2cy.GPT.from_pretrained(makers.folder(tmp_path, tensors))
    same_bits(pickle.loads(pickle.dumps(model))(makers.IDS), model(makers.IDS))
    model.wte.weight = model.wte.weight * 2
    assert not np.array_equal(model.wte.weight, tensors["wte.weight"])


# ---- progress --------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def slow(monkeypatch):
    """Loading seems to take three seconds a step."""
    clock = iter(range(0, 10**6, 3))
    monkeypatch.setattr(load.time, "monotonic", lambda: next(clock))


def loaded_with(monkeypatch, tmp_path, tensors, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    gpt2cy.GPT.from_pretrained(makers.folder(tmp_path, tensors))
    return stream.getvalue()


def test_a_bar_on_a_terminal(monkeypatch, tmp_path, tensors, slow):
    pytest.importorskip("tqdm")
    said = loaded_with(monkeypatch, tmp_path, tensors, Terminal())
    assert "loading: 100%" in said or "loading:" in said
    assert f"/{4 * CONFIG.n_params / 1000:.1f}k" in said


def test_no_bar_elsewhere(monkeypatch, tmp_path, tensors, slow):
    assert loaded_with(monkeypatch, tmp_path, tensors, io.StringIO()) == ""


def test_no_bar_where_it_is_soon_done(monkeypatch, tmp_path, tensors):
    assert loaded_with(monkeypatch, tmp_path, tensors, Terminal()) == ""


def test_no_bar_without_tqdm(monkeypatch, tmp_path, tensors, slow):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert loaded_with(monkeypatch, tmp_path, tensors, Terminal()) == ""


def test_no_stderr_at_all(monkeypatch, tmp_path, tensors, slow):
    monkeypatch.setattr(sys, "stderr", None)
    gpt2cy.GPT.from_pretrained(makers.folder(tmp_path, tensors))


# ---- bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (31, 5), (32, 33), (33, 64), (100, 17), (64, 1)])
@pytest.mark.parametrize("first", [0, 1, 7])
def test_columns_are_packed_as_rows_are(isa, same_bits, shape, first):
    """Transposing moves bits and nothing else: subnormals, infinities and NaN included."""
    from gpt2cy.kernels import dispatch

    dispatch.use(isa)
    vocab, width = shape
    bits = np.random.default_rng(1).integers(0, 2**32, shape, np.uint32)
    bits[0, 0] = 1  # the smallest subnormal
    table = bits.view(np.float32)
    config = gpt2cy.GPTConfig(vocab, width, 1, 1, 8, tie_weights=True)
    model = gpt2cy.GPT(config, seed=0)
    first = min(first, vocab - 1)
    rolled = np.concatenate([table[first:], table[:first]])
    for given in (table, rolled):
        model.wte.weight = given
        np.testing.assert_array_equal(model.wte.weight.view(np.uint32), given.view(np.uint32))
    layer = gpt2cy.Linear(width, vocab, seed=0)
    layer.weight = np.asfortranarray(table.T)
    np.testing.assert_array_equal(layer.weight.view(np.uint32), table.T.view(np.uint32))


def test_the_same_weights_in_every_format(tmp_path, tensors, same_bits):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    makers.save(tmp_path / "a", tensors)
    makers.torch_zip(tmp_path / "b", tensors)
    makers.llmc(tmp_path / "c", CONFIG, tensors)
    makers.gguf(tmp_path / "d", CONFIG, tensors)
    logits = [gpt2cy.GPT.from_pretrained(tmp_path / name)(makers.IDS) for name in "abcd"]
    for other in logits[1:]:
        same_bits(other, logits[0])
    with open_checkpoint(tmp_path / "a") as checkpoint:
        for name, tensor in checkpoint.tensors.items():
            same_bits(tensor.read(), tensors[name])
