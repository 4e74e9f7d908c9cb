# SPDX-License-Identifier: Apache-2.0
"""`score_rows`, the compiled way into a model: it believes nobody about what indexes memory."""

import numpy as np
import pytest

import gpt2cy
from gpt2cy.generation.rows import score_rows
from gpt2cy.kernels.logits import STATISTICS_DTYPE


@pytest.fixture(scope="module")
def model(build):
    return build(61, 24, 3, 2, 29)


def ids(*values):
    return np.array(values, np.int64)


def given(**changed):
    """Arguments that fit, but for some."""
    good = {
        "sequences": [ids(1, 2, 3), ids(4, 5)],
        "caches": None,
        "firsts": [1, 0],
        "targets": ids(3, 4, 5, 6),
        "limit": 61,
        "top": 2,
    }
    return (good | changed).values()


class Lies(np.ndarray):
    """An array that says it is shorter than it is."""

    def __len__(self):
        return 1


def test_what_fits(model):
    table, top_ids, top_logits = score_rows(model, *given())
    logits = np.concatenate([model([1, 2, 3])[1:], model([4, 5])])
    assert table.dtype == STATISTICS_DTYPE and table["argmax"].tolist() == logits.argmax(1).tolist()
    assert top_ids.tolist() == np.argsort(-logits, axis=1, kind="stable")[:, :2].tolist()
    np.testing.assert_array_equal(top_logits, np.take_along_axis(logits, top_ids, 1))
    nothing = score_rows(model, *given(firsts=[3, 2], targets=ids()))
    assert [len(part) for part in nothing] == [0, 0, 0]


def test_caches_are_continued(model):
    cache, other = model.prefill([7, 8]), model.new_cache()
    table, _, _ = score_rows(model, *given(caches=[cache, other]))
    logits = np.concatenate([model([7, 8, 1, 2, 3])[3:], model([4, 5])])
    assert table["argmax"].tolist() == logits.argmax(1).tolist()
    assert (cache.lengths, other.lengths) == ([5], [2])


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"sequences": []}, ValueError, "sequences: expected at least one sequence"),
        ({"sequences": [ids(1, 2, 3), ids()]}, ValueError, "sequences[1]: expected at least one token"),
        ({"sequences": [ids(1, 2, 3), ids(4, 61)]}, ValueError, "sequences[1]: id 61 at [1] is outside the"),
        ({"sequences": [ids(1, -1, 3), ids(4, 5)]}, ValueError, "sequences[0]: id -1 at [1] is outside the"),
        ({"sequences": [ids(1, 2, 3), ids(4, 2**62)]}, ValueError, "sequences[1]: id 4611686018427387904"),
        (
            {"sequences": [ids(1, 2, 3), [4, 5]]},
            TypeError,
            "sequences[1]: expected an array [T] of int64, got",
        ),
        (
            {"sequences": [ids(1, 2, 3), np.int32([4, 5])]},
            TypeError,
            "sequences[1]: expected an array [T] of int64, got one of int32 and shape [2]",
        ),
        ({"sequences": [np.int32([1, 2, 3])] * 2}, TypeError, "sequences[0]: expected an array [T] of int64"),
        ({"sequences": [ids(1, 2, 3), np.float64([4, 5])]}, TypeError, "sequences[1]: expected an array"),
        ({"sequences": [ids(1, 2, 3), ids(4, 5)[None]]}, TypeError, "sequences[1]: expected an array [T]"),
        ({"sequences": [ids(1, 2, 3), ids(*range(30))]}, ValueError, "sequences[1]: 30 tokens do not fit"),
        ({"sequences": [ids(1, 2, 3).view(Lies), ids(4, 5)]}, ValueError, "sequences: expected 3 ids"),
        ({"firsts": [1]}, ValueError, "firsts: expected 2, one a sequence, got 1"),
        ({"firsts": [-1, 2]}, ValueError, "firsts[0]: expected an integer from 0 to 3, got -1"),
        ({"firsts": [1, 3]}, ValueError, "firsts[1]: expected an integer from 0 to 2, got 3"),
        ({"firsts": [1, 2**80]}, ValueError, "firsts[1]: expected an integer from 0 to 2, got"),
        ({"firsts": [1, 0.0]}, TypeError, "firsts[1]: expected an integer from 0 to 2, got float"),
        ({"targets": ids(3, 4, 5)}, ValueError, "targets: expected 4, one a scored row, got 3"),
        ({"targets": ids(3, 4, 5, 6, 7)}, ValueError, "targets: expected 4, one a scored row, got 5"),
        ({"targets": ids(3, 4, 5, 61)}, ValueError, "targets: id 61 at [3] is outside the limit of 61"),
        ({"targets": ids(3, 4, 5, 6), "limit": 6}, ValueError, "targets: id 6 at [3] is outside the limit"),
        ({"targets": ids(3, -1, 5, 6)}, ValueError, "targets: id -1 at [1] is outside the limit of 61"),
        ({"targets": np.int32([3, 4, 5, 6])}, TypeError, "targets: expected an array [T] of int64, got one"),
        ({"targets": [3, 4, 5, 6]}, TypeError, "targets: expected an array [T] of int64, got list"),
        ({"limit": 62}, ValueError, "limit: expected an integer from 1 to 61, got 62"),
        ({"limit": 0}, ValueError, "limit: expected an integer from 1 to 61, got 0"),
        ({"top": 62}, ValueError, "top: expected an integer from 0 to 61, got 62"),
        ({"top": 8, "limit": 7}, ValueError, "top: expected an integer from 0 to 7, got 8"),
        ({"top": -1}, ValueError, "top: expected an integer from 0 to 61, got -1"),
        ({"caches": ()}, TypeError, "caches: expected a list of KVCache, got tuple"),
        ({"caches": [None, None]}, TypeError, "caches[0]: expected a KVCache, got NoneType"),
    ],
)
def test_arguments(model, changed, error, message):
    with pytest.raises(error) as caught:
        score_rows(model, *given(**changed))
    assert str(caught.value).startswith(message)


