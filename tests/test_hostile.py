# SPDX-License-Identifier: Apache-2.0
"""Objects that change while they are looked at, configs that lie, parts that were never built: no crash."""

import contextlib
import pickle
import threading

import formula
import numpy as np
import pytest

import gpt2cy
from gpt2cy.kernels.packed import PackedMatrix
from gpt2cy.tokenizer import Tokenizer

CONFIG = gpt2cy.GPTConfig(61, 20, 5, 2, 150)
TOKENS = np.arange(130) % 61


@pytest.fixture
def model():
    model = gpt2cy.GPT(CONFIG)
    model.load_state_dict(formula.weights(CONFIG))
    return model


class Index:
    """An integer whose look-up does something."""

    def __init__(self, value, act):
        self.value, self.act = value, act

    def __index__(self):
        self.act()
        return self.value


class LyingList(list):
    def __len__(self):
        return 3


# ---- caches


def test_truncate_with_an_index_that_resets(model):
    cache = model.new_cache()
    model(TOKENS, cache)
    with pytest.raises(ValueError, match=r"^n: expected an integer from 0 to 0, got 100"):
        cache.truncate(Index(100, cache.reset))
    assert (cache.lengths, cache.nbytes) == ([0], 0)


def test_truncate_with_lists_that_lie(model):
    cache = model.new_cache(3)
    model(np.stack([TOKENS] * 3), cache)
    with pytest.raises(ValueError, match=r"^n: expected 3 lengths"):
        cache.truncate(LyingList([5]))
    items = [5, 5, 5]
    items[1] = Index(5, items.clear)
    cache.truncate(items)
    assert cache.lengths == [5, 5, 5]


