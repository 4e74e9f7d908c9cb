# SPDX-License-Identifier: Apache-2.0
"""Mutated files of every format: a model or a documented error, soon, and no more memory than twice the file.

The quick form runs with all tests; `make test-exhaustive` runs twenty thousand files of each format.
"""

import random
import struct
import sys
import time
import tracemalloc
import warnings

import makers
import pytest
from makers import CONFIG

import gpt2cy

DOCUMENTED = (ValueError, OSError)
SLACK = 1 << 20  # bytes that names and shapes take as Python objects, whatever the file's size
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
LARGE = (2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def files(folder):
    """Path of a file of each format."""
    tensors = makers.weights()
    nano = makers.nanogpt(CONFIG, tensors)
    yield makers.folder(folder / "safetensors", tensors) / "model.safetensors"
    yield makers.torch_zip(makers.folder(folder / "torch", {}) / "pytorch_model.bin", tensors)
    yield makers.torch_old(makers.folder(folder / "old", {}) / "pytorch_model.bin", tensors)
    yield makers.torch_zip(makers.folder(folder / "nanogpt", {}) / "ckpt.pt", nano)
    yield makers.llmc(makers.folder(folder / "llm.c", {}) / "gpt2.bin", CONFIG, tensors)
    if "gguf" in sys.modules or pytest.importorskip("gguf"):
        yield makers.gguf(makers.folder(folder / "gguf", {}) / "model.gguf", CONFIG, tensors, "F16")
    makers.sharded(folder / "index", tensors)
    yield folder / "index" / "model.safetensors.index.json"
    yield makers.folder(folder / "config", tensors) / "config.json"


NAMES = ("safetensors", "torch", "old", "nanogpt", "llm.c", "gguf", "index", "config")


def mutated(rng, content):
    """A copy with some bytes, lengths or parts changed, mostly near the ends, where headers are."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data) or 1)
        if rng.random() < 0.8:
            near = min(len(data), rng.choice((16, 64, 300, 3000)))
            at = rng.choice((rng.randrange(near or 1), max(0, len(data) - 1 - rng.randrange(near or 1))))
        kind = rng.randrange(8)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at : at + rng.choice((1, 4, 8, 100))]
        elif kind == 2:
            data[at:at] = data[at : at + rng.choice((1, 8, 100))]
        elif kind == 3:
            data[at : at + 4] = struct.pack(rng.choice(("<I", ">I")), rng.choice(NUMBERS))
        elif kind == 4:
            data[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS + LARGE))
        elif kind == 5:
            other = rng.randrange(len(data) or 1)
            data[at : at + 16] = data[other : other + 16]
        elif data:
            for i in range(at, min(len(data), at + rng.choice((1, 1, 1, 3)))):
                data[i] = rng.choice((data[i] ^ 1 << rng.randrange(8), rng.randrange(256), *b'0-9e{}[]".'))
    return bytes(data)


def try_files(path, count, seed):
    """Load that many mutations of a file; how many of them were models."""
    content = path.read_bytes()
    whole = sum(file.stat().st_size for file in path.parent.iterdir())
    source = path if path.suffix != ".json" else path.parent
    rng = random.Random(seed)
    models = 0
    gpt2cy.GPT.from_pretrained(source)  # imports what it needs
    tracemalloc.start()
    try:
        for i in range(count):
            path.write_bytes(mutated(rng, content))
            tracemalloc.reset_peak()
            before, start = tracemalloc.get_traced_memory()[0], time.process_time()
            try:
                gpt2cy.GPT.from_pretrained(source)
                models += 1
            except DOCUMENTED as error:
                assert 0 < len(str(error)) < 10_000
            except Exception as error:
                raise AssertionError(f"mutation {i} of seed {seed}: {type(error).__name__}") from error
            assert time.process_time() - start < 5, f"mutation {i} of seed {seed} takes too long"
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak <= 2 * whole + SLACK, f"mutation {i} of seed {seed} takes {peak:,} bytes"
    finally:
        tracemalloc.stop()
        path.write_bytes(content)
    gpt2cy.GPT.from_pretrained(source)
    return models


def run(folder, name, count, seed):
    path = dict(zip(NAMES, files(folder), strict=True))[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a head that differs
        models = try_files(path, count, seed)
    assert 0 < models < count  # both ways out are taken


@pytest.mark.parametrize(
    "count", [200, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.exhaustive])]
)
@pytest.mark.parametrize("name", NAMES)
def test_mutated_files(tmp_path, name, count):
    run(tmp_path, name, count, seed=count)
