# SPDX-License-Identifier: Apache-2.0
"""Rows in parts, one for each worker, through a whole block: how they are cut, and no bit depends on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy
from gpt2cy import workspace
from gpt2cy.kernels import threads

NEAR = 64, 256  # width and inner width of a block that stays in a core's caches
FAR = 1024, 4096  # and of one that does not


def parts_of(lengths, positions=None, sizes=NEAR, n_threads=2):
    return workspace.parts_of(lengths, positions or [0] * len(lengths), *sizes, n_threads)


def rows_of(part):
    return sum(n_rows for _, n_rows, _ in part[1])


@pytest.mark.parametrize(
    "n, sizes, n_threads, divided",
    [
        (11, NEAR, 2, False),
        (12, NEAR, 2, True),
        (47, FAR, 2, False),
        (48, FAR, 2, True),
        (48, FAR, 3, False),
        (500, NEAR, 1, False),
    ],
)
def test_when_rows_are_divided(n, sizes, n_threads, divided):
    assert bool(parts_of([n], sizes=sizes, n_threads=n_threads)) == divided


@pytest.mark.parametrize("n_threads", [2, 3, 7, 16])
@pytest.mark.parametrize(
    "lengths, positions",
    [
        ([400], [0]),
        ([400], [600]),
        ([1] * 200, [5] * 200),
        ([3, 200, 1, 1, 90, 17], [0, 3, 900, 1, 64, 63]),
        ([1, 399], [1000, 0]),
    ],
)
def test_parts_are_all_rows_once_in_order(lengths, positions, n_threads):
    wanted = [(i, positions[i] + j) for i, length in enumerate(lengths) for j in range(length)]
    first_of = np.cumsum([0, *lengths])
    got = []
    parts = parts_of(lengths, positions, n_threads=n_threads)
    assert len(parts) == n_threads
    for first, sequences in parts:
        assert sequences and first == len(got)
        for row, n_rows, position in sequences:
            assert n_rows >= 1 and first + row == len(got)
            sequence = int(np.searchsorted(first_of, len(got), "right")) - 1
            got += [(sequence, position + j) for j in range(n_rows)]
    assert got == wanted


@given(
    cheap=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    dear=st.lists(st.sampled_from([63, 1000, 100_000]), max_size=5),
    n_threads=st.integers(2, 16),
)
def test_no_part_is_empty(cheap, dear, n_threads):
    lengths, positions = cheap + [1] * len(dear), [0] * len(cheap) + dear
    parts = parts_of(lengths, positions, (16, 64), n_threads)
    assert all(rows_of(part) >= 1 for part in parts)
    assert sum(map(rows_of, parts)) == (sum(lengths) if parts else 0)


def test_a_few_rows_that_cost_as_much_as_all_others(python):
    """Such a batch once left a part without rows, of which a product divided by their number."""
    code = """
import numpy as np, gpt2cy
gpt2cy.set_num_threads(1)
model = gpt2cy.GPT(gpt2cy.GPTConfig(64, 16, 2, 1, 8192), seed=0)
caches = [model.new_cache() for _ in range(52)]
for cache in caches[-2:]:
    model.next_logits(np.arange(5000) % 64, cache)
want = model.forward_many([[1]] * 52, [cache.copy() for cache in caches])
gpt2cy.set_num_threads(4)
got = model.forward_many([[1]] * 52, caches)
print(all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True)))
"""
    assert python(code).strip() == "True"


def test_parts_cost_the_same():
    """Later rows see more keys, so a part has fewer of them; where products count alone, parts are equal."""
    cost = [
        sum(n * (12 * 64 + 1.5 * (2 * position + n)) for _, n, position in sequences)
        for _, sequences in parts_of([1000], n_threads=4)
    ]
    assert max(cost) < 1.02 * min(cost)
    few = [rows_of(part) for part in parts_of([64], sizes=FAR)]
    assert few == [32, 32]
    many = [rows_of(part) for part in parts_of([1000])]
    assert 600 < many[0] < 700


SHAPES = {
    "rectangle": [[12] * 4],
    "one sequence": [[130]],
    "ragged": [[5, 70, 1, 64, 33]],
    "in pieces": [[60, 60], [9, 65], [20, 3]],
}


@pytest.mark.parametrize("lengths", SHAPES.values(), ids=SHAPES)
def test_bits_do_not_depend_on_the_parts(build, same_bits, fused_isa, lengths):
    model = build(97, 64, 4, 3, 160)
    rng = np.random.default_rng(0)
    pieces = [[rng.integers(0, 97, n) for n in step] for step in lengths]

    def outputs(n):
        gpt2cy.set_num_threads(n)
        caches = [model.new_cache() for _ in pieces[0]]
        got = [array for step in pieces for array in model.forward_many(step, caches)]
        return got + model.forward_many(pieces[0])

    want = outputs(1)
    for n in (2, 3, 5):
        for a, b in zip(outputs(n), want, strict=True):
            same_bits(a, b)


def test_a_block_alone_is_divided_too(same_bits):
    block = gpt2cy.Block(gpt2cy.GPTConfig(97, 64, 4, 1, 160), seed=0)
    x = np.random.default_rng(0).standard_normal((2, 50, 64))
    gpt2cy.set_num_threads(1)
    want = block(x)
    gpt2cy.set_num_threads(3)
    same_bits(block(x), want)


@pytest.mark.skipif(threads.openmp_version() == 0, reason="a serial build has one thread")
@pytest.mark.parametrize("limit", ["1", "2"])
def test_fewer_threads_than_asked_for_do_not_wait_for_the_others(python, limit):
    """OpenMP may give a loop fewer threads than it asks for; those who meet would wait for ever."""
    code = """
import hashlib, gpt2cy
model = gpt2cy.GPT(gpt2cy.GPTConfig(97, 64, 4, 2, 160), seed=0)
print(hashlib.sha256(model.forward([list(range(60))] * 2).tobytes()).hexdigest())
"""
    want = python(code, GPT2CY_NUM_THREADS="1")
    assert python(code, GPT2CY_NUM_THREADS="3", OMP_THREAD_LIMIT=limit, timeout=60) == want
