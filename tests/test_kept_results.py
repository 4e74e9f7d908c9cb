# SPDX-License-Identifier: Apache-2.0
"""The memory of a large result serves the model's next one once nobody holds it, and never before."""

import contextlib
import gc
import queue
import random
import threading

import numpy as np
import pytest

import gpt2cy
from gpt2cy.kernels import host, memory

IDS = np.arange(125)  # logits of 33.4 MiB
LIMIT = 32 << 20


def make():
    """Weights of some 70 MiB."""
    return gpt2cy.GPT(gpt2cy.GPTConfig(70_000, 256, 2, 1, 256, tie_weights=True, lm_head_bias=False), seed=0)


@pytest.fixture
def model():
    return make()


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again(model, same_bits):
    """Also for up to a quarter fewer rows, through `next_logits` of many rows, and with a cache."""
    first = model(IDS)
    assert first.nbytes >= LIMIT and not first.flags.owndata
    assert first.flags.writeable and first.flags.c_contiguous
    assert address(first) % 64 == 0
    at, expected = address(first), first.copy()
    first[:] = np.nan
    del first
    again = None
    for ids in (IDS, IDS[None], IDS[:-3]):
        del again
        again = model(ids, model.new_cache() if ids.ndim == 1 else None)
        assert address(again) == at
        same_bits(again.reshape(-1, 70_000), expected[: ids.size])
    whole = np.frombuffer(again.base, np.float32)
    same_bits(whole[-70_000:], expected[-1])  # of the call before: no new memory has that
    del again, whole
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


def test_kept_memory_is_not_asked_for(model, monkeypatch):
    """A call that would not fit without it does; one that is refused leaves it where it was."""
    result = model(IDS)
    at = address(result)
    del result
    monkeypatch.setattr(host, "ALWAYS_FITS", 0)
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


@pytest.mark.parametrize("way", ["forward_many", "next_logits_many", "release_memory"])
def test_it_is_given_back(model, monkeypatch, way):
    """To a call of another kind that would not fit otherwise, and to whoever asks."""
    kept = model(IDS)
    del kept
    monkeypatch.setattr(host, "ALWAYS_FITS", 0)
    if way == "release_memory":
        model.release_memory()
    else:
        left = iter([0, 1 << 30])  # nothing at first, enough after that
        monkeypatch.setattr(host, "available_memory", lambda: next(left))
        getattr(model, way)([IDS[:3]])
    monkeypatch.setattr(host, "available_memory", lambda: 0)
    with pytest.raises(MemoryError, match=r"^tokens: .* needed \(logits 33 MiB, workspace"):
        model(IDS)  # of which it has none any more
    with pytest.raises(MemoryError, match=r"^sequences: "):
        model.forward_many([IDS[:3]])


def test_an_allocation_that_fails(model):
    """Then NumPy is asked, and what its result needs is there; nothing is kept of a call that raises."""
    memory.fail_allocations(0)
    try:
        with pytest.raises(MemoryError, match="workspace"):
            model(IDS)
    finally:
        memory.fail_allocations(-1)
    kept = model(IDS)
    del kept
    memory.fail_allocations(0)
    try:
        assert model(IDS).nbytes >= LIMIT  # workspace and result are both there
        model.release_memory()
        with pytest.raises(MemoryError, match="workspace"):
            model(IDS)
    finally:
        memory.fail_allocations(-1)


def test_many_threads(model):
    """Each holds some of its results for a while; others go in another thread. Nobody's are written into."""
    starts = range(4)
    expected = [model(np.arange(start, start + 125)) for start in starts]
    found, elsewhere = [], queue.SimpleQueue()

    def call(start):
        choose, held = random.Random(start), []
        try:
            for _ in range(12):
                held.append(model(np.arange(start, start + 125)))
                if len(held) > 2 or choose.random() < 0.6:
                    elsewhere.put(held.pop(choose.randrange(len(held))))
                found.append(all(np.array_equal(array, expected[start]) for array in held))
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=call, args=(start,)) for start in starts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or not elsewhere.empty():
        with contextlib.suppress(queue.Empty):
            elsewhere.get(timeout=0.01)
    assert found == [True] * 48
