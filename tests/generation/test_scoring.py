# SPDX-License-Identifier: Apache-2.0
"""Scores of tokens: against log-softmax of forward in float64, in windows, in batches, and to the bit.

PPL-02 and PPL-04 are here; PPL-03 is in tests/test_golden_scores.py.
"""

import itertools
import math

import numpy as np
import pytest

import gpt2cy
from gpt2cy.generation import scoring
from gpt2cy.generation.scoring import TokenScores, Window, windows
from gpt2cy.kernels import dispatch, host, raw

SIZES = (61, 24, 3, 2, 29)
COLUMNS = list(TokenScores.__dataclass_fields__)


@pytest.fixture(scope="module")
def model(build):
    """Logits some units apart, so that ranks and entropies vary."""
    return build(*SIZES)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(7).integers(0, 61, 100)


def log_softmax(logits):
    """In float64, [T, V]."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def expected_scores(model, ids, start, top=0, limit=None):
    """By the definition, from all logits; order of equal logits by id, as a stable sort has it."""
    logits = model(ids)[start - 1 : -1, :limit]
    logprobs = log_softmax(logits)
    order = np.argsort(-logits, axis=1, kind="stable")
    targets = np.asarray(ids[start:])
    rows = np.arange(len(targets))
    return TokenScores(
        targets,
        logprobs[rows, targets],
        -(np.exp(logprobs) * logprobs).sum(-1),
        (order == targets[:, None]).argmax(1),
        order[:, 0],
        order[:, :top],
        np.take_along_axis(logprobs, order[:, :top], 1),
    )


def check_close(scores, expected):
    for name in COLUMNS:
        got, want = getattr(scores, name), getattr(expected, name)
        assert got.shape == want.shape
        if name in ("tokens", "ranks", "likeliest", "top_ids"):
            assert got.dtype == np.int64
            np.testing.assert_array_equal(got, want)
        else:
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)


def check_same(scores, expected):
    """To the bit."""
    for name in COLUMNS:
        got, want = getattr(scores, name), getattr(expected, name)
        assert (got.dtype, got.shape, got.tobytes()) == (want.dtype, want.shape, want.tobytes()), name


# ---- the numbers -----------------------------------------------------------------------------------------


def test_against_forward_in_float64(isa, model, tokens):
    dispatch.use(isa)
    sequences, starts = [tokens[:29], tokens[40:45], tokens[50:79]], [1, 3, 20]
    found = model.score_many(sequences, starts, top=5)
    assert len({scores.ranks.max() for scores in found}) > 1
    for scores, ids, start in zip(found, sequences, starts, strict=True):
        check_close(scores, expected_scores(model, ids, start, 5))


def test_the_numbers_of_the_kernel(model, tokens, same_bits):
    """A text that fits: forward, then statistics of its rows, to the bit."""
    ids = tokens[:29]
    table = raw.statistics(model(ids[:-1]), ids[1:])
    same_bits(model.token_logprobs(ids), table["logprob"].copy())
    same_bits(model.token_logprobs(ids, stride=28), table["logprob"].copy())
    scores = model.score_many([ids])[0]
    np.testing.assert_array_equal(scores.ranks, table["rank"])
    same_bits(scores.entropies, table["entropy"].astype(np.float32))


def test_a_token_among_the_alternatives_has_the_same_bits(model, tokens):
    scores = model.score_many([tokens[:29]], top=61)[0]
    places = (scores.top_ids == scores.tokens[:, None]).argmax(1)
    np.testing.assert_array_equal(places, scores.ranks)
    np.testing.assert_array_equal(scores.top_logprobs[np.arange(28), places], scores.logprobs)
    assert (np.diff(scores.top_logprobs, axis=1) <= 0).all()
    np.testing.assert_array_equal(np.sort(scores.top_ids, axis=1), np.tile(np.arange(61), (28, 1)))


def test_equal_logits_rank_by_id(build):
    model = build(9, 8, 2, 1, 8)
    model.lm_head.weight = np.zeros((8, 9), np.float32)
    model.lm_head.bias = np.zeros(9, np.float32)
    scores = model.score_many([[0, 4, 0, 8]], top=3)[0]
    assert scores.ranks.tolist() == [4, 0, 8]
    assert scores.likeliest.tolist() == [0, 0, 0]
    assert scores.top_ids.tolist() == [[0, 1, 2]] * 3
    np.testing.assert_allclose(scores.logprobs, -math.log(9), rtol=1e-6)
    np.testing.assert_allclose(scores.entropies, math.log(9), rtol=1e-6)
    assert model.perplexity([0, 4, 0, 8]) == pytest.approx(9, rel=1e-6)


def test_is_greedy_and_the_sum(model, tokens):
    ids = tokens[:10].tolist()
    for _ in range(5):
        ids.append(int(model.next_logits(ids).argmax()))
    greedy, whole = model.score_many([ids, ids], [10, 1])
    assert greedy.is_greedy and not whole.is_greedy
    ids[-1] = (ids[-1] + 1) % 61
    last_wrong = model.score_many([ids], [10])[0]
    assert not last_wrong.is_greedy and last_wrong.ranks[:-1].tolist() == [0] * 4
    assert whole.logprob == math.fsum(whole.logprobs.tolist())


def test_impossible_tokens(build):
    """A logit of -Inf: probability 0, and no part in the others' numbers."""
    model = build(6, 8, 2, 1, 8)
    model.lm_head.bias = np.array([0, -np.inf, 1, 0, 2, 0], np.float32)
    scores = model.score_many([[0, 1, 2, 3]], top=6)[0]
    assert scores.logprobs[0] == -np.inf and np.isfinite(scores.logprobs[1:]).all()
    assert scores.ranks[0] == 5 and scores.top_ids[:, 5].tolist() == [1, 1, 1]
    assert np.isfinite(scores.entropies).all()
    assert model.perplexity([0, 1, 2, 3]) == math.inf


