# SPDX-License-Identifier: Apache-2.0
"""Rows of logits to ids: greedy, penalties, bans, draws, and what must not reach a draw."""

import contextlib
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import formula
import numpy as np
import pytest

import gpt2cy
from gpt2cy.generation.sampler import Sampler, choose, philox, uniform
from gpt2cy.generation.sampling import Sampling
from gpt2cy.kernels import dispatch, memory, raw

INF, NAN = math.inf, math.nan


def array(*rows):
    return np.array(rows, np.float32)


def sampler(vocab_size, prompt=(), seed=0, row=0, sample=0, **settings):
    return Sampler(Sampling(**settings), vocab_size, seed, row, sample, list(prompt))


def chosen(logits, prompt=(), **settings):
    """The id chosen from one row."""
    logits = array(logits)
    return int(choose([sampler(logits.shape[1], prompt, **settings)], logits)[0][0])


def drawn(logits, n_draws, **settings):
    """Ids that so many samples of one prompt draw."""
    rows = [sampler(len(logits), sample=i, **settings) for i in range(n_draws)]
    return choose(rows, np.tile(array(logits), (n_draws, 1)))[0]


def edited(scores, prompt=(), generated=(), **settings):
    row = sampler(len(scores), prompt, **settings)
    for token in generated:
        row.accept(token)
    scores = array(*scores)
    row.edit(scores)
    return scores


def softmax(x):
    x = np.exp(np.asarray(x, np.float64) - max(x))
    return x / x.sum()


# ---- random numbers


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    """Random123's kat_vectors, philox4x32 with 10 rounds."""
    assert " ".join(f"{word:08x}" for word in philox(counter, key)) == words


def test_uniform_is_a_function_of_everything_it_names():
    seen = {
        uniform(seed, row, sample, step)
        for seed in (0, 1, -1, 2**32, 2**63)
        for row in (0, 1, 2**32 - 1)
        for sample in (0, 1, 7)
        for step in (0, 1, 2**40)
    }
    assert len(seen) == 5 * 3 * 3 * 3
    assert uniform(-1, 0, 0, 0) == uniform(2**64 - 1, 0, 0, 0)
    assert all(0 <= u < 1 and u * 2**53 == int(u * 2**53) for u in seen)
    for name, arguments in {"seed": (2**64, 0, 0, 0), "row": (0, -1, 0, 0), "step": (0, 0, 0, -1)}.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            uniform(*arguments)


def test_uniform_is_uniform():
    u = np.array(
        [uniform(7, row, sample, step) for row in range(20) for sample in range(20) for step in range(50)]
    )
    counts = np.histogram(u, 64, (0, 1))[0]
    assert chi_square(counts, np.full(64, 1 / 64)) < limit(63)
    pairs = np.histogram2d(u[:-1], u[1:], 8, [(0, 1)] * 2)[0].reshape(-1)
    assert chi_square(pairs, np.full(64, 1 / 64)) < limit(63)


# ---- greedy, and temperatures (GEN-03)


def test_greedy_is_the_lowest_id_of_the_largest():
    assert chosen([1, 3, 2], temperature=0) == 1
    assert chosen([0, 90, 89.9], temperature=0) == 1
    assert chosen([2, 5, 5, 5, -INF], temperature=0) == 1
    assert chosen([2, 5, 5, 5, -INF], top_k=1) == 1


@pytest.mark.parametrize("temperature", [0, 1e-45, 1e-30, 1e-4])
def test_a_tiny_temperature_is_greedy(temperature):
    assert set(drawn([1, 3, 2], 50, temperature=temperature)) == {1}
    assert set(drawn([0, 90, 89.9], 50, temperature=temperature)) == {1}


@pytest.mark.parametrize("temperature", [1e6, 1e38, 1e300])
def test_a_huge_temperature_is_nearly_uniform(temperature):
    counts = np.bincount(drawn([1, 3, 2, -INF], 3000, temperature=temperature), minlength=4)
    assert counts[3] == 0
    assert chi_square(counts[:3], np.full(3, 1 / 3)) < limit(2)


