# SPDX-License-Identifier: Apache-2.0
"""`GPT.generate`: what comes depends on the prompt, the settings and the seed, and on nothing else.

Where tokens and log-probabilities are compared, they are compared exactly. The yardstick is `plain`: a row
alone, its whole text through `forward` for each token, without cache or batch.
"""

import contextlib
import threading
import time

import formula
import numpy as np
import pytest

import gpt2cy
from gpt2cy.generation.batch import Batch
from gpt2cy.generation.generate import make_rows
from gpt2cy.generation.sampler import Sampler, choose
from gpt2cy.generation.sampling import Sampling
from gpt2cy.kernels import dispatch, host

SIZES = (61, 20, 5, 2, 150)
PINNED = [
    [59, 17, 0, 24, 23, 31, 43, 24, 4, 40, 40, 41, 20, 7, 20, 9],
    [35, 43, 34, 15, 7, 35, 35, 25, 40, 24, 53, 25, 53, 47, 36, 25],
]
PROMPTS = [[3, 1, 4, 1, 5], [9], [3, 1, 4, 1, 5, 9, 2, 6], list(range(60)), [3, 1, 4, 1, 5]]


@pytest.fixture(scope="module")
def model(build):
    return build(*SIZES)


@pytest.fixture(scope="module")
def short(build):
    """Of 8 positions."""
    return build(61, 20, 5, 2, 8)