# ---- windows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [2, 3, 7, 29])
def test_windows_score_each_token_after_the_first_once(block_size):
    for n_tokens in (1, 2, block_size - 1, block_size, block_size + 1, 100, 101):
        for stride in range(1, block_size):
            found = list(windows(n_tokens, block_size, stride))
            scored = [i for begin, end, first in found for i in range(first, end)]
            assert scored == list(range(1, n_tokens))
            for window in found:
                assert 0 <= window.begin < window.first < window.end <= n_tokens
                assert window.end - window.begin <= block_size
            for one, next_one in itertools.pairwise(found):
                assert next_one.begin - one.begin == stride
                assert next_one.begin < one.end


def test_ppl_02_perplexity_weighs_tokens_not_windows():
    """PPL-01's windows, and losses 1 to 9 in them."""
    found = list(windows(10, 4, 2))
    assert found == [Window(0, 4, 1), Window(2, 6, 4), Window(4, 8, 6), Window(6, 10, 8)]
    losses = np.arange(1, 10, dtype=np.float32)
    assert scoring.perplexity_of(-losses.sum(), 9) == pytest.approx(math.exp(5), rel=1e-15)
    of_windows = [losses[first - 1 : end - 1].mean() for _, end, first in found]
    assert np.mean(of_windows) == 5.375


@pytest.mark.parametrize("stride", [1, 2, 13, 27, 28, None])
def test_windows_are_single_forwards(model, tokens, stride, same_bits):
    """PPL-02: to the bit what each window alone gives; at stride 1 a loop of single forwards."""
    expected = np.empty(99, np.float32)
    for begin, end, first in windows(100, 29, stride or 28):
        table = raw.statistics(model(tokens[begin : end - 1]), tokens[begin + 1 : end])
        expected[first - 1 : end - 1] = table["logprob"][first - 1 - begin :]
    found = model.token_logprobs(tokens, stride=stride)
    same_bits(found, expected)
    assert model.perplexity(tokens, stride=stride) == math.exp(-math.fsum(expected.tolist()) / 99)


def test_stride_1_sees_all_that_fits(model, tokens):
    found = model.token_logprobs(tokens, stride=1)
    for i in (1, 28, 29, 30, 99):
        seen = tokens[max(0, i - 28) : i]
        assert found[i - 1] == pytest.approx(log_softmax(model(seen)[-1])[tokens[i]], rel=1e-5)