# ---- draws against probabilities


def chi_square(counts, p):
    expected = counts.sum() * p
    return (((counts - expected) ** 2)[p > 0] / expected[p > 0]).sum()


def limit(degrees):
    """Above which one in some 10,000 falls; the seeds are fixed, so a test either passes or does not."""
    return degrees + 3.72 * math.sqrt(2 * degrees) + 9


@pytest.mark.parametrize(
    ("settings", "kept", "scale"),
    [
        ({}, range(8), 1),
        ({"temperature": 2.0}, range(8), 0.5),
        ({"top_k": 3}, [1, 4, 6], 1),
        ({"top_p": 0.5}, [1, 4], 1),
        ({"min_p": 0.3}, [1, 4], 1),
        ({"top_k": 5, "top_p": 0.9}, [1, 4, 6, 7], 1),
    ],
    ids=str,
)
def test_frequencies_are_the_probabilities(settings, kept, scale):
    logits = [0.0, 2.0, -3.0, 0.3, 1.5, -1.0, 0.7, 0.5]
    p = softmax([scale * x if i in kept else -INF for i, x in enumerate(logits)])
    counts = np.bincount(drawn(logits, 8000, seed=3, **settings), minlength=8)
    assert set(np.flatnonzero(counts)) == set(kept)
    assert chi_square(counts, p) < limit(len(kept) - 1)


def test_frequencies_over_rows_and_steps_too():
    logits = [0.0, 1.0, -1.0, 0.5]
    rows = [sampler(4, seed=11, row=row) for row in range(500)]
    counts = np.zeros(4)
    for _ in range(20):
        ids = choose(rows, np.tile(array(logits), (500, 1)))[0]
        counts += np.bincount(ids, minlength=4)
        for row, token in zip(rows, ids, strict=True):
            row.accept(token)
    assert chi_square(counts, softmax(logits)) < limit(3)


def test_a_vocabulary_with_top_p():
    """20,000 draws from 50,257 logits: nothing outside the nucleus, and its parts by their weight."""
    x = np.random.default_rng(5).standard_normal(50257).astype(np.float32) * 2
    kept = raw.select(x, top_p=0.9)[0]
    us = [uniform(1, 0, 0, step) for step in range(20000)]
    ids = raw.select(x, top_p=0.9, draws=us)[1]
    assert (kept[ids] > 0).all()
    parts = np.arange(50257) // 1000
    p = np.bincount(parts, kept.astype(np.float64))
    assert chi_square(np.bincount(parts[ids], minlength=51), p / p.sum()) < limit(50)


# ---- top_p and top_k at their edges (GEN-04, GEN-06)


@pytest.mark.parametrize("p", [0, 1e-45, 1e-8])
def test_a_tiny_top_p_keeps_the_largest(p):
    x = np.random.default_rng(0).standard_normal(4096)
    assert set(drawn(x, 100, top_p=p)) == {np.argmax(x.astype(np.float32))}


@pytest.mark.parametrize("p", [1.0, None])
def test_top_p_of_one_changes_nothing(p):
    x = np.random.default_rng(0).standard_normal(4096)
    np.testing.assert_array_equal(drawn(x, 200, top_p=p), drawn(x, 200))


def test_top_k_at_its_edges():
    x = [0.0, 2.0, 1.0, -1.0, 0.5]
    everything = drawn(x, 400)
    for k in (None, 0, 5, 6, 10**9, 10**30):
        np.testing.assert_array_equal(drawn(x, 400, top_k=k), everything)
    assert set(drawn(x, 400, top_k=1)) == {1}
    assert set(drawn(x, 400, top_k=2)) == {1, 2}
    assert set(everything) == {0, 1, 2, 3, 4}


# ---- penalties (GEN-08) and bans


