# SPDX-License-Identifier: Apache-2.0
"""KVCache: what it holds, how it grows, is cut and copied, and who may use it."""

import contextlib
import gc
import threading
import time

import formula
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpt2cy

SIZES = (61, 12, 2, 3, 200)
BLOCK = 64  # positions


@pytest.fixture(scope="module", params=[12, 64], ids=["narrow", "wide"])
def model(request):
    """Heads of 6 and of 32: those of whole panels put their keys in as they attend."""
    config = gpt2cy.GPTConfig(61, request.param, *SIZES[2:])
    made = gpt2cy.GPT(config)
    made.load_state_dict(formula.weights(config))
    return made


@pytest.fixture(scope="module")
def tokens(model):
    return formula.tokens(model.config, 1, 200)[0]


def fed(model, cache, tokens, cuts=()):
    """Logits of tokens given to the cache in pieces."""
    return np.concatenate([model(piece, cache) for piece in np.split(tokens, cuts, axis=-1)], axis=-2)


# ---- the same bits


@pytest.mark.parametrize("cuts", [(), (1,), (9,), (3, 6), range(1, 10)], ids=str)
def test_ten_tokens_in_pieces(model, tokens, same_bits, cuts):
    """KV-01"""
    same_bits(fed(model, model.new_cache(), tokens[:10], list(cuts)), model(tokens[:10]))


def test_the_position_goes_on(build, same_bits):
    """KV-02: rows of wpe that differ much; one new token behind four."""
    model = build(*SIZES)
    model.wpe.weight = np.arange(200.0)[:, None] * 10 + np.arange(12.0)
    cache = model.new_cache()
    model([5, 6, 7, 8], cache)
    same_bits(model([9], cache)[0], model([5, 6, 7, 8, 9])[4])
    assert (model([9])[0] != model([5, 6, 7, 8, 9])[4]).any()


@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6), batch=st.integers(1, 3))
def test_any_pieces_of_a_batch(model, same_bits, lengths, batch):
    tokens = formula.tokens(model.config, batch, min(sum(lengths), 200))
    cuts = [cut for cut in np.cumsum(lengths) if cut < tokens.shape[1]]
    cache = model.new_cache(batch)
    same_bits(fed(model, cache, tokens, cuts), model(tokens))
    assert cache.lengths == [tokens.shape[1]] * batch


def test_all_three_calls_append(model, tokens, same_bits):
    whole = model(tokens[:90])
    cache = model.new_cache()
    same_bits(model.forward(tokens[:20], cache=cache), whole[:20])
    same_bits(model.next_logits(tokens[20:50], cache=cache), whole[49])
    same_bits(model.forward_many([tokens[50:70]], caches=[cache])[0], whole[50:70])
    same_bits(model.next_logits(tokens[70:71], cache=cache), whole[70])
    same_bits(model(tokens[71:90], cache), whole[71:])
    assert cache.lengths == [90]


def test_ragged_sequences_continue_each_at_its_own_position(model, tokens, same_bits):
    lengths = [1, 63, 64, 65, 100]
    caches = [model.new_cache() for _ in lengths]
    model.forward_many([tokens[:length] for length in lengths], caches)
    assert [cache.lengths for cache in caches] == [[length] for length in lengths]
    results = model.forward_many(
        [tokens[length : length + 5 + i] for i, length in enumerate(lengths)], caches
    )
    whole = model(tokens)
    for i, length in enumerate(lengths):
        same_bits(results[i], whole[length : length + 5 + i])


def test_an_ids_shape_does_not_matter_to_a_cache(model, tokens, same_bits):
    """huggingface/transformers#27040: [T] with a cache."""
    flat, batch = model.new_cache(), model.new_cache()
    for piece in (tokens[:5], tokens[5:6], tokens[6:9]):
        same_bits(model(piece, flat), model(piece[None], batch)[0])


# ---- limits


def test_reaching_and_passing_the_end(build):
    """KV-04"""
    model = build(61, 12, 2, 1, 8)
    assert model(range(7)).shape == (7, 61)
    assert model(range(8)).shape == (8, 61)
    with pytest.raises(ValueError, match=r"^tokens: 9 tokens do not fit the block_size of 8"):
        model(range(9))
    cache = model.new_cache()
    model(range(8), cache)
    for call in (model, model.next_logits):
        with pytest.raises(
            ValueError, match=r"^tokens: 1 token after 8 cached does not fit the block_size of 8"
        ):
            call([1], cache)
    with pytest.raises(ValueError, match=r"^sequences\[0\]: 1 token after 8 cached"):
        model.forward_many([[1]], [cache])
    assert cache.lengths == [8]