def test_short_windows_share_passes(build, tokens):
    """More windows than one pass takes."""
    model = build(61, 8, 2, 1, 3)
    ids = np.tile(tokens, 12)
    found = model.token_logprobs(ids, stride=1)
    assert len(found) == len(ids) - 1
    np.testing.assert_array_equal(found[700:], model.token_logprobs(ids[699:], stride=1)[1:])


@pytest.mark.parametrize("stride", [0, -1, 29, 1000])
def test_stride_out_of_range(model, tokens, stride):
    for call in (model.token_logprobs, model.perplexity):
        with pytest.raises(ValueError, match=rf"stride: expected an integer from 1 to 28, got {stride}"):
            call(tokens, stride=stride)
        with pytest.raises(ValueError, match="stride"):
            call(tokens[:5], stride=stride)


@pytest.mark.parametrize("stride", [1.0, "1", True, [1]])
def test_stride_of_another_kind(model, tokens, stride):
    with pytest.raises(TypeError, match="stride: expected an integer"):
        model.token_logprobs(tokens, stride=stride)


def test_a_single_token(model):
    found = model.token_logprobs([5])
    assert found.shape == (0,) and found.dtype == np.float32
    with pytest.raises(ValueError, match="tokens: expected at least two tokens"):
        model.perplexity([5])


def test_a_block_size_of_1(build):
    model = build(9, 8, 2, 1, 1)
    assert model.token_logprobs([3]).shape == (0,)
    with pytest.raises(ValueError, match="tokens: expected one token, since a block_size of 1"):
        model.token_logprobs([3, 4])
    with pytest.raises(ValueError, match="stride"):
        model.token_logprobs([3], stride=1)
    assert len(model.score_many([[3, 4]])[0]) == 1


@pytest.mark.parametrize("tokens", [[], [[1, 2], [3, 4]], 3, "abc", [1.5], [61], [-1], None])
def test_what_is_no_sequence(model, tokens):
    for call in (model.token_logprobs, model.perplexity):
        with pytest.raises((TypeError, ValueError), match="^tokens: "):
            call(tokens)


# ---- several sequences -----------------------------------------------------------------------------------


def test_ppl_04_continuations(model):
    """Context [5, 9], continuation [2, 7]: log p(2 | 5, 9) + log p(7 | 5, 9, 2)."""
    rows = log_softmax(model([5, 9, 2]))
    one, other = model.score_many([[5, 9, 2, 7], [9, 1, 1]], [2, 1])
    assert one.tokens.tolist() == [2, 7]
    assert one.logprob == pytest.approx(rows[1, 2] + rows[2, 7], rel=1e-6)
    swapped = model.score_many([[9, 1, 1], [5, 9, 2, 7]], [1, 2])
    check_same(swapped[1], one)
    check_same(swapped[0], other)


def test_ppl_04_the_last_token_is_not_run(model, tokens):
    """So a sequence may have block_size + 1 tokens; one more is refused, nothing is cut."""
    found = model.score_many([tokens[:30]], [29])[0]
    assert found.logprobs[0] == pytest.approx(log_softmax(model(tokens[:29])[-1])[tokens[29]], rel=1e-6)
    with pytest.raises(ValueError, match=r"sequences\[1\] without its last token: 30 tokens do not fit"):
        model.score_many([tokens[:30], tokens[:31]])


def test_a_batch_is_each_alone(model, tokens):
    rng = np.random.default_rng(3)
    sequences = [tokens[begin : begin + rng.integers(1, 31)] for begin in rng.integers(0, 70, 40)]
    starts = [int(rng.integers(1, len(ids) + 1)) for ids in sequences]
    together = model.score_many(sequences, starts, top=2)
    for scores, ids, start in zip(together, sequences, starts, strict=True):
        assert len(scores) == len(ids) - start
        check_same(scores, model.score_many([ids], [start], top=2)[0])


@pytest.fixture
def rows_run(monkeypatch):
    """How many rows each pass ran."""
    found = []

    def score_rows(model, sequences, *rest):
        found.append(sum(map(len, sequences)))
        return run(model, sequences, *rest)

    run = scoring.score_rows
    monkeypatch.setattr(scoring, "score_rows", score_rows)
    return found