def test_repetition_penalty():
    np.testing.assert_array_equal(
        edited([2, -2, 1], [0, 0, 1], repetition_penalty=1.2),
        array(np.float32(2) / np.float32(1.2), np.float32(-2) * np.float32(1.2), 1),
    )
    np.testing.assert_array_equal(edited([2, -2, 0], [0, 1, 2], repetition_penalty=0.5), array(4, -1, 0))
    np.testing.assert_array_equal(edited([2, -2, 1], [0], [1], repetition_penalty=2), array(1, -4, 1))
    scores = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    np.testing.assert_array_equal(edited(scores, range(50), repetition_penalty=1), scores)


def test_presence_and_frequency_count_what_was_generated():
    plain = [1.0, 2.0, 3.0, 4.0]
    new = [1, 2, 1, 1]
    np.testing.assert_array_equal(edited(plain, [3, 3], new, presence_penalty=0.5), array(1, 1.5, 2.5, 4))
    np.testing.assert_array_equal(edited(plain, [3, 3], new, frequency_penalty=0.5), array(1, 0.5, 2.5, 4))
    both = {"presence_penalty": -1, "frequency_penalty": 0.25, "repetition_penalty": 2}
    np.testing.assert_array_equal(edited(plain, [3, 3], new, **both), array(1, 1.25, 2.25, 2))


def ngram_bans(ids, size, vocab_size):
    """Ids that would complete a run of `size` a second time, by the definition."""
    runs = {tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)}
    return {token for token in range(vocab_size) if (*ids[len(ids) - size + 1 :], token) in runs}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 30, 10**12])
def test_no_repeat_ngram(size):
    rng = np.random.default_rng(size % 100)
    for n in (0, 1, 2, 5, 40):
        ids = rng.integers(0, 4, n).tolist()
        scores = edited([0.0] * 6, ids[: n // 2], ids[n // 2 :], no_repeat_ngram_size=size)
        expected = ngram_bans(ids, size, 6) if size <= n else set()
        assert set(np.flatnonzero(scores == -INF)) == expected


def test_bias_and_limit():
    np.testing.assert_array_equal(
        edited([1, 2, 3, 4], logit_bias={0: 5, 3: -INF}, vocab_limit=3), array(6, 2, 3, -INF)
    )
    assert edited([1, 2], vocab_limit=10).tolist() == [1, 2]
    assert set(drawn([9, 9, 9, 9], 100, vocab_limit=2)) == {0, 1}
    assert chosen([1, 2, 3], temperature=0, logit_bias={0: 2.5}) == 0


def test_constrain():
    seen = []

    def even(ids):
        seen.append(ids.tolist())
        return [0, 2]

    row = sampler(4, [3, 1], constrain=even, temperature=0)
    assert choose([row], array([0, 9, 1, 9]))[0].tolist() == [2]
    row.accept(2)
    assert choose([row], array([5, 9, 1, 9]))[0].tolist() == [0]
    assert seen == [[3, 1], [3, 1, 2]]
    for answer in ([1], (1,), {1}, np.array([1]), [False, True, False], np.array([False, True, False])):
        assert chosen([5, 1, 5], constrain=lambda ids, answer=answer: answer) == 1
    assert chosen([5, 1, 7], constrain=lambda ids: None, temperature=0) == 2


def test_constrain_gets_a_copy_that_cannot_be_written():
    def write(ids):
        assert ids.dtype == np.int64
        ids[0] = 5

    row = sampler(4, [3], constrain=write)
    with pytest.raises(ValueError, match="read-only"):
        choose([row], array([1, 2, 3, 4]))
    assert row.ids.tolist() == [3]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ([3], ValueError, "constrain: id 3 at .0. is outside the vocabulary of 3"),
        ([-1], ValueError, "constrain: id -1"),
        ([True, False], ValueError, r"constrain: expected a mask of shape \[3\].*got a mask of shape \[2\]"),
        (np.ones((1, 3), bool), ValueError, r"constrain: expected a mask of shape \[3\]"),
        ([0.5], TypeError, "constrain: expected integer ids"),
        ("ab", TypeError, "constrain: expected integer ids"),
        ([], ValueError, "constrain, .*: expected at least one id to be left, got none in row 0"),
        ([False] * 3, ValueError, "at least one id"),
    ],
    ids=str,
)
def test_what_constrain_may_not_say(answer, error, message):
    with pytest.raises(error, match=message):
        chosen([1, 2, 3], constrain=lambda ids: answer)