def test_a_capacity_below_the_models(model, tokens, same_bits):
    cache = model.new_cache(capacity=70)
    assert cache.capacity == 70
    model(tokens[:69], cache)
    with pytest.raises(ValueError, match=r"^cache: slot 0 holds 69 of 70 positions, 2 more do not fit"):
        model(tokens[69:71], cache)
    same_bits(model(tokens[69:70], cache)[0], model(tokens[:70])[69])
    assert cache.lengths == [70]


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("batch_size", (0,)),
        ("batch_size", (-1,)),
        ("batch_size", (1.0,)),
        ("batch_size", (None,)),
        ("batch_size", (2**62,)),
        ("batch_size", (True,)),
        ("capacity", (1, 0)),
        ("capacity", (1, 201)),
        ("capacity", (1, 2.0)),
        ("capacity", (1, "8")),
    ],
)
def test_arguments_are_checked(model, name, arguments):
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected"):
        model.new_cache(*arguments)
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected"):
        gpt2cy.KVCache(model.config, *arguments)


# ---- memory


def test_bytes_come_in_blocks_of_64(model, tokens):
    """KV-09: 2 L C 4 bytes a position."""
    block = BLOCK * 2 * 3 * model.config.n_embd * 4
    cache = model.new_cache()
    assert cache.nbytes == 0
    seen = []
    for length in (1, 62, 1, 1, 63, 1):
        model(tokens[:length], cache)
        seen.append(cache.nbytes)
    assert cache.lengths == [129]
    assert seen == [block, block, block, 2 * block, 2 * block, 3 * block]


def test_bytes_of_released_shapes():
    """KV-09: small 72 MiB at 1024 positions; the plan counts keys and values alone."""
    assert gpt2cy.GPTConfig.preset("gpt2").memory_plan()["cache"] == 1024 * 73_728
    assert gpt2cy.GPTConfig.preset("gpt2-medium").memory_plan()["cache"] == 192 << 20
    assert gpt2cy.GPTConfig.preset("gpt2-large").memory_plan()["cache"] == 360 << 20
    assert gpt2cy.GPTConfig.preset("gpt2-xl").memory_plan()["cache"] == 600 << 20


def test_the_plan_counts_what_the_cache_holds(model, tokens):
    for batch, length in ((1, 1), (2, 64), (3, 65), (1, 200)):
        cache = model.new_cache(batch)
        model(np.tile(tokens[:length], (batch, 1)), cache)
        assert cache.nbytes == model.config.memory_plan(batch, length)["cache"]