def test_a_shared_beginning_runs_once(model, tokens, rows_run):
    context = tokens[:20].tolist()
    sequences = [[*context, i, i + 1, i + 2][: 21 + i % 3] for i in range(50)]
    sequences += [tokens[30:60], [*tokens[:17], 1, 2]]
    starts = [20] * 50 + [20, 17]
    found = model.score_many(sequences, starts, top=1)
    assert sum(rows_run) < 50 * 3 + 20 + 29 + 18 + 5 * 20
    for scores, ids, start in zip(found, sequences, starts, strict=True):
        check_same(scores, model.score_many([ids], [start], top=1)[0])


def test_a_beginning_is_shared_up_to_where_scores_begin(model, tokens, rows_run):
    """Equal sequences, scored from different tokens on, and what is too short to share."""
    ids = tokens[:29]
    for starts in ([28, 20, 25], [1, 28, 28], [5, 6, 7]):
        found = model.score_many([ids] * 3, starts)
        for scores, start in zip(found, starts, strict=True):
            check_same(scores, model.score_many([ids], [start])[0])
    assert scoring.shared_prefixes([scoring.Piece(ids, 16, "", 0)] * 2) == []
    assert scoring.shared_prefixes([scoring.Piece(ids, 17, "", 0)] * 2) == [(16, [0, 1])]


def test_more_alternatives_than_memory(model, monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: 1 << 20)
    with pytest.raises(MemoryError, match=r"^top: .*alternatives 82 MiB.*reduce top, or the number of"):
        model.score_many([[1] * 20] * 6200, top=61)


def test_nothing_to_score(model):
    empty, rest = model.score_many([[3], [1, 2]], [1, 1], top=4)
    assert len(empty) == 0 and empty.top_ids.shape == (0, 4) and empty.logprob == 0 and empty.is_greedy
    assert len(rest) == 1


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([[1, 2]], [0]), {}, ValueError, "starts[0]: expected an integer from 1 to 2, got 0"),
        (([[1, 2]], [3]), {}, ValueError, "starts[0]: expected an integer from 1 to 2, got 3"),
        (([[1, 2]], [1.0]), {}, TypeError, "starts[0]: expected an integer"),
        (([[1, 2]], [1, 1]), {}, ValueError, "starts: expected 1, one a sequence, got 2"),
        (([[1, 2]], 1), {}, TypeError, "starts: expected a list of integers, got int"),
        (([[1, 2]], np.array(1)), {}, TypeError, "starts: expected a list of integers, got ndarray"),
        (([],), {}, ValueError, "sequences: expected at least one"),
        (([[1], []],), {}, ValueError, "sequences[1]: expected at least one token"),
        (([[1, 61]],), {}, ValueError, "sequences[0]: id 61 at [1] is outside the vocabulary of 61"),
        (([[1, 2]],), {"top": -1}, ValueError, "top: expected an integer from 0 to 61, got -1"),
        (([[1, 2]],), {"top": 62}, ValueError, "top: expected an integer from 0 to 61, got 62"),
        (([[1, 2]],), {"top": 5, "vocab_limit": 4}, ValueError, "top: expected an integer from 0 to 4"),
        (([[1, 2]],), {"vocab_limit": 0}, ValueError, "vocab_limit: expected an integer from 1 to 61, got 0"),
        (([[1, 2]],), {"vocab_limit": 62}, ValueError, "vocab_limit: expected an integer from 1 to 61"),
        (([[1, 2]],), {"vocab_limit": 2}, ValueError, "sequences[0]: id 2 at [1] is outside the vocab_limit"),
    ],
)
def test_arguments(model, arguments, options, error, message):
    with pytest.raises(error) as caught:
        model.score_many(*arguments, **options)
    assert str(caught.value).startswith(message)


# ---- the same bits ---------------------------------------------------------------------------------------


def test_instruction_sets(fused_isa, model, tokens):
    sequences = [tokens[:29], tokens[30:50]]
    dispatch.use("ref")
    expected = model.score_many(sequences, [1, 9], top=3)
    windowed = model.token_logprobs(tokens, stride=10)
    dispatch.use(fused_isa)
    for scores, want in zip(model.score_many(sequences, [1, 9], top=3), expected, strict=True):
        check_same(scores, want)
    assert model.token_logprobs(tokens, stride=10).tobytes() == windowed.tobytes()