def test_an_error_in_constrain_leaves_everything_usable():
    def fail(ids):
        raise RuntimeError("mine")

    good, bad = sampler(3, temperature=0), sampler(3, constrain=fail)
    with pytest.raises(RuntimeError, match="mine"):
        choose([good, bad], array([1, 2, 0], [1, 2, 0]))
    assert (good.step, bad.step) == (0, 0)
    assert choose([good], array([1, 2, 0]))[0].tolist() == [1]


def test_constrain_may_use_the_sampler_and_choose():
    def nested(ids):
        row.accept(1)
        return [chosen([0, 9, 1], temperature=0)]

    row = sampler(3, constrain=nested, repetition_penalty=1.5, no_repeat_ngram_size=50)
    for i in range(40):
        assert choose([row], array([5, 1, 5]))[0].tolist() == [1]
        assert row.step == i + 1


# ---- what is not finite (GEN-10)


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0}, {"top_k": 3}, {"logprobs": 1}, {"repetition_penalty": 2}]
)
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("places", [[0], [2000], [4095], [5, 3000]])
def test_logits_that_are_not_finite(settings, bad, places):
    x = np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32)
    x[1, places] = bad
    rows = [sampler(4096, [places[0]], row=row, **settings) for row in (4, 5)]
    for row in rows:
        row.accept(1)
    with pytest.raises(FloatingPointError, match=r"logits: expected finite .* in row 5, sample 0, at step 1"):
        choose(rows, x.copy())
    x[1, places] = -INF
    assert len(choose(rows, x)[0]) == 2


def test_a_ban_does_not_hide_a_nan():
    with pytest.raises(FloatingPointError):
        chosen([1, NAN, 2], logit_bias={1: -INF})
    with pytest.raises(FloatingPointError):
        chosen([1, 2, NAN], vocab_limit=2)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"logprobs": 0}, {"logit_bias": {0: 1.0}}])
def test_all_minus_infinity(settings):
    with pytest.raises(FloatingPointError, match="nothing but -Inf in row 0"):
        chosen([-INF] * 5, **settings)


def test_edits_that_overflow():
    with pytest.raises(FloatingPointError, match="penalties and logit_bias led to NaN"):
        chosen([3e38, 0], logit_bias={0: 3e38})
    with pytest.raises(FloatingPointError, match="penalties"):
        chosen([1e30, 0], [0], repetition_penalty=1e-30, temperature=0)


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {}])
def test_nothing_is_left(greedy):
    for settings in (
        {"logit_bias": {0: -INF, 1: -INF}},
        {"no_repeat_ngram_size": 1},
        {"vocab_limit": 1, "logit_bias": {0: -INF}},
    ):
        with pytest.raises(
            ValueError, match="at least one id to be left, got none in row 0, sample 0, at step 0"
        ):
            chosen([1, 2], [0, 1], **settings, **greedy)


# ---- log-probabilities


