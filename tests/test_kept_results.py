# SPDX-License-Identifier: Apache-2.0
"""The memory of a large result serves the model's next one once nobody holds it, and never before."""

import gc
import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gpt2cy
from gpt2cy.kernels import host

IDS = np.arange(125)  # logits of 33.4 MiB
LIMIT = 32 << 20
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


def make():
    """Weights of some 70 MiB."""
    return gpt2cy.GPT(gpt2cy.GPTConfig(70_000, 256, 2, 1, 256, tie_weights=True, lm_head_bias=False), seed=0)


@pytest.fixture
def model():
    return make()


def address(array):
    return array.__array_interface__["data"][0]


def resident():
    """MiB of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def test_memory_is_used_again(model, same_bits):
    """Also for up to a quarter fewer rows, through `next_logits` of many rows, and with a cache."""
    first = model(IDS)
    assert first.nbytes >= LIMIT and not first.flags.owndata
    assert first.flags.writeable and first.flags.c_contiguous
    assert address(first) % 64 == 0
    at, expected = address(first), first.copy()
    first[:] = np.nan
    del first
    for ids in (IDS, IDS[None], IDS[:-3]):
        again = model(ids, model.new_cache() if ids.ndim == 1 else None)
        assert address(again) == at
        same_bits(again.reshape(-1, 70_000), expected[: ids.size])
        del again
    rows = model.next_logits(np.arange(125)[:, None])
    assert address(rows) == at


def test_what_is_held_is_left_alone(model, same_bits):
    first = model(IDS)
    expected = first.copy()
    row = model(IDS[::-1])[7]
    kept = row.copy()
    others = [model(IDS) for _ in range(3)]
    assert len({address(array) for array in (first, row.base, *others)}) == 5
    for array in others:
        array[:] = 0
    same_bits(first, expected)
    same_bits(row, kept)


def test_small_results_and_those_larger_than_the_weights_are_numpys(model):
    assert model(IDS[:119]).nbytes < LIMIT and model(IDS[:119]).flags.owndata
    small = gpt2cy.GPT(gpt2cy.GPTConfig(70_000, 16, 2, 1, 256, tie_weights=True, lm_head_bias=False), seed=0)
    assert small.nbytes < LIMIT < small(IDS).nbytes
    assert small(IDS).flags.owndata
    own = np.empty((125, 70_000), np.float32)
    assert model(IDS, out=own) is own


def test_a_result_outlives_its_model(same_bits):
    model = make()
    result = model(IDS)
    expected = result.copy()
    del model
    gc.collect()
    same_bits(result, expected)
    result += 1


@linux
def test_memory_goes_with_the_model():
    """And before that where the next result is of another size."""
    model = make()
    model(IDS[:3])
    before = resident()
    model(np.arange(250))
    whole = resident() - before
    assert whole > 60
    model(IDS)
    smaller = resident() - before
    assert 25 < smaller < whole - 25
    model(IDS[:3])
    assert abs(resident() - before - smaller) < 5
    del model
    assert resident() < before - 50


def test_kept_memory_is_not_asked_for(model, monkeypatch):
    """A call that would not fit without it does; one that is refused leaves it where it was."""
    result = model(IDS)
    at = address(result)
    del result
    monkeypatch.setattr(host, "_ALWAYS_FITS", 0)
    monkeypatch.setattr(host, "available_memory", lambda: 30 << 20)
    assert address(model(IDS)) == at
    monkeypatch.setattr(host, "available_memory", lambda: 0)
    with pytest.raises(MemoryError, match=r"^tokens: .* needed \(workspace"):
        model(IDS)
    monkeypatch.setattr(host, "available_memory", lambda: 30 << 20)
    result = model(IDS)
    assert address(result) == at
    with pytest.raises(MemoryError, match=r"^tokens: .* needed \(logits 33 MiB, workspace"):
        model(IDS)


def test_many_threads(model, same_bits):
    """Each keeps some of its results for a while: nobody writes into another's."""
    starts = range(4)
    expected = [model(np.arange(start, start + 125)) for start in starts]
    wrong = []

    def call(start):
        choose, held = random.Random(start), []
        for _ in range(12):
            held.append(model(np.arange(start, start + 125)))
            if choose.random() < 0.6:
                held.pop(choose.randrange(len(held)))
            wrong.extend(1 for array in held if not np.array_equal(array, expected[start]))

    threads = [threading.Thread(target=call, args=(start,)) for start in starts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