def test_truncate_frees_blocks_and_goes_on(model, tokens, same_bits):
    whole = model(tokens)
    cache = model.new_cache()
    model(tokens[:150], cache)
    block = cache.nbytes // 3
    for keep in (150, 149, 129, 128, 65, 64, 63, 1):
        cache.truncate(keep)
        assert cache.lengths == [keep]
        assert cache.nbytes == -(-keep // BLOCK) * block
        other = cache.copy()
        same_bits(model(tokens[keep:], other), whole[keep:])
        same_bits(model(tokens[keep : keep + 1], cache), whole[keep : keep + 1])
        cache.truncate(keep)
    cache.reset()
    assert (cache.lengths, cache.nbytes) == ([0], 0)
    same_bits(model(tokens, cache), whole)


def test_truncated_positions_are_written_anew(model, tokens, same_bits):
    cache = model.new_cache()
    model(tokens[:100], cache)
    cache.truncate(30)
    other = np.concatenate([tokens[:30], tokens[130:190]])
    same_bits(model(other[30:], cache), model(other)[30:])


def test_truncate_of_several_slots(model, tokens):
    cache = model.new_cache(3)
    model(np.tile(tokens[:100], (3, 1)), cache)
    cache.truncate([100, 64, 0])
    assert cache.lengths == [100, 64, 0]
    assert cache.nbytes == 3 * BLOCK * 2 * 3 * model.config.n_embd * 4
    cache.truncate(70)
    assert cache.lengths == [70, 64, 0]


@pytest.mark.parametrize(
    "n", [-1, 11, None, 1.0, True, "1", [1, 2], [11], [-1], [None], 2**70, np.array([1.0])]
)
def test_truncate_is_checked(model, tokens, n):
    cache = model.new_cache()
    model(tokens[:10], cache)
    with pytest.raises((TypeError, ValueError), match=r"^n(\[0\])?: expected"):
        cache.truncate(n)
    assert cache.lengths == [10]


# ---- copies


def test_copies_share_until_one_writes(model, tokens, same_bits):
    """KV-07: copies that go on differently leave each other and the original alone."""
    cache = model.new_cache()
    model(tokens[:100], cache)
    one, two = cache.copy(), cache.copy()
    assert one.lengths == two.lengths == [100]
    assert (one.batch_size, one.capacity) == (cache.batch_size, cache.capacity)
    first, second = tokens[100:170], tokens[10:80]
    expected = {
        name: model(np.concatenate([tokens[:100], end]))[100:] for name, end in (("1", first), ("2", second))
    }
    same_bits(model(first, one), expected["1"])
    same_bits(model(second, two), expected["2"])
    assert cache.lengths == [100]
    same_bits(model(second, cache), expected["2"])
    same_bits(model(first, cache.copy() if cache.truncate(100) else cache), expected["1"])


def test_copies_that_take_turns_do_not_meet(model, tokens, same_bits):
    """Each writes its own tokens to the positions of a block that was shared, then reads them back later."""
    cache = model.new_cache()
    model(tokens[:70], cache)
    caches = [cache, cache.copy(), cache.copy(), cache.copy().copy()]
    texts = [np.concatenate([tokens[:70], tokens[i : i + 80]]) for i in (70, 3, 50, 101)]
    expected = [model(text) for text in texts]
    for start in range(70, 150, 10):
        for cache, text, logits in zip(caches, texts, expected, strict=True):
            same_bits(model(text[start : start + 10], cache), logits[start : start + 10])


def test_a_copy_outlives_the_original(model, tokens, same_bits):
    cache = model.new_cache()
    model(tokens[:100], cache)
    copy = cache.copy()
    cache.reset()
    del cache
    gc.collect()
    same_bits(model(tokens[100:], copy), model(tokens)[100:])


def test_cutting_a_copy_leaves_the_original(model, tokens, same_bits):
    cache = model.new_cache(2)
    model(np.tile(tokens[:100], (2, 1)), cache)
    copy = cache.copy()
    copy.truncate([30, 0])
    model(np.tile(tokens[50:60], (2, 1)), copy)
    assert copy.lengths == [40, 10]
    assert cache.lengths == [100, 100]
    for logits in model(np.tile(tokens[100:], (2, 1)), cache):
        same_bits(logits, model(tokens)[100:])


def test_copies_cost_only_what_they_write():
    """100 copies of a cache of 8 blocks, each with one block of its own: not 100 times the whole."""
    config = gpt2cy.GPTConfig(61, 256, 4, 4, 512)
    model = gpt2cy.GPT(config, seed=0)
    cache = model.new_cache()
    model.next_logits(np.zeros(500, int), cache)
    resident = resident_bytes()
    copies = [cache.copy() for _ in range(100)]
    assert resident_bytes() - resident < 4 << 20
    for copy in copies:
        model.next_logits([1], copy)
    block = cache.nbytes // 8
    assert resident_bytes() - resident < 1.3 * 100 * block + (4 << 20)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


# ---- wrong caches, and one in use


def test_a_cache_of_another_model(model, build):
    others = [build(61, 24, 2, 3, 200), build(61, 12, 3, 3, 200), build(61, 12, 2, 2, 200)]
    for other in others:
        with pytest.raises(ValueError, match=r"^cache: expected a cache of this model"):
            model([1], other.new_cache())
        with pytest.raises(ValueError, match=r"^caches\[1\]: expected a cache of this model"):
            model.forward_many([[1], [2]], [model.new_cache(), other.new_cache()])


def test_slots_must_match_rows(model):
    for tokens, batch in (([1], 2), ([[1], [2]], 1), ([[1]], 3)):
        with pytest.raises(ValueError, match=r"^cache: expected one slot a row"):
            model(tokens, model.new_cache(batch))
    with pytest.raises(ValueError, match=r"^caches\[0\]: expected a cache of one slot, got 2"):
        model.forward_many([[1]], [model.new_cache(2)])


@pytest.mark.parametrize("cache", [1, "cache", [], {}, object(), True])
def test_what_is_not_a_cache(model, cache):
    for call in (model, model.forward, model.next_logits):
        with pytest.raises(TypeError, match=r"^cache: expected a KVCache"):
            call([1], cache)
    with pytest.raises(TypeError, match=r"^caches\[0\]: expected a KVCache"):
        model.forward_many([[1]], [cache])


def test_lists_of_caches(model):
    cache = model.new_cache()
    with pytest.raises(ValueError, match=r"^caches: the same cache is given twice"):
        model.forward_many([[1], [2]], [cache, cache])
    with pytest.raises(ValueError, match=r"^caches: expected 2, one a sequence, got 1"):
        model.forward_many([[1], [2]], [cache])
    for wrong in (cache, 5, {"a": cache}):
        with pytest.raises(TypeError, match=r"^caches: expected a list of KVCache"):
            model.forward_many([[1]], wrong)
    assert cache.lengths == [0]
    assert model.forward_many([[1]], (cache,))[0].shape == (1, 61)


def test_a_cache_in_use_is_refused(same_bits):
    """Another call meanwhile, or a change of the cache, is a RuntimeError; the first ends as if alone."""
    model = gpt2cy.GPT(gpt2cy.GPTConfig(97, 256, 4, 6, 512), seed=0)
    tokens = formula.tokens(model.config, 1, 400)[0]
    expected = model(tokens)
    cache = model.new_cache(capacity=400)
    results = []

    def work():
        while len(results) < 3:
            with contextlib.suppress(RuntimeError):  # the other thread was quicker
                cache.reset()
                results.append(model(tokens, cache))

    attempts = {
        "call": lambda: model([*tokens, 1], cache),  # too long for an idle cache
        "truncate": lambda: cache.truncate(0),
        "copy": cache.copy,
    }
    refused = dict.fromkeys(attempts, 0)
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        for name, attempt in attempts.items():
            try:
                attempt()
            except RuntimeError as error:
                assert str(error) == "cache: in use by another call"
                refused[name] += 1
            except ValueError as error:
                assert "of 400 positions" in str(error) or "after 400 cached" in str(error)  # it was idle
        time.sleep(0.001)
    thread.join()
    assert all(refused.values())
    for result in results:
        same_bits(result, expected)


def test_an_error_leaves_a_cache_as_it_was(model, tokens, same_bits):
    cache = model.new_cache(2)
    pair = np.stack([tokens[:30], tokens[30:60]])
    model(pair, cache)
    nbytes = cache.nbytes
    for wrong, error in (
        ([[61], [0]], ValueError),
        ([[1.0], [2.0]], TypeError),
        ([1], ValueError),
        (np.ones((2, 171), int), ValueError),
    ):
        with pytest.raises(error):
            model(wrong, cache)
        assert (cache.lengths, cache.nbytes) == ([30, 30], nbytes)
    more = np.stack([tokens[60:70], tokens[70:80]])
    same_bits(model(more, cache), model(np.concatenate([pair, more], axis=1))[:, 30:])


def test_one_full_cache_of_several_changes_none(model, tokens, same_bits):
    caches = [model.new_cache(), model.new_cache(capacity=10), model.new_cache()]
    model.forward_many([tokens[:8]] * 3, caches)
    with pytest.raises(ValueError, match="slot 0 holds 8 of 10 positions, 3 more do not fit"):
        model.forward_many([tokens[8:70], tokens[8:11], tokens[8:11]], caches)
    assert [cache.lengths for cache in caches] == [[8]] * 3
    for cache in caches:
        same_bits(model(tokens[8:10], cache), model(tokens[:10])[8:])


def test_an_interrupt_leaves_a_cache_usable(python):
    """KV-07: Ctrl-C in the middle of a call, then the same call again."""
    code = """
import signal, time
import numpy as np, gpt2cy
signal.signal(signal.SIGALRM, signal.default_int_handler)  # what Ctrl-C does, at a time of our choice
model = gpt2cy.GPT(gpt2cy.GPTConfig(97, 256, 4, 12, 1024), seed=0)
tokens = np.arange(900) % 97
cache = model.new_cache()
model.next_logits(tokens[:100], cache)
start = time.perf_counter()
expected = model.next_logits(tokens[100:], cache)
took = time.perf_counter() - start
cache.truncate(100)
for attempt in range(20):
    try:  # the first call may have been a slow one: come earlier each time
        signal.setitimer(signal.ITIMER_REAL, took / 4 / 1.5**attempt)
        model.next_logits(tokens[100:], cache)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    if cache.lengths == [100]:
        print("interrupted")
        break
    cache.truncate(100)
print((model.next_logits(tokens[100:], cache) == expected).all())
"""
    assert python(code).split() == ["interrupted", "True"]


def test_a_cache_knows_its_tokens(model, tokens):
    """The ids that it was computed from: after calls, cuts, copies that go on apart, and errors."""
    cache = model.new_cache(2)
    assert [ids.tolist() for ids in cache.tokens] == [[], []]
    pair = np.stack([tokens[:70], tokens[70:140]])
    for start in range(0, 70, 14):
        model.next_logits(pair[:, start : start + 14], cache)
    assert [ids.tolist() for ids in cache.tokens] == pair.tolist()
    copy = cache.copy()
    cache.truncate([66, 3])
    model([[5, 6], [7, 8]], cache)
    assert [ids.tolist() for ids in cache.tokens] == [[*pair[0, :66], 5, 6], [*pair[1, :3], 7, 8]]
    assert [ids.tolist() for ids in copy.tokens] == pair.tolist()
    with pytest.raises(ValueError):
        model([[61], [0]], copy)
    assert [ids.tolist() for ids in copy.tokens] == pair.tolist()
    assert copy.tokens[0].dtype == np.int64


def test_repr(model, tokens):
    cache = model.new_cache(2, capacity=50)
    model([[1, 2], [3, 4]], cache)
    assert repr(cache) == f"KVCache(batch_size=2, capacity=50, lengths=[2, 2], nbytes={cache.nbytes:,})"


def test_attributes_are_read_only(model):
    cache = model.new_cache()
    for name in ("capacity", "batch_size", "lengths", "tokens", "nbytes"):
        with pytest.raises(AttributeError):
            setattr(cache, name, 1)


def test_calls_do_not_leak_into_one_another(model, tokens, same_bits):
    """KV-07: A, B, A; also A after an error."""
    first = model(tokens[:90])
    model(tokens[90:])
    with pytest.raises(ValueError):
        model([61])
    same_bits(model(tokens[:90]), first)


# ---- states -----------------------------------------------------------------------------------------------

BLOCKS = np.zeros((1, 2 * 2 * 32 * 64), np.float32)
BAD_STATES = [
    (None, TypeError, "state: expected a list of 2 slots, got NoneType"),
    ([], ValueError, "state: expected 2 slots, got 0"),
    ([([1], BLOCKS)] * 3, ValueError, "state: expected 2 slots, got 3"),
    ([1, 2], TypeError, "state[0]: expected a pair of ids and blocks, got int"),
    ([([1], BLOCKS), None], TypeError, "state[1]: expected a pair of ids and blocks, got NoneType"),
    ([([1], BLOCKS), ([1],)], TypeError, "state[1]: expected a pair of ids and blocks, got tuple"),
    ([([1], BLOCKS), (None, None)], TypeError, "state[1]: expected integer ids, got None"),
    ([(["a"], BLOCKS)] * 2, TypeError, "state[0]: expected integer ids, got str 'a' at [0]"),
    ([([1.7], BLOCKS)] * 2, TypeError, "state[0]: expected integer ids, got float 1.7 at [0]"),
    ([([True], BLOCKS)] * 2, TypeError, "state[0]: expected integer ids, got bool True at [0]"),
    ([([-5], BLOCKS)] * 2, ValueError, "state[0]: id -5 at [0] is outside"),
    ([([[1]], BLOCKS)] * 2, ValueError, "state[0]: expected ids of shape [T], got shape [1, 1]"),
    ([(1, BLOCKS)] * 2, ValueError, "state[0]: expected ids of shape [T], got shape []"),
    ([([1] * 201, BLOCKS)] * 2, ValueError, "state[0]: number of ids: expected an integer from 0 to 200"),
    ([([1] * 65, BLOCKS)] * 2, ValueError, "state[0]: expected shape [2, 8192], got shape [1, 8192]"),
    ([([1], BLOCKS[:, 1:])] * 2, ValueError, "state[0]: expected shape [1, 8192], got shape [1, 8191]"),
    ([([1], None)] * 2, TypeError, "state[0]: expected floating-point numbers, got dtype object"),
]


@pytest.mark.parametrize(("state", "error", "message"), BAD_STATES, ids=lambda value: repr(value)[:30])
def test_bad_states_are_refused(state, error, message):
    cache = gpt2cy.KVCache(gpt2cy.GPTConfig(61, 32, 2, 2, 200), 2)
    cache.__setstate__([([3], BLOCKS), ([], BLOCKS[:0])])
    with pytest.raises(error) as caught:
        cache.__setstate__(state)
    assert str(caught.value).startswith(message)
    assert [ids.tolist() for ids in cache.tokens] == [[3], []]