def test_logprobs_are_the_models_own():
    """Of the row as it came, whatever was done to it; the same bits that scoring gives."""
    x = np.random.default_rng(3).standard_normal((4, 1000)).astype(np.float32) * 3
    settings = {"temperature": 0.7, "repetition_penalty": 1.5, "logit_bias": {7: 10.0}, "top_k": 20}
    rows = [sampler(1000, [1, 2, 3], row=i, logprobs=3, **settings) for i in range(3)]
    rows.append(sampler(1000, row=3))
    ids, logprobs, tops = choose(rows, x.copy())
    assert ids.dtype == np.int64 and logprobs.dtype == np.float32
    np.testing.assert_array_equal(logprobs[:3], raw.statistics(x, ids)["logprob"][:3])
    assert math.isnan(logprobs[3]) and tops[3] is None
    exact = x[0].astype(np.float64) - x[0].max()
    exact -= math.log(np.exp(exact).sum())
    assert [token for token, _ in tops[0]] == np.argsort(-exact, kind="stable")[:3].tolist()
    np.testing.assert_allclose([logprob for _, logprob in tops[0]], np.sort(exact)[::-1][:3], rtol=1e-6)
    for top, row in zip(tops[:3], x, strict=False):
        for token, logprob in top:
            assert np.float32(logprob) == raw.statistics(row[None], [token])["logprob"][0]


def test_wanting_logprobs_does_not_change_the_choice():
    x = np.random.default_rng(4).standard_normal((30, 500)).astype(np.float32)
    for settings in ({}, {"temperature": 0}, {"repetition_penalty": 3.0, "top_p": 0.8}):
        plain = choose([sampler(500, range(100), row=i, **settings) for i in range(30)], x.copy())
        asked = choose([sampler(500, range(100), row=i, logprobs=2, **settings) for i in range(30)], x.copy())
        model = choose([sampler(500, range(100), row=i, **settings) for i in range(30)], x.copy(), True)
        np.testing.assert_array_equal(plain[0], asked[0])
        np.testing.assert_array_equal(plain[0], model[0])
        np.testing.assert_array_equal(asked[1], model[1])
        assert np.isnan(plain[1]).all() and model[2] == [None] * 30


def test_more_alternatives_than_ids_and_none():
    row = [0.0, -INF, 1.0]
    tops = choose([sampler(3, logprobs=10), sampler(3, logprobs=0)], array(row, row))[2]
    assert [token for token, _ in tops[0]] == [2, 0, 1]
    assert tops[0][2][1] == -INF and tops[1] == []


def test_a_callback_may_empty_the_list_of_rows():
    rows = []
    rows += [sampler(4, constrain=lambda ids: rows.clear(), temperature=0) for _ in range(40)]
    x = np.tile(array([0, 1, 3, 2]), (40, 1))
    assert choose(rows, x)[0].tolist() == [2] * 40
    assert rows == []


# ---- seeds, neighbours, threads, settings of each row (GEN-02, GEN-16)


@pytest.mark.parametrize("seed", [0, -1, 7, 2**32, 2**64 - 1, -(2**63)])
def test_a_row_draws_the_same_alone_and_among_others(seed):
    x = np.random.default_rng(1).standard_normal((9, 2000)).astype(np.float32)
    settings = [{}, {"temperature": 0}, {"top_p": 0.9}, {"top_k": 7}, {"repetition_penalty": 2.0}] * 2
    rows = [sampler(2000, [3], seed, row=i, **settings[i]) for i in range(9)]
    together = choose(rows, x.copy())[0]
    order = [4, 8, 0, 2, 6, 1, 7]  # others have finished
    np.testing.assert_array_equal(choose([rows[i] for i in order], x[order])[0], together[order])
    for i in range(9):
        assert choose([rows[i]], x[i : i + 1].copy())[0][0] == together[i]


def test_threads_and_instruction_sets_draw_the_same(fused_isa):
    x = np.random.default_rng(2).standard_normal((16, 50257)).astype(np.float32)

    def ids():
        settings = [{}, {"top_k": 50, "top_p": 0.9}, {"typical_p": 0.9, "logprobs": 1}, {"min_p": 0.2}]
        rows = [sampler(50257, [i], 5, row=i, **settings[i % 4]) for i in range(16)]
        chosen, logprobs, _ = choose(rows, x.copy())
        return chosen.tolist(), logprobs[2::4].tolist()

    found = []
    for isa in ("ref", fused_isa):
        dispatch.use(isa)
        for threads in (1, 2, 4):
            gpt2cy.set_num_threads(threads)
            found.append(ids())
    assert all(item == found[0] for item in found)