def test_caches_that_do_not_fit(model, build):
    wide = build(61, 48, 3, 2, 29)
    cache, full, shallow = model.new_cache(), model.prefill([1] * 28), model.new_cache(capacity=2)
    for caches, message in (
        ([cache], r"^caches: expected 2, one a sequence, got 1"),
        ([cache] * 3, r"^caches: expected 2, one a sequence, got 3"),
        ([cache, cache], r"^caches: the same cache is given twice"),
        ([cache, wide.new_cache()], r"^caches\[1\]: expected a cache of this model .*width 24.* width 48"),
        ([cache, model.new_cache(2)], r"^caches\[1\]: expected a cache of one slot, got 2"),
        ([full, cache], r"^sequences\[0\]: 3 tokens after 28 cached do not fit the block_size of 29"),
        ([shallow, cache], r"^caches\[0\]: slot 0 holds 0 of 2 positions, 3 more do not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            score_rows(model, *given(caches=caches))
    assert (cache.lengths, full.lengths) == ([0], [28])


def test_the_model_counts_and_not_its_config(build):
    """A config that promises a larger vocabulary and more positions."""

    class Sub(gpt2cy.GPT):
        config = gpt2cy.GPTConfig(500, 24, 3, 2, 1000)

    model = Sub(gpt2cy.GPTConfig(61, 24, 3, 2, 29), seed=0)
    assert len(score_rows(model, *given())[0]) == 4
    for changed in (
        {"sequences": [ids(1, 2, 3), ids(4, 499)]},
        {"sequences": [ids(1, 2, 3), ids(*range(30))]},
        {"targets": ids(3, 4, 5, 499)},
        {"limit": 500},
    ):
        with pytest.raises(ValueError):
            score_rows(model, *given(**changed))