def test_numbers_of_threads_and_blocks_of_rows(fused_isa, build):
    """A vocabulary that makes the head take its rows in several blocks; work enough for every thread."""
    dispatch.use(fused_isa)
    model = build(70001, 16, 2, 1, 200)
    ids = np.random.default_rng(0).integers(0, 70001, 200)
    whole = model.score_many([ids], top=3)[0]
    check_close(whole[150:], expected_scores(model, ids, 151, 3))
    for n in (1, 2, 5):
        gpt2cy.set_num_threads(n)
        check_same(model.score_many([ids], top=3)[0], whole)
        check_same(model.score_many([ids[:31]], top=3)[0], whole[:30])


def test_what_generation_says_of_its_tokens(model, tokens):
    """The logprobs that come with generated ids, whatever the settings, are their scores."""
    prompts = [tokens[:9], tokens[20:23]]
    found = model.generate(
        prompts, max_new_tokens=8, temperature=2.0, top_k=30, logprobs=2, seed=1, details=True
    )
    scores = model.score_many(
        [[*ids, *result.tokens] for ids, result in zip(prompts, found, strict=True)], [9, 3], top=2
    )
    for result, score in zip(found, scores, strict=True):
        assert result.logprobs.tobytes() == score.logprobs.tobytes()
        best = [[(token, np.float32(value)) for token, value in row] for row in result.top_logprobs]
        assert [[token for token, _ in row] for row in best] == score.top_ids.tolist()
        np.testing.assert_array_equal([[value for _, value in row] for row in best], score.top_logprobs)


# ---- a padded vocabulary, weights gone bad, one place to raise -------------------------------------------


def test_load_06_a_padded_vocabulary(build, tokens):
    """All rows count, as for transformers; with a limit the numbers are those of the smaller model."""
    model = build(64, 24, 3, 2, 29)
    bias = np.zeros(64, np.float32)
    bias[61:] = 50.0
    model.lm_head.bias = bias
    ids = tokens[:29]
    padded = model.score_many([ids], top=4)[0]
    check_close(padded, expected_scores(model, ids, 1, 4))
    assert set(padded.top_ids[:, 0]) <= {61, 62, 63} and padded.logprobs.max() < -20
    limited = model.score_many([ids], top=4, vocab_limit=61)[0]
    check_close(limited, expected_scores(model, ids, 1, 4, limit=61))
    np.testing.assert_array_equal(model.token_logprobs(ids, vocab_limit=61), limited.logprobs)
    assert model.perplexity(ids, vocab_limit=61) < 1e5 < model.perplexity(ids)
    with pytest.raises(ValueError, match=r"tokens: id 63 at \[40\] is outside the vocab_limit of 61"):
        model.token_logprobs([*tokens[:40], 63, *tokens[:20]], stride=7, vocab_limit=61)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite(build, bad):
    model = build(61, 24, 3, 2, 8)
    weight = model.wte.weight.copy()
    weight[60] = bad
    model.wte.weight = weight
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 60, 11]
    assert len(model.token_logprobs(ids[:10])) == 9
    began = f" are not finite; it began with embed: {bad} at position"
    with pytest.raises(FloatingPointError, match=f"tokens: the logits before token 10{began} 6 of"):
        model.token_logprobs(ids, stride=3)
    with pytest.raises(FloatingPointError, match=rf"sequences\[1\]: .* before token 2{began} 1 of"):
        model.score_many([[1, 2], [3, 60, 4]])


def test_inputs_are_left_alone_and_results_own_their_memory(model, tokens):
    ids = tokens[:20].copy()
    ids.flags.writeable = False
    found = model.score_many([ids, ids[:5]])
    np.testing.assert_array_equal(ids, tokens[:20])
    assert all(getattr(scores, name).base is None for scores in found for name in COLUMNS)


def test_a_model_in_use_elsewhere(model, tokens):
    """Scores take caches of their own: one in the middle of a call is not touched."""
    cache = model.new_cache()
    model(tokens[:10], cache)
    model.score_many([[*tokens[:20], i] for i in range(4)], [20] * 4)
    assert cache.lengths == [10]