def test_numpys_random_state_is_neither_used_nor_changed():
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = drawn([0.0] * 100, 20)
    np.random.seed(2)  # noqa: NPY002
    np.testing.assert_array_equal(drawn([0.0] * 100, 20), first)
    np.random.seed(1)  # noqa: NPY002
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_each_row_has_its_own_settings():
    rows = [sampler(3, row=0, temperature=0), sampler(3, row=1, logit_bias={0: -INF, 1: -INF})]
    for step in range(20):
        assert choose(rows, array([1, 3, 2], [1, 3, 2]))[0].tolist() == [1, 2]
        for row in rows:
            row.accept(step % 3)
    spread = set()
    for seed in range(40):
        rows = [sampler(3, row=0, temperature=0), sampler(3, seed=seed, row=1)]
        spread.add(tuple(choose(rows, array([1, 3, 2], [1, 3, 2]))[0]))
    assert spread == {(1, 0), (1, 1), (1, 2)}


def test_fork():
    row = sampler(50, [1, 2], 9, row=3, frequency_penalty=0.5)
    for token in (4, 4, 5):
        row.accept(token)
    other = row.fork(8)
    assert other.ids.tolist() == row.ids.tolist() == [1, 2, 4, 4, 5]
    assert (other.step, other.n_prompt, other.row, other.sample, other.seed) == (3, 2, 3, 8, 9)
    other.accept(6)
    assert row.ids.tolist() == [1, 2, 4, 4, 5]
    fresh = sampler(50, [1, 2], 9, row=3, sample=8, frequency_penalty=0.5)
    for token in (4, 4, 5, 6):
        fresh.accept(token)
    x = np.random.default_rng(0).standard_normal((1, 50)).astype(np.float32)
    assert choose([fresh], x.copy())[0] == choose([other], x.copy())[0]


# ---- arguments


def test_bad_arguments():
    with pytest.raises(TypeError, match="settings: expected a Sampling, got dict"):
        Sampler({}, 10, 0, 0, 0, [])
    for name, arguments in {
        "vocab_size": (0, 0, 0, 0, []),
        "seed": (10, 2**64, 0, 0, []),
        "row": (10, 0, -1, 0, []),
        "sample": (10, 0, 0, 2**32, []),
        "prompt": (10, 0, 0, 0, [10]),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}: "):
            Sampler(Sampling(), *arguments)
    with pytest.raises(ValueError, match="^logit_bias: id 10 at .0. is outside the vocabulary of 10"):
        sampler(10, logit_bias={10: 1.0})
    row = sampler(10)
    for bad in (-1, 10, 2**63):
        with pytest.raises(ValueError, match="^token: expected an integer from 0 to 9"):
            row.accept(bad)
    with pytest.raises(ValueError, match=r"^scores: expected shape \[10\], got \[9\]"):
        row.edit(np.zeros(9, np.float32))


def test_bad_logits():
    row = sampler(10)
    for shape in ((2, 10), (1, 9), (1, 11), (0, 10), (1, 0)):
        with pytest.raises(ValueError, match="^logits: expected"):
            choose([row], np.zeros(shape, np.float32))
    with pytest.raises(TypeError, match=r"^samplers\[1\]: expected a Sampler, got NoneType"):
        choose([row, None], np.zeros((2, 10), np.float32))
    for bad in (np.zeros((1, 10)), np.zeros((1, 20), np.float32)[:, ::2], np.zeros(10, np.float32)):
        with pytest.raises(ValueError):
            choose([row], bad)
    ids, logprobs, tops = choose([], np.zeros((0, 10), np.float32))
    assert (len(ids), len(logprobs), tops) == (0, 0, [])


