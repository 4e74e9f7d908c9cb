# SPDX-License-Identifier: Apache-2.0
"""Shared beginnings: found, computed once, and the same bits as without."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt2cy.generation import prefix
from gpt2cy.kernels import dispatch

SIZES = (61, 20, 5, 2, 150)


class Counting:
    """A model that counts the rows it computes, and those it gives logits of."""

    def __init__(self, model):
        self.model, self.lm_head, self.passes, self.wanted = model, model.lm_head, [], 0

    def new_cache(self):
        return self.model.new_cache()

    def next_logits_many(self, sequences, caches=None, *, out=None):
        result = self.model.next_logits_many(sequences, caches, out=out)
        self.passes.append(sum(map(len, sequences)))
        self.wanted += len(result)
        return result


@pytest.fixture(scope="module")
def model(build):
    return build(*SIZES)


def arrays(prompts):
    return [np.array(ids, np.int64) for ids in prompts]


def paths(plan):
    """The ids of each prompt, put together along its nodes, by the prompt's number."""
    found = {}
    for level in plan:
        for node in level:
            whole, above = node.ids.tolist(), node.parent
            while above is not None:
                whole, above = [*above.ids.tolist(), *whole], above.parent
            found |= dict.fromkeys(node.prompts, whole)
    return found


prompt_lists = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@given(prompts=prompt_lists, least=st.integers(1, 30))
def test_every_prompt_is_a_path(prompts, least):
    plan = prefix.levels(arrays(prompts), least)
    assert paths(plan) == dict(enumerate(prompts))
    for above, level in zip([[], *plan], plan, strict=False):
        assert all(len(node.ids) for node in level)
        assert all((node.parent is None and level is plan[0]) or node.parent in above for node in level)


@given(prompts=prompt_lists)
def test_where_everything_is_shared_each_beginning_is_there_once(prompts):
    """As many rows as there are different beginnings."""
    plan = prefix.levels(arrays(prompts), 1)
    different = {tuple(ids[: i + 1]) for ids in prompts for i in range(len(ids))}
    assert sum(len(node.ids) for level in plan for node in level) == len(different)


def test_a_level_has_to_save_rows():
    """One more pass for one row costs more than it saves; a longer beginning deeper down is still found."""
    few = arrays([[1, 2], [1, 3]])
    assert len(prefix.levels(few)) == 1
    long = [9] * 40
    plan = prefix.levels(arrays([[1, 2, *long, 3], [1, 2, *long, 4], [1, 5]]))
    assert [[len(node.ids) for node in level] for level in plan] in ([[42, 2], [1, 1]], [[2, 42], [1, 1]])


def test_rows_are_computed_once(model, same_bits):
    """A beginning of 100 ids that 8 prompts share costs 100 rows, and only last positions get logits."""
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 61, 100)
    prompts = [np.concatenate([shared, rng.integers(0, 61, 1 + i)]) for i in range(8)]
    counting = Counting(model)
    logits, rows, caches = prefix.compute(counting, prompts, model.new_cache)
    assert sum(counting.passes) == 100 + sum(range(1, 9))
    assert counting.wanted == len(logits) == 8
    assert len({id(cache) for cache in caches}) == 8
    for ids, row, cache in zip(prompts, rows, caches, strict=True):
        same_bits(logits[row], model.next_logits(ids))
        assert cache.tokens[0].tolist() == ids.tolist()
        same_bits(model.next_logits([7], cache), model.next_logits([*ids, 7]))


def test_equal_prompts_are_one(model):
    counting = Counting(model)
    logits, rows, caches = prefix.compute(counting, arrays([[1, 2], [3], [1, 2], [1, 2]]), model.new_cache)
    assert (counting.passes, logits.shape) == ([3], (2, 61))
    assert rows[0] == rows[2] == rows[3] != rows[1]
    assert caches[0] is caches[2]


@given(data=st.data())
@settings(max_examples=8)
def test_the_same_bits_as_without(isa, model, same_bits, data):
    dispatch.use(isa)
    shared = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=70))
    tails = data.draw(st.lists(st.lists(st.integers(0, 1), max_size=40), min_size=1, max_size=6))
    prompts = arrays([shared + tail for tail in tails])
    logits, rows, _ = prefix.compute(model, prompts, model.new_cache)
    for ids, row in zip(prompts, rows, strict=True):
        same_bits(logits[row], model.next_logits(ids))


@pytest.mark.parametrize("lengths", [[1], [2048], [5000], [1000] * 5, [1] * 3000, [2047, 1, 1], [1, 5000, 1]])
def test_pieces(lengths):
    """Large levels go in passes of bounded rows."""
    cut = [lengths[piece] for piece in prefix.pieces(lengths)]
    assert [length for piece in cut for length in piece] == lengths
    assert all(sum(piece) <= prefix.MOST_ROWS or len(piece) == 1 for piece in cut)


def test_many_rows_go_in_several_passes(model, same_bits, monkeypatch):
    monkeypatch.setattr(prefix, "MOST_ROWS", 50)
    prompts = arrays([[i, *range(20)] for i in range(9)])
    counting = Counting(model)
    logits, rows, _ = prefix.compute(counting, prompts, model.new_cache)
    assert counting.passes == [42, 42, 42, 42, 21]
    for ids, row in zip(prompts, rows, strict=True):
        same_bits(logits[row], model.next_logits(ids))