def test_truncate_and_reset_at_once(model):
    cache = model.new_cache(64)
    stop = threading.Event()

    def reset():
        while not stop.is_set():
            with contextlib.suppress(RuntimeError):
                cache.reset()

    thread = threading.Thread(target=reset)
    thread.start()
    try:
        for _ in range(200):
            with contextlib.suppress(RuntimeError):
                model(np.tile(TOKENS[:70], (64, 1)), cache)
            with contextlib.suppress(RuntimeError, ValueError):
                cache.truncate([66] * 64)
            with contextlib.suppress(RuntimeError):
                copy = cache.copy()
                assert copy.nbytes == sum(-(-length // 64) for length in copy.lengths) * 2 * 2 * 20 * 64 * 4
    finally:
        stop.set()
        thread.join()


def test_a_state_that_changes_while_it_is_read(model):
    cache = model.new_cache()
    model(TOKENS, cache)
    (ids, blocks), *_ = cache.__reduce__()[2]
    other = model.new_cache()
    state = [([*ids[:-1], Index(int(ids[-1]), lambda: state.clear())], blocks)]
    other.__setstate__(state)
    assert (state, other.lengths, other.nbytes) == ([], cache.lengths, cache.nbytes)
    np.testing.assert_array_equal(model.next_logits([1], other), model.next_logits([1], cache))


# ---- configs


@pytest.mark.parametrize(
    "field", ["vocab_size", "block_size", "n_embd", "n_layers", "n_heads", "tie_weights"]
)
@pytest.mark.parametrize("value", [0, 1, 10, 300_000])
def test_a_config_changed_afterwards_does_not_matter(field, value, same_bits):
    model = gpt2cy.GPT(CONFIG)
    model.load_state_dict(formula.weights(CONFIG))
    expected = model(TOKENS)
    cache = model.new_cache()
    model(TOKENS[:70], cache)
    object.__setattr__(model.config, field, value)
    same_bits(model(TOKENS), expected)
    same_bits(model(TOKENS[70:], cache.copy()), expected[70:])
    same_bits(model.trace(TOKENS)["logits"], expected)
    model.load_state_dict(formula.weights(CONFIG))
    same_bits(model(TOKENS), expected)
    for tokens in ([61], [300], [0] * 151):
        with pytest.raises(ValueError, match=r"^tokens"):
            model(tokens)
        with pytest.raises(ValueError, match=r"^tokens"):
            model.trace(tokens)


class OtherConfig(gpt2cy.GPT):
    """A model whose class has a config of its own: with fewer ids, and more positions."""

    config = gpt2cy.GPTConfig(50, 20, 5, 2, 10**6)


def made_with_another_config():
    other = OtherConfig(CONFIG, seed=0)
    other.load_state_dict(formula.weights(CONFIG))
    return other


def made_with_a_changed_config():
    other = gpt2cy.GPT(CONFIG, seed=0)
    other.load_state_dict(formula.weights(CONFIG))
    object.__setattr__(other.config, "vocab_size", 5_000_000)
    object.__setattr__(other.config, "block_size", 10**6)
    return other


@pytest.mark.parametrize("make", [made_with_another_config, made_with_a_changed_config])
def test_scoring_and_generation_ask_the_layers_for_their_sizes(model, same_bits, make):
    """A config that lies neither leads beyond the weights nor changes a bit."""
    other = make()
    long = np.arange(2000) % 61
    same_bits(other.token_logprobs(long), model.token_logprobs(long))
    for scores, expected in zip(
        other.score_many([long[:151]] * 3, [100, 120, 151], top=3),
        model.score_many([long[:151]] * 3, [100, 120, 151], top=3),
        strict=True,
    ):
        same_bits(scores.logprobs, expected.logprobs)
    prompts = [list(range(61)), [60, 1]]
    for given in ({"seed": 1, "logprobs": 2}, {"num_beams": 3}):
        for one, two in zip(
            other.generate(prompts, max_new_tokens=3, **given),
            model.generate(prompts, max_new_tokens=3, **given),
            strict=True,
        ):
            assert one.tolist() == two.tolist()
    cache = gpt2cy.GPT(CONFIG).prefill([1, 2])
    assert len(other.generate([[60]], cache=cache, max_new_tokens=2)[0]) == 2
    for call in (
        lambda: other.score_many([[0] * 152]),
        lambda: other.score_many([[1, 4_999_999]]),
        lambda: other.score_many([[1, 2]], vocab_limit=62),
        lambda: other.score_many([[1, 2]], top=62),
        lambda: other.token_logprobs([1, 61]),
        lambda: other.token_logprobs(long, stride=150),
        lambda: other.generate([[0] * 151], max_new_tokens=1),
        lambda: other.generate([[61]], max_new_tokens=1),
        lambda: other.generate([[1]], max_new_tokens=1, stop_ids=[61]),
        lambda: other.generate([[1]], max_new_tokens=1, slide_to=151, on_full="slide"),
    ):
        with pytest.raises(ValueError):
            call()


def test_a_subclass_with_layers_of_its_own():
    """What it shows is not what computes: refused, and not followed."""

    class OtherLayers(gpt2cy.GPT):
        wte = wpe = gpt2cy.Embedding(5000, 8)
        lm_head = gpt2cy.Linear(8, 5000)

    other = OtherLayers(CONFIG, seed=0)
    for call in (
        lambda: other.token_logprobs(np.arange(2000)),
        lambda: other.token_logprobs(np.arange(2000) % 61),
        lambda: other.score_many([[1, 4000]]),
        lambda: other.score_many([[1, 2]], top=100),
        lambda: other.score_many([[1, 2]], vocab_limit=100),
        lambda: other.generate([[1]], max_new_tokens=2),
        lambda: other.generate([[1]], max_new_tokens=2, num_beams=2),
    ):
        with pytest.raises(ValueError):
            call()


@pytest.mark.parametrize("make", [made_with_another_config, made_with_a_changed_config])
def test_texts_ask_the_layers_too(make):
    """Which tokenizer fits, how long a text may be, and how windows are cut."""

    class Digits(Tokenizer):
        def __init__(self, n):
            super().__init__({i: bytes([i]) for i in range(n)})

        def _encode_plain(self, text):
            return list(text.encode())

    with pytest.raises(ValueError, match="^tokenizer: expected a vocabulary of at most the model's 61 ids"):
        gpt2cy.LanguageModel(make(), Digits(62))
    lm = gpt2cy.LanguageModel(make(), Digits(61))
    assert len(lm.score("0123" * 200).logprobs) == 800
    with pytest.warns(UserWarning, match="prompt: its first 51 tokens are left out"):
        lm.compare("1" * 200, ["23"])
    with pytest.raises(ValueError, match=r"^answers\[0\]: 151 tokens do not fit the block_size of 150"):
        lm.compare("1", ["2" * 151])
    for call in (lm.next_tokens, lm.generate, lm.stream):
        with pytest.raises(ValueError, match="^text: 151 tokens do not fit the block_size of 150"):
            call("1" * 151)


def test_the_callers_config_is_not_the_models():
    config = gpt2cy.GPTConfig(61, 20, 5, 2, 150)
    model = gpt2cy.GPT(config)
    object.__setattr__(config, "n_layers", 0)
    assert model.config == CONFIG
    for make in (gpt2cy.GPT, gpt2cy.KVCache, gpt2cy.Block):
        with pytest.raises(ValueError, match="^n_layers"):
            make(config)


def test_a_subclass_that_answers_differently_each_time():
    class Config(gpt2cy.GPTConfig):
        asked = 0

        @property
        def inner(self):
            Config.asked += 1
            return 10 + 70 * Config.asked

        def memory_plan(self, *args):
            return {"weights": 64, "total": 64}

    model = gpt2cy.GPT(Config(61, 20, 5, 2, 150))
    assert type(model.config) is gpt2cy.GPTConfig
    assert model(TOKENS).shape == (130, 61)


def test_an_unpickled_config_has_been_validated():
    function, (cls, fields) = CONFIG.__reduce__()
    assert pickle.loads(pickle.dumps(CONFIG)) == CONFIG
    with pytest.raises(ValueError, match="^n_layers"):
        function(cls, {**fields, "n_layers": 0})


# ---- parts


def test_parts_that_were_never_built():
    kept = []

    def keeping(cls):
        return type("Kept", (cls,), {"__del__": lambda self: kept.append(self)})

    for cls, arguments in ((gpt2cy.Linear, (0, 1)), (gpt2cy.LayerNorm, (0,)), (gpt2cy.Embedding, (0, 1))):
        with pytest.raises(ValueError):
            keeping(cls)(*arguments)
    for cls, arguments in ((gpt2cy.Block, (CONFIG, 9)), (gpt2cy.MLP, (0,)), (gpt2cy.Attention, (8, 3))):
        with pytest.raises(ValueError):
            keeping(cls)(*arguments)
    assert len(kept) == 6
    for thing in kept:
        for act in (
            lambda thing: thing([[1.0]]),
            lambda thing: thing([0]),
            lambda thing: setattr(thing, "weight", [[1.0]]),
            lambda thing: setattr(thing, "weight", np.zeros((0, 1))),
            lambda thing: setattr(thing, "gamma", np.zeros(0)),
            lambda thing: thing.weight,
            lambda thing: thing.gamma,
            repr,
            pickle.dumps,
        ):
            with contextlib.suppress(Exception):  # whichever: what counts is that nothing crashes
                act(thing)


def test_private_doors_are_checked_too():
    with pytest.raises(ValueError, match="^_matrix"):
        gpt2cy.Linear(200, 200, False, _matrix=PackedMatrix(1, 1))
    with pytest.raises(ValueError, match="^k, n"):
        PackedMatrix(2**57, 1)


def test_masked_arrays_are_refused(model):
    with pytest.raises(ValueError, match="^tokens: .*masked"):
        model(np.ma.array([1, 2], mask=[False, True]))
    with pytest.raises(ValueError, match="^x: .*masked"):
        gpt2cy.gelu(np.ma.array([1.0, 2.0], mask=[False, True]))
    assert model(np.ma.array([1, 2])).shape == (2, 61)