def test_half_made_samplers_raise():
    row = Sampler.__new__(Sampler)
    for call in (
        lambda: row.ids,
        lambda: row.accept(0),
        lambda: row.fork(1),
        lambda: row.edit(np.zeros(0, np.float32)),
    ):
        with pytest.raises((TypeError, AttributeError, ValueError)):
            call()
    with pytest.raises((TypeError, AttributeError, ValueError)):
        choose([row], np.zeros((1, 0), np.float32))


def test_one_id():
    for settings in (
        {},
        {"top_k": 5},
        {"top_p": 0.1},
        {"typical_p": 0.1},
        {"min_p": 1.0},
        {"temperature": 0},
    ):
        assert chosen([3.0], [0], **settings) == 0


def test_memory_that_is_missing_is_an_error_and_no_more():
    row = sampler(200_000, temperature=0)  # more than any spare memory
    x = np.zeros((1, 200_000), np.float32)
    memory.fail_allocations(0)
    try:
        with pytest.raises(MemoryError):
            choose([row], x)
    finally:
        memory.fail_allocations(-1)
    assert choose([row], x)[0].tolist() == [0]


def test_logits_that_change_meanwhile_harm_nobody():
    """Nonsense in, nonsense or an error out, but an id of the vocabulary, and no crash."""
    vocab_size, stop = 3000, threading.Event()
    x = np.random.default_rng(0).standard_normal((4, vocab_size)).astype(np.float32)

    def disturb():
        rng = np.random.default_rng(1)
        while not stop.is_set():
            x[:, rng.integers(0, vocab_size, 500)] = rng.choice(
                np.array([NAN, INF, -INF, 0, 5], np.float32), 500
            )

    writer = threading.Thread(target=disturb)
    writer.start()
    ways = [
        {"top_k": 50},
        {"top_p": 0.5, "logprobs": 3},
        {"typical_p": 0.5},
        {"min_p": 0.1, "repetition_penalty": 2.0},
    ]
    rows = [sampler(vocab_size, [1], row=i, **ways[i]) for i in range(4)]
    try:
        for _ in range(300):
            with contextlib.suppress(FloatingPointError, ValueError):
                assert (choose(rows, x)[0] < vocab_size).all()
            x[:] = 1.0
    finally:
        stop.set()
        writer.join()


def test_threads_may_choose_at_once():
    x = np.random.default_rng(6).standard_normal((8, 5000)).astype(np.float32)

    def ids(_):
        rows = [sampler(5000, [3], 4, row=i, top_p=0.9, frequency_penalty=0.1) for i in range(8)]
        return choose(rows, x.copy())[0].tolist()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ids, range(40)))
    assert all(item == found[0] for item in found)


# ---- the same bits for ever


@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        ({}, [540, 736, 770, 998, 383, 618, 138, 961, 287, 198, 434, 730]),
        ({"temperature": 0.7, "top_k": 40}, [567, 786, 770, 998, 436, 562, 192, 967, 370, 184, 444, 686]),
        (
            {"top_p": 0.9, "repetition_penalty": 1.3},
            [544, 736, 770, 998, 383, 618, 138, 961, 287, 187, 444, 730],
        ),
        (
            {"min_p": 0.05, "typical_p": 0.9, "temperature": 1.5},
            [540, 736, 770, 998, 381, 633, 137, 961, 284, 203, 440, 736],
        ),
    ],
    ids=str,
)
def test_a_seed_gives_these_ids_on_every_processor(isa, settings, ids):
    """From logits that an integer formula makes; what changes them changes everyone's texts."""
    dispatch.use(isa)
    row = sampler(1000, [1, 2, 3], seed=2019, row=5, sample=2, **settings)
    found = []
    for step in range(12):
        logits = (8 * formula.uniform(f"logits {step}", (1, 1000))).astype(np.float32)
        found.append(int(choose([row], logits)[0][0]))
        row.accept(found[-1])
    assert found == ids or not dispatch.fused(isa)
