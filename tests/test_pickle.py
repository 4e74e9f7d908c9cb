# SPDX-License-Identifier: Apache-2.0
"""Pickling and copying: what comes back gives the same bits and stands on its own."""

import copy
import multiprocessing
import operator
import pickle
import sys

import formula
import numpy as np
import pytest

import gpt2cy

CONFIGS = {
    "untied": gpt2cy.GPTConfig(61, 20, 5, 2, 150),
    "tied": gpt2cy.GPTConfig(61, 20, 5, 2, 150, tie_weights=True, lm_head_bias=True),
    "no bias": gpt2cy.GPTConfig(61, 20, 5, 2, 150, bias=False, activation="relu", n_inner=33),
    "scaled": gpt2cy.GPTConfig(61, 20, 5, 2, 150, scale_attn_by_inverse_layer_idx=True, layer_norm_eps=0.1),
}
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
TOKENS = np.arange(90).reshape(1, -1) % 61


def model_of(name):
    model = gpt2cy.GPT(CONFIGS[name], seed=0)
    model.load_state_dict(formula.weights(CONFIGS[name]))
    return model


def trips(thing):
    yield from (pickle.loads(pickle.dumps(thing, protocol)) for protocol in PROTOCOLS)
    yield copy.copy(thing)
    yield copy.deepcopy(thing)


@pytest.mark.parametrize("name", CONFIGS)
def test_models(name, same_bits):
    model = model_of(name)
    for other in trips(model):
        assert other.config == model.config
        same_bits(other(TOKENS), model(TOKENS))
        other.wte.weight = other.wte.weight * 2
        assert (other(TOKENS) != model(TOKENS)).any()
        same_bits(model(TOKENS), model_of(name)(TOKENS))


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_of_a_model(name, same_bits):
    model = model_of(name)
    x = np.random.default_rng(0).standard_normal((70, 20), np.float32)
    parts = [*model.blocks, model.blocks[1].attn, model.blocks[1].mlp, model.ln_f, model.lm_head]
    for part in parts:
        for other in trips(part):
            same_bits(other(x), part(x))
            assert repr(other) == repr(part)
    for part in (model.wte, model.wpe):
        for other in trips(part):
            same_bits(other.weight, part.weight)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 140])
def test_caches(length, same_bits):
    model = model_of("untied")
    cache = model.new_cache(2, capacity=145)
    model.forward(np.arange(2 * length).reshape(2, -1) % 61, cache)
    expected = model.next_logits([[1], [2]], cache.copy())
    for other in trips(cache):
        assert (other.lengths, other.capacity, other.nbytes) == (cache.lengths, cache.capacity, cache.nbytes)
        assert [ids.tolist() for ids in other.tokens] == [ids.tolist() for ids in cache.tokens]
        same_bits(model.next_logits([[1], [2]], other), expected)
        assert cache.lengths == [length] * 2


def test_an_empty_cache_and_ragged_slots(same_bits):
    model = model_of("untied")
    for other in trips(model.new_cache(3)):
        assert other.lengths == [0, 0, 0]
    cache = model.new_cache(2)
    model.forward(np.arange(140).reshape(2, -1) % 61, cache)
    cache.truncate([3, 70])
    expected = model.next_logits([[1], [2]], cache.copy())
    for other in trips(cache):
        same_bits(model.next_logits([[1], [2]], other), expected)


class Named(gpt2cy.GPT):
    """A model with an attribute, whose __new__ takes other arguments."""

    def __new__(cls, name, *sizes):
        return super().__new__(cls, gpt2cy.GPTConfig(*sizes), seed=0)

    def __init__(self, name, *sizes):
        self.name = name
        self.owner = [self]


class Tagged(gpt2cy.Linear):
    tag = None


def test_attributes_of_subclasses(same_bits):
    model = Named("mine", 61, 20, 5, 2, 150)
    for other in trips(model):
        assert type(other) is Named
        assert other.name == "mine"
        same_bits(other(TOKENS), model(TOKENS))
    assert pickle.loads(pickle.dumps(model)).owner[0] is not model
    other = copy.deepcopy(model)
    assert other.owner[0] is other
    layer = Tagged(3, 4, seed=0)
    layer.tag = ["x"]
    for other in trips(layer):
        assert (type(other), other.tag) == (Tagged, ["x"])
        same_bits(other.weight, layer.weight)
    with pytest.raises(TypeError, match=r"^state: Linear cannot take"):
        gpt2cy.Linear(3, 4).__setstate__(layer.__reduce__()[2])


def test_a_pool_of_spawned_processes(same_bits):
    model = model_of("tied")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        forward = operator.methodcaller("forward", TOKENS)  # of a module that the children can import
        for logits in pool.map_async(forward, [model, model]).get(120):
            same_bits(logits, model(TOKENS))


@pytest.mark.parametrize(
    "state", [None, {}, [], {"weight": 1}, {"weight": None, "bias": None}, [(5, None)], [1]]
)
def test_a_wrong_state_is_refused_and_changes_nothing(state, same_bits):
    model = model_of("untied")
    cache = model.new_cache()
    model(TOKENS, cache)
    block = model.blocks[0]
    things = [model.lm_head, model.ln_f, model.wte, block, block.mlp, block.attn]
    before = model(TOKENS)
    for thing in [*things, model, cache]:
        with pytest.raises((TypeError, ValueError)):
            thing.__setstate__(state)
    same_bits(model(TOKENS), before)
    assert cache.lengths == [90]


def test_sizes_are_honest():
    model = model_of("tied")
    weights = model.config.memory_plan()["weights"]
    assert weights == model.nbytes <= sys.getsizeof(model) <= weights + 1000
    cache = model.new_cache()
    model(TOKENS, cache)
    assert cache.nbytes == 2 * 64 * 2 * 2 * 20 * 4 <= sys.getsizeof(cache) <= cache.nbytes + 1000
    assert sys.getsizeof(gpt2cy.Linear(100, 50)) >= 4 * 100 * 50


def test_reprs_are_short_and_say_what_it_is():
    model = model_of("scaled")
    parts = [model.wte, model.ln_f, model.lm_head, model.blocks[0], model.new_cache()]
    for thing in [model, model.config, *parts]:
        assert type(thing).__name__ in repr(thing)
        assert len(repr(thing)) < 400