def plain(model, ids, seed=0, row=0, sample=0, **settings):
    """(tokens, logprobs) of one row, each token from a forward pass over everything before it."""
    settings = Sampling(**settings)
    ids = list(ids)
    sampler = Sampler(settings, model.config.vocab_size, seed, row, sample, np.array(ids, np.int64))
    tokens, logprobs, window = [], [], list(ids)
    while len(tokens) < settings.max_new_tokens:
        if len(window) > model.config.block_size:
            if settings.on_full == "stop":
                break
            window = window[-(settings.slide_to or model.config.block_size // 2) :]
        chosen, of_it, _ = choose([sampler], model.forward(window)[-1:], True)
        sampler.accept(int(chosen[0]))
        tokens.append(int(chosen[0]))
        window.append(int(chosen[0]))
        logprobs.append(of_it[0])
        if tokens[-1] in (settings.stop_ids or ()):
            break
    return tokens, np.array(logprobs, np.float32)


class Counting:
    """A model that counts the rows it computes."""

    def __init__(self, model):
        self.model, self.lm_head, self.new_cache, self.passes = model, model.lm_head, model.new_cache, []

    def next_logits_many(self, sequences, caches=None, *, out=None):
        self.passes.append(sum(map(len, sequences)))
        return self.model.next_logits_many(sequences, caches, out=out)


def tokens_of(results):
    return [result.tolist() for result in results]


def same(result, expected):
    tokens, logprobs = expected
    assert result.tokens.tolist() == tokens
    np.testing.assert_array_equal(result.logprobs.view(np.uint32), logprobs.view(np.uint32))


# ---- the same bits: cached and not, alone and in a batch, threads, instruction sets ------------------------


@pytest.mark.parametrize("n_threads", [1, 2])
def test_kv_01_gen_01_as_plain_forwards(isa, model, n_threads):
    """Ragged, shared prompts, several samples, different lengths: each row as if alone and uncached."""
    dispatch.use(isa)
    gpt2cy.set_num_threads(n_threads)
    lengths = [9, 4, 12, 3, 7]
    results = model.generate(PROMPTS, n=2, max_new_tokens=lengths, logprobs=0, seed=5, details=True)
    assert [(result.prompt, result.sample) for result in results] == [
        (i, j) for i in range(5) for j in range(2)
    ]
    for result in results:
        i, j = result.prompt, result.sample
        same(result, plain(model, PROMPTS[i], 5, i, j, max_new_tokens=lengths[i]))
        assert (result.finish_reason, result.seed, result.text) == ("length", 5, None)


def test_every_instruction_set_gives_the_same(fused_isa, model):
    given = {"max_new_tokens": 20, "logprobs": 0, "seed": 1, "details": True}
    dispatch.use("ref")
    expected = model.generate(PROMPTS, **given)
    dispatch.use(fused_isa)
    for result, right in zip(model.generate(PROMPTS, **given), expected, strict=True):
        same(result, (right.tokens.tolist(), right.logprobs))


@pytest.mark.parametrize("n_threads", [1, 2])
def test_pinned(isa, model, n_threads):
    """What came once comes for ever: a change of a bit in model or sampling may show here."""
    if not dispatch.fused(isa):
        pytest.skip("promises nothing beside the others")
    dispatch.use(isa)
    gpt2cy.set_num_threads(n_threads)
    given = {
        "max_new_tokens": 16,
        "seed": 7,
        "temperature": 0.9,
        "top_k": 40,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
    }
    assert tokens_of(model.generate([[3, 1, 4], [9]], **given)) == PINNED


@pytest.mark.parametrize("size", range(1, 10))
def test_gen_01_batch_size(model, size):
    """Row 0 alone and with 1 to 8 others, its prompt of 1 to 17 ids."""
    for length in (1, 8, 17):
        ids = formula.tokens(model.config, 1, length)[0].tolist()
        others = [[7] * (1 + i) for i in range(size - 1)]
        alone = model.generate([ids], max_new_tokens=6, logprobs=0, seed=3, details=True)[0]
        result = model.generate([ids, *others], max_new_tokens=6, logprobs=0, seed=3, details=True)[0]
        same(result, (alone.tokens.tolist(), alone.logprobs))


def test_gen_01_an_exact_tie(build):
    """Of equal logits the smallest id is the likeliest, alone and beside others."""
    model = build(61, 12, 2, 1, 40)
    model.lm_head.weight = np.zeros((12, 61), np.float32)
    model.lm_head.bias = np.where(np.arange(61) % 20 == 7, 1, 0).astype(np.float32)
    for n in (1, 5):
        assert tokens_of(model.generate([[1, 2]] * n, max_new_tokens=3, temperature=0)) == [[7, 7, 7]] * n


def test_greedy_is_the_argmax_of_forward(model):
    for ids, new in zip(PROMPTS, model.generate(PROMPTS, max_new_tokens=12, temperature=0), strict=True):
        whole = [*ids, *new.tolist()]
        logits = model.forward(whole)
        assert new.tolist() == logits.argmax(axis=-1)[len(ids) - 1 : -1].tolist()
        assert new.dtype == np.int64


def test_kv_02_positions_go_on_where_the_prompt_ends(build):
    """Position embeddings of very different sizes: an offset of one would show."""
    model = build(61, 20, 5, 2, 60)
    model.wpe.weight = model.wpe.weight * (np.arange(60, dtype=np.float32)[:, None] * 10)
    result = model.generate([[1, 2, 3, 4]], max_new_tokens=8, logprobs=0, seed=2, details=True)[0]
    same(result, plain(model, [1, 2, 3, 4], 2, max_new_tokens=8))


# ---- context ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "wanted", "given", "reason"),
    [(8, 1, 1, "length"), (8, 2, 1, "context"), (8, None, 1, "context"), (7, 5, 2, "context"),
     (7, 2, 2, "length"), (1, 8, 8, "length"), (1, 9, 8, "context"), (1, None, 8, "context")],
)  # fmt: skip
def test_kv_04_the_context_is_full(short, length, wanted, given, reason):
    """A prompt of all 8 positions gives one token, which needs no ninth; then it ends, and says why."""
    ids = list(range(length))
    result = short.generate([ids], max_new_tokens=wanted, seed=1, logprobs=0, details=True)[0]
    assert (len(result.tokens), result.finish_reason, result.stop) == (given, reason, None)
    same(result, plain(short, ids, 1, max_new_tokens=given))


def test_kv_04_a_prompt_is_never_cut(short):
    with pytest.raises(ValueError, match=r"^prompts\[1\]: 9 tokens do not fit the block_size of 8"):
        short.generate([[1], [1] * 9], max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^prompts\[0\]: 9 tokens do not fit the block_size of 8"):
        short.generate([[1] * 9], max_new_tokens=1, on_full="slide")


@pytest.mark.parametrize("slide_to", [None, 1, 3, 7, 8])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_kv_04_sliding(short, length, slide_to):
    """When the positions are used up the oldest ids go, and the rest are computed from position 0."""
    given = {"max_new_tokens": 30, "on_full": "slide", "slide_to": slide_to}
    result = short.generate([range(length)], **given, seed=4, logprobs=0, details=True)[0]
    assert (len(result.tokens), result.finish_reason) == (30, "length")
    same(result, plain(short, range(length), 4, **given))


def test_sliding_rows_among_others(short):
    """Rows slide when it is their turn, each to a length of its own, beside rows that stop."""
    prompts = [[1], [2, 3, 4], [5] * 8, [6] * 7]
    slide_to, on_full = [2, 5, None, 8], ["slide", "slide", "stop", "slide"]
    results = short.generate(
        prompts, max_new_tokens=25, on_full=on_full, slide_to=slide_to, seed=6, logprobs=0, details=True
    )
    for i, result in enumerate(results):
        one = {"max_new_tokens": 25, "on_full": on_full[i], "slide_to": slide_to[i]}
        same(result, plain(short, prompts[i], 6, i, **one))
    assert [result.finish_reason for result in results] == ["length", "length", "context", "length"]


def test_sliding_needs_an_end_and_a_length(short):
    with pytest.raises(ValueError, match=r'^max_new_tokens: expected a number, since on_full="slide"'):
        short.generate([[1]], on_full="slide", max_new_tokens=None)
    with pytest.raises(ValueError, match=r"^slide_to: expected an integer from 1 to 8, got 9"):
        short.generate([[1]], on_full="slide", max_new_tokens=3, slide_to=9)


# ---- caches ----------------------------------------------------------------------------------------------


def test_kv_07_calls_do_not_leak(model):
    """A, B, A; and A again after errors in the middle."""
    a = {"prompts": [PROMPTS[0]], "max_new_tokens": 15, "seed": 1}
    first = tokens_of(model.generate(**a))
    model.generate(PROMPTS[1:], max_new_tokens=10, temperature=2.0)
    assert tokens_of(model.generate(**a)) == first
    cache = model.prefill(PROMPTS[3])
    whole = tokens_of(model.generate([[1, 2]], cache=cache, max_new_tokens=9, temperature=0))

    def broken(ids):
        if len(ids) > 10:
            raise KeyError("broken")

    with pytest.raises(KeyError):
        model.generate(**a, constrain=broken)
    with pytest.raises(KeyError):
        model.generate([[1, 2]], cache=cache, max_new_tokens=3, constrain=broken)
    with pytest.raises(ZeroDivisionError):
        model.generate(**a, progress=lambda n: 1 // 0)
    assert tokens_of(model.generate(**a)) == first
    assert tokens_of(model.generate([[1, 2]], cache=cache, max_new_tokens=9, temperature=0)) == whole


def test_kv_07_a_cache_is_continued_many_times(model):
    """By copies: the cache stays as it was, and what comes is what comes from the whole prompt."""
    cache = model.prefill(PROMPTS[3])
    assert (cache.lengths, cache.tokens[0].tolist()) == ([60], PROMPTS[3])
    more = [[7], [1, 2, 3], [], [7, 8]]
    given = {"max_new_tokens": 8, "seed": 3, "logprobs": 0, "details": True}
    expected = model.generate([PROMPTS[3] + ids for ids in more], **given)
    for _ in range(2):
        for result, right in zip(model.generate(more, cache=cache, **given), expected, strict=True):
            same(result, (right.tokens.tolist(), right.logprobs))
        assert cache.lengths == [60]
    assert (
        tokens_of(model.generate([[]], cache=cache, max_new_tokens=8, seed=3))[0]
        == plain(model, PROMPTS[3], 3, max_new_tokens=8)[0]
    )


def test_penalties_and_windows_see_what_the_cache_holds(short):
    cache = short.prefill([1, 2, 3, 4, 5])
    given = {"max_new_tokens": 20, "on_full": "slide", "slide_to": 6, "repetition_penalty": 1.7}
    result = short.generate([[6]], cache=cache, **given, seed=2, logprobs=0, details=True)[0]
    same(result, plain(short, [1, 2, 3, 4, 5, 6], 2, **given))


def test_a_cache_of_small_capacity_is_full_early(model):
    cache = model.new_cache(capacity=10)
    model.next_logits([1, 2, 3, 4], cache)
    result = model.generate([[5]], cache=cache, details=True, seed=0)[0]
    assert (len(result.tokens), result.finish_reason) == (6, "context")
    assert result.tokens.tolist() == plain(model, [1, 2, 3, 4, 5], 0, max_new_tokens=6)[0]
    with pytest.raises(
        ValueError, match=r"^prompts\[0\]: 7 tokens after 4 cached do not fit the cache's capacity of 10"
    ):
        model.generate([[5] * 7], cache=cache, max_new_tokens=1)


def test_an_empty_cache_is_no_beginning(model):
    with pytest.raises(ValueError, match=r"^prompts\[0\]: expected at least one token"):
        model.generate([[]], cache=model.new_cache(), max_new_tokens=1)
    new = model.generate([[4, 5]], cache=model.new_cache(), max_new_tokens=5, seed=2)
    assert tokens_of(new) == tokens_of(model.generate([[4, 5]], max_new_tokens=5, seed=2))


def test_wrong_caches(model, short, build):
    with pytest.raises(TypeError, match=r"^cache: expected a KVCache, got list"):
        model.generate([[1]], cache=[model.new_cache()])
    with pytest.raises(ValueError, match=r"^cache: expected a cache of one slot, got 2"):
        model.generate([[1]], cache=model.new_cache(2))
    with pytest.raises(ValueError, match=r"^cache: expected a cache of this model"):
        model.generate([[1]], cache=build(61, 12, 3, 2, 150).new_cache())
    larger = build(90, 20, 5, 2, 150)
    with pytest.raises(ValueError, match=r"^cache: id 80 at \[1\] is outside the vocabulary of 61"):
        model.generate([[1]], cache=larger.prefill([3, 80]), max_new_tokens=1)


@pytest.mark.parametrize("wrong", [b"", {}, np.empty((0, 4), int)], ids=repr)
def test_what_is_empty_is_not_always_a_prompt(model, wrong):
    with pytest.raises(TypeError, match=r"^prompts\[1\]: expected "):
        model.generate([[1], wrong], cache=model.prefill([1, 2]), max_new_tokens=1)


def test_a_cache_in_use(same_bits):
    """Another call meanwhile is a RuntimeError, and the first one ends as if alone."""
    model = gpt2cy.GPT(gpt2cy.GPTConfig(97, 256, 4, 6, 512), seed=0)
    ids = formula.tokens(model.config, 1, 500)[0]
    expected = model.next_logits(ids)
    cache = model.new_cache()
    refused, results = [], []

    def work():
        while not refused and len(results) < 100:
            with contextlib.suppress(RuntimeError):  # the other thread was quicker
                cache.reset()
                results.append(model.next_logits(ids, cache))

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        try:
            model.generate([[1]], cache=cache, max_new_tokens=0)
        except RuntimeError as error:
            refused.append(str(error))
        time.sleep(0.001)
    thread.join()
    assert set(refused) == {"cache: in use by another call"}
    for result in results:
        same_bits(result, expected)


@pytest.mark.parametrize("wrong", [5, None, "text", [[1, 2]], [], [61], [1.5]])
def test_prefill_refuses(model, wrong):
    with pytest.raises((TypeError, ValueError), match="^prompt: "):
        model.prefill(wrong)


# ---- ends ------------------------------------------------------------------------------------------------


def test_stop_ids(model):
    """The id is emitted, and nothing after it; rows that end do so alone."""
    free = model.generate(PROMPTS[:3], max_new_tokens=30, seed=8)
    stops = [int(free[0][4]), int(free[1][11])]
    results = model.generate(PROMPTS[:3], max_new_tokens=30, seed=8, stop_ids=stops, details=True)
    for result, whole in zip(results, free, strict=True):
        at = next((i for i, token in enumerate(whole) if token in stops), 29)
        assert result.tokens.tolist() == whole[: at + 1].tolist()
        hit = whole[at] in stops
        assert (result.finish_reason, result.stop) == (("stop_id", whole[at]) if hit else ("length", None))
    each = model.generate(
        PROMPTS[:3], max_new_tokens=30, seed=8, stop_ids=[[stops[0]], None, stops], details=True
    )
    assert each[1].finish_reason == "length"
    assert each[0].tokens.tolist() == free[0][: free[0].tolist().index(stops[0]) + 1].tolist()


def test_rows_that_end_leave_the_batch(model):
    """As many rows are computed as there are rows that go on."""

    lengths = [1, 4, 2, 4]
    chosen = [Sampling(max_new_tokens=n) for n in lengths]
    prompts = [np.array([i]) for i in range(4)]
    rows = make_rows(model, prompts, chosen, [(0, i) for i in range(4)], None)
    batch = Batch(counting := Counting(model), rows)
    steps = []
    while batch.running:
        steps.append(len(batch.step()))
    assert counting.passes == steps == [4, 3, 2, 2]
    assert [len(row.tokens) for row in rows] == lengths


def test_the_prompt_of_several_samples_is_computed_once(model):
    """The rows of one prompt and of one other, then one a sample and step."""
    chosen = [Sampling(max_new_tokens=3, num_return_sequences=n) for n in (3, 1, 2)]
    prompts = [np.arange(50), np.arange(50) + 1, np.arange(50)]
    batch = Batch(
        counting := Counting(model), make_rows(model, prompts, chosen, [(0, i) for i in range(3)], None)
    )
    while batch.running:
        batch.step()
    assert counting.passes == [100, 6, 6]


def test_more_rows_than_memory(monkeypatch):
    """Said before they are allocated."""
    model = gpt2cy.GPT(gpt2cy.GPTConfig(50257, 8, 1, 1, 8), seed=0)
    wide = gpt2cy.GPT(gpt2cy.GPTConfig(61, 1024, 8, 4, 512), seed=0)
    monkeypatch.setattr(host, "available_memory", lambda: 1 << 20)
    with pytest.raises(
        MemoryError, match=r"^prompts: 400 at once .*logits.*reduce the number of prompts or of"
    ):
        model.generate([[1]], max_new_tokens=1, n=400)
    for many in ({"n": 10**12}, {"num_beams": 10**12}):  # or whoever makes a list of them
        with pytest.raises(MemoryError, match=r"^prompts: 1000000000000 at once .*reduce the number of"):
            model.generate([[1]], max_new_tokens=1, **many)
    with pytest.raises(MemoryError, match=r"^prompts: 8 at once are too many: .*cache [0-9]+ MiB"):
        wide.generate(np.arange(8 * 400).reshape(8, 400) % 61, max_new_tokens=1)


def test_stop_strings_need_a_tokenizer(model):
    with pytest.raises(ValueError, match=r"^stop: strings need a tokenizer: LanguageModel.generate has one"):
        model.generate([[1]], stop="x", max_new_tokens=1)


def test_load_20_stop_ids_are_ids_of_the_model(model):
    with pytest.raises(ValueError, match=r"^stop_ids: id 61 at \[0\] is outside the vocabulary of 61"):
        model.generate([[1]], stop_ids=[61], max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^prompts\[0\]: id 61 at \[1\] is outside the vocabulary of 61"):
        model.generate([[1, 61]], max_new_tokens=1)


@pytest.mark.parametrize("many", [62, 10**6, 2**70])
def test_no_more_than_the_model_has(model, many):
    """Of ids that exist and of alternatives, as in scoring; `top_k` takes all that there are."""
    limit = f"^vocab_limit: expected an integer from 1 to 61, got {many}"
    for given in (
        {"vocab_limit": many},
        {"vocab_limit": [61, many]},
        {"vocab_limit": many, "num_beams": 2},
        {"sampling": Sampling(vocab_limit=many)},
    ):
        with pytest.raises(ValueError, match=limit):
            model.generate([[1], [2]], max_new_tokens=1, **given)
    for given in ({"logprobs": many}, {"logprobs": [None, many]}, {"sampling": Sampling(logprobs=many)}):
        with pytest.raises(ValueError, match=f"^logprobs: expected an integer from 0 to 61, got {many}"):
            model.generate([[1], [2]], max_new_tokens=1, **given)
    given = {"max_new_tokens": 3, "seed": 1, "details": True}
    result = model.generate([[1]], top_k=many, vocab_limit=61, logprobs=61, **given)[0]
    assert [len(top) for top in result.top_logprobs] == [61] * 3
    assert result.tokens.tolist() == model.generate([[1]], **given)[0].tokens.tolist()


@pytest.mark.parametrize("prompt", [[3, 7, 4], [7, 4], [7, 7, 4], [4, 7]])
def test_stop_ids_in_the_prompt_do_not_end_it(model, prompt):
    """Only what comes counts: wherever in the prompt one stands."""
    given = {"max_new_tokens": 3, "stop_ids": [7], "details": True}
    for more in ({}, {"n": 2}, {"num_beams": 2}, {"cache": model.prefill([7, 1])}):
        for result in model.generate([prompt], constrain=lambda ids: [5], **given, **more):
            assert (result.tokens.tolist(), result.finish_reason) == ([5] * 3, "length")
    result = model.generate([prompt], constrain=lambda ids: [5 if len(ids) == len(prompt) else 7], **given)[0]
    assert (result.tokens.tolist(), result.finish_reason, result.stop) == ([5, 7], "stop_id", 7)


def test_load_06_ids_beyond_a_limit_do_not_come(build):
    """A padded vocabulary: the likeliest id has no token; with a limit it never comes."""
    model = build(64, 20, 5, 2, 40)
    model.lm_head.bias = np.where(np.arange(64) == 63, 100, 0).astype(np.float32)
    assert tokens_of(model.generate([[1]], max_new_tokens=3, temperature=0)) == [[63] * 3]
    for temperature in (0, 1.0, 5.0):
        new = model.generate([[1]], max_new_tokens=30, temperature=temperature, vocab_limit=61, seed=0)
        assert new[0].max() < 61


# ---- seeds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**63, -1])
def test_gen_02_a_seed_gives_the_same_text(model, seed):
    np.random.seed(5)  # noqa: NPY002 (the global state is what this is about)
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    results = []
    for n_threads in (1, 2, 4, 1):
        gpt2cy.set_num_threads(n_threads)
        results.append(tokens_of(model.generate(PROMPTS, max_new_tokens=8, seed=seed)))
    assert all(result == results[0] for result in results)
    assert results[0] != tokens_of(model.generate(PROMPTS, max_new_tokens=8, seed=seed + 1))
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_gen_02_without_a_seed_one_is_drawn_and_told(model):
    first = model.generate(PROMPTS, max_new_tokens=8, details=True)
    other = model.generate(PROMPTS, max_new_tokens=8, details=True)
    assert len({result.seed for result in first}) == 1
    assert first[0].seed != other[0].seed
    again = model.generate(PROMPTS, max_new_tokens=8, seed=first[0].seed)
    assert tokens_of(again) == [result.tokens.tolist() for result in first]


def test_gen_02_rows_and_samples_differ(model):
    """Equal prompts and samples of one prompt are not copies of one another."""
    new = tokens_of(model.generate([[1, 2]] * 4, n=3, max_new_tokens=12, seed=0))
    assert len({tuple(tokens) for tokens in new}) == 12


def test_gen_02_a_seed_for_each_prompt_goes_with_it(model):
    seeds = [11, 12, 13, 14, None]
    results = model.generate(PROMPTS, max_new_tokens=8, seed=seeds, details=True)
    assert [result.seed for result in results[:4]] == seeds[:4]
    for i in (3, 0, 1):
        alone = model.generate([PROMPTS[i]], max_new_tokens=8, seed=seeds[i])
        assert tokens_of(alone) == [results[i].tokens.tolist()]
    listed = [Sampling(max_new_tokens=8, seed=seed) for seed in seeds]
    again = tokens_of(model.generate(PROMPTS, listed))
    assert again[:4] == [result.tokens.tolist() for result in results[:4]]


@pytest.mark.parametrize(
    "given", [{"seed": [7, None, None]}, {"sampling": [Sampling(), Sampling(seed=7), Sampling()]}], ids=str
)
def test_gen_02_seeds_drawn_for_prompts_replay(model, given):
    results = model.generate([[1, 2]] * 3, max_new_tokens=12, details=True, **given)
    again = model.generate([[1, 2]] * 3, max_new_tokens=12, seed=[result.seed for result in results])
    assert tokens_of(again) == [result.tokens.tolist() for result in results]
    assert len({result.seed for result in results}) == 3


def test_gen_02_two_models_at_once(build):
    models = [build(*SIZES), build(*SIZES, scale=0.5)]
    expected = [tokens_of(model.generate(PROMPTS, max_new_tokens=10, seed=7)) for model in models]
    found = {}

    def work(i):
        found[i] = [tokens_of(models[i].generate(PROMPTS, max_new_tokens=10, seed=7)) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(2)] == [[one] * 5 for one in expected]


# ---- settings --------------------------------------------------------------------------------------------


def test_gen_16_settings_for_each_prompt(model):
    """Each row has its own, whether they come in lists or as a list of Sampling."""
    temperatures = [0.0, 1.0, 0.0, 5.0, 0.7]
    results = model.generate(
        PROMPTS, max_new_tokens=10, temperature=temperatures, seed=2, logprobs=0, details=True
    )
    for i, result in enumerate(results):
        same(result, plain(model, PROMPTS[i], 2, i, max_new_tokens=10, temperature=temperatures[i]))
    array = model.generate(PROMPTS, max_new_tokens=10, temperature=np.array(temperatures), seed=2)
    assert tokens_of(array) == [result.tokens.tolist() for result in results]
    listed = [Sampling(temperature=temperature) for temperature in temperatures]
    again = model.generate(PROMPTS, listed, max_new_tokens=10, seed=2)
    assert tokens_of(again) == [result.tokens.tolist() for result in results]


def test_settings_change_a_sampling(model):
    base = Sampling(max_new_tokens=5, temperature=0)
    assert tokens_of(model.generate([[1]], base)) == tokens_of(
        model.generate([[1]], max_new_tokens=5, temperature=0)
    )
    assert [len(new) for new in model.generate([[1], [2]], base, max_new_tokens=[2, 3])] == [2, 3]
    assert base.max_new_tokens == 5


@pytest.mark.parametrize("name", ["temperature", "max_new_tokens", "seed", "top_p", "n", "constrain"])
def test_a_list_has_one_for_each_prompt(model, name):
    with pytest.raises(
        ValueError, match=rf"^{name}: expected one value, or a list of 2, one a prompt, got 3"
    ):
        model.generate([[1], [2]], **{"max_new_tokens": 1, name: [None] * 3})
    with pytest.raises(
        ValueError, match=r"^sampling: expected one value, or a list of 2, one a prompt, got 1"
    ):
        model.generate([[1], [2]], [Sampling()])
    with pytest.raises(
        ValueError, match=r"^stop_ids: expected one value, or a list of 2, one a prompt, got 3"
    ):
        model.generate([[1], [2]], stop_ids=[[1], None, [2, 3]])


def test_an_error_in_a_list_says_which(model):
    with pytest.raises(ValueError, match=r"^temperature\[1\]: expected a finite number >= 0, got -1"):
        model.generate([[1], [2]], temperature=[1.0, -1], max_new_tokens=1)
    with pytest.raises(TypeError, match=r"^stop_ids\[0\]: "):
        model.generate([[1], [2]], stop_ids=[["x"], None], max_new_tokens=1)
    with pytest.raises(ValueError, match=r"^top_k: "):
        model.generate([[1], [2]], temperature=[1.0, 0], top_k=-1, max_new_tokens=1)


def test_what_is_no_setting(model):
    with pytest.raises(TypeError, match="temprature"):
        model.generate([[1]], temprature=1.0)
    with pytest.raises(TypeError, match="max_length"):
        model.generate([[1]], max_length=5)
    with pytest.raises(TypeError, match=r"^sampling: expected a Sampling, got dict"):
        model.generate([[1]], {"temperature": 1.0})
    with pytest.raises(TypeError, match=r"^sampling\[1\]: expected a Sampling, got NoneType"):
        model.generate([[1], [2]], [Sampling(), None])
    with pytest.raises(TypeError, match=r"^progress: expected a function or None, got int"):
        model.generate([[1]], max_new_tokens=1, progress=5)
    with pytest.raises(TypeError, match=r"^details: expected True or False"):
        model.generate([[1]], max_new_tokens=1, details=1)


def test_logprobs(model):
    """Of the model's own distribution, whatever the temperature; alternatives in their order."""
    ids = PROMPTS[0]
    result = model.generate([ids], max_new_tokens=5, temperature=3.0, logprobs=4, seed=1, details=True)[0]
    logits = model.forward([*ids, *result.tokens])[len(ids) - 1 : -1].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(result.logprobs, expected[range(5), result.tokens], rtol=1e-5)
    for top, row in zip(result.top_logprobs, expected, strict=True):
        assert [token for token, _ in top] == np.argsort(-row, kind="stable")[:4].tolist()
        np.testing.assert_allclose([value for _, value in top], np.sort(row)[::-1][:4], rtol=1e-5)
    values = result.to_dict()
    assert (values["tokens"], len(values["logprobs"]), len(values["top_logprobs"])) == (
        result.tokens.tolist(),
        5,
        5,
    )


def test_rows_with_and_without_logprobs(model):
    with_, without = model.generate([[1], [2]], max_new_tokens=3, logprobs=[2, None], seed=1, details=True)
    assert len(with_.logprobs) == len(with_.top_logprobs) == 3
    assert without.logprobs is without.top_logprobs is None


def test_constrain_sees_everything_so_far(model):
    seen = []

    def only_even(ids):
        seen.append(ids.tolist())
        return np.arange(0, 61, 2)

    new = model.generate([[1, 3]], max_new_tokens=4, constrain=only_even, seed=0)[0]
    assert (new % 2 == 0).all()
    assert seen == [[1, 3, *new[:i].tolist()] for i in range(4)]


def test_progress(model):
    counts = []
    model.generate([[1], [2]], max_new_tokens=[1, 3], n=2, progress=counts.append)
    assert counts == [4, 2, 2]


# ---- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        (
            "text",
            TypeError,
            "prompts: expected lists of token ids, got str; LanguageModel.generate takes text",
        ),
        (
            ["text"],
            TypeError,
            "prompts: expected lists of token ids, got str; LanguageModel.generate takes text",
        ),
        ([], ValueError, "prompts: expected at least one sequence, got none"),
        ([[]], ValueError, r"prompts\[0\]: expected at least one token"),
        ([[1], []], ValueError, r"prompts\[1\]: expected at least one token"),
        (np.zeros((0, 4), int), ValueError, "prompts: expected at least one"),
        (np.zeros((2, 0), int), ValueError, r"prompts\[0\]: expected at least one token"),
        (
            [1, 2],
            ValueError,
            r"prompts: expected a list of id sequences, got one of ids; one prompt is \[ids\]",
        ),
        (np.array([1, 2]), ValueError, "prompts"),
        ([[1, -1]], ValueError, r"prompts\[0\]: id -1 at \[1\] is outside the vocabulary of 61"),
        ([[1.5]], TypeError, r"prompts\[0\]: expected integer ids"),
        (5, TypeError, "prompts: expected a list of token id sequences"),
        (None, TypeError, "prompts: expected a list of token id sequences"),
    ],
)
def test_gen_13_prompts(model, prompts, error, message):
    with pytest.raises(error, match="^" + message):
        model.generate(prompts, max_new_tokens=1)


@pytest.mark.parametrize(
    "prompts", [np.array([[1, 2], [3, 4]]), ([1, 2], [3, 4]), [np.uint8([1, 2]), range(3, 5)]]
)
def test_kinds_of_prompts(model, prompts):
    expected = tokens_of(model.generate([[1, 2], [3, 4]], max_new_tokens=4, seed=0))
    assert tokens_of(model.generate(prompts, max_new_tokens=4, seed=0)) == expected


def test_gen_14_no_tokens_no_forward(model):
    """0 gives empty arrays and computes nothing: the weights may even be NaN."""
    broken = gpt2cy.GPT(model.config, seed=0)
    broken.wte.weight = np.full(broken.wte.weight.shape, np.nan, np.float32)
    for result in broken.generate([[1], [2]], n=2, max_new_tokens=0, details=True):
        assert (result.tokens.shape, result.tokens.dtype, result.finish_reason) == ((0,), np.int64, "length")
    with pytest.raises(ValueError, match=r"^max_new_tokens: "):
        model.generate([[1]], max_new_tokens=-1)
    new = model.generate([[1], [2]], max_new_tokens=[0, 2], temperature=0)
    assert [len(tokens) for tokens in new] == [0, 2]


def test_gen_10_logits_that_are_not_finite(model):
    """A NaN weight of one id: an error when it is read, that says where; the model goes on."""
    broken = gpt2cy.GPT(model.config, seed=0)
    weight = broken.wte.weight.copy()
    weight[7] = np.nan
    broken.wte.weight = weight
    assert len(broken.generate([[1], [2]], max_new_tokens=2, logit_bias={7: -np.inf})[1]) == 2
    with pytest.raises(FloatingPointError, match="row 1.* step 0; it began with embed: nan at position 1 of"):
        broken.generate([[1], [2, 7]], max_new_tokens=2)
    with pytest.raises(FloatingPointError, match="step 1; it began with embed: nan at position 1 of"):
        broken.generate([[1]], max_new_tokens=2, constrain=lambda ids: [7])
    assert len(broken.generate([[1], [2]], max_new_tokens=2, logit_bias={7: -np.inf})[0]) == 2


# ---- memory, signals -------------------------------------------------------------------------------------


def test_kv_09_only_last_positions_have_logits(python):
    """1,000 ids of 50,257 each: their logits would be 191 MiB."""
    code = """
import resource, numpy as np, gpt2cy
model = gpt2cy.GPT(gpt2cy.GPTConfig(50257, 32, 2, 2, 1024), seed=0)
ids = np.arange(1000)
model.generate([[1]], max_new_tokens=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model.generate([ids], max_new_tokens=3)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    assert float(python(code)) < 30


@pytest.mark.alone
def test_gen_17_control_c(python):
    """KeyboardInterrupt within a token's time, and what the system adds; model and cache are as before."""
    code = """
import signal, time, numpy as np, gpt2cy
signal.signal(signal.SIGALRM, signal.default_int_handler)  # what Ctrl-C does, at a time of our choice
model = gpt2cy.GPT(gpt2cy.GPTConfig(97, 128, 4, 4, 256), seed=0)
cache = model.prefill(range(20))
given = dict(max_new_tokens=10_000, on_full="slide", seed=1)
start = time.perf_counter()
expected = model.generate([[1], [2]], cache=cache, **{**given, "max_new_tokens": 100})
token = (time.perf_counter() - start) / 100
late = []
for _ in range(5):
    start = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        model.generate([[1], [2]], cache=cache, **given)
    except KeyboardInterrupt:
        late.append(time.perf_counter() - start - 0.3)
print(len(late), min(late) < token + 0.02, cache.lengths)
again = model.generate([[1], [2]], cache=cache, **{**given, "max_new_tokens": 100})
print(all((a == b).all() for a, b in zip(again, expected)))
"""
    assert python(code).split() == ["5", "True", "[20]", "True"]
