# SPDX-License-Identifier: Apache-2.0
"""`Sampling`: what each setting accepts, and what the message says otherwise."""

import dataclasses
import math
import pickle

import numpy as np
import pytest

from gpt2cy.generation.sampling import Sampling

GOOD = {
    "max_new_tokens": [None, 0, 1, 10**9, np.int32(5)],
    "temperature": [0, 0.0, 1e-45, 1e-4, 1, 0.7, 1e6, 1e300, np.float32(0.5)],
    "top_k": [None, 0, 1, 5, 10**9, 10**30, np.uint8(3)],
    "top_p": [None, 0, 1e-45, 1e-8, 0.5, 1, 1.0],
    "min_p": [None, 0, 0.1, 1.0],
    "typical_p": [None, 0, 0.2, 1.0],
    "repetition_penalty": [1, 0.5, 1.2, 1000],
    "presence_penalty": [0, -2.0, 1.5],
    "frequency_penalty": [0, -2.0, 1.5],
    "no_repeat_ngram_size": [0, 1, 3, 10**12],
    "logit_bias": [None, {}, {3: 1.5, 4: -math.inf}, {np.int64(2): 1}],
    "constrain": [None, len, lambda ids: None],
    "vocab_limit": [None, 1, 50257],
    "num_return_sequences": [1, 5],
    "num_beams": [1, 4],
    "length_penalty": [1.0, -2, 0],
    "early_stopping": [True, False, "never"],
    "stop_ids": [None, 0, 50256, [1, 2], (3,), {4, 5}, np.array([6]), []],
    "stop": [None, "x", ["a", "b"], ("\n",), []],
    "on_full": ["stop", "slide"],
    "slide_to": [None, 1, 512],
    "logprobs": [None, 0, 5],
    "seed": [None, 0, -1, 2**32, -(2**63), 2**64 - 1],
}
BAD = {
    ValueError: {
        "max_new_tokens": [-1, 1.5],
        "temperature": [-1, math.nan, math.inf, -1e-45],
        "top_k": [-1, 2.5, 2.0, math.inf, math.nan],
        "top_p": [1.0000001, -0.1, math.nan, 2, math.inf],
        "min_p": [-0.1, 1.5, math.nan],
        "typical_p": [-0.1, 1.5, math.nan],
        "repetition_penalty": [0, -1, math.nan, math.inf, 1e-45, 1e39],
        "presence_penalty": [math.nan, math.inf, 1e39],
        "frequency_penalty": [math.nan, -math.inf],
        "no_repeat_ngram_size": [-1, 2.0],
        "logit_bias": [{1: math.nan}, {1: math.inf}, {-1: 0.0}, {1: 1e39}],
        "vocab_limit": [0, -1],
        "num_return_sequences": [0, -1],
        "num_beams": [0],
        "length_penalty": [math.nan, math.inf, 33, -1e308],
        "early_stopping": ["always"],
        "stop_ids": [-1, [3, -1]],
        "stop": ["", ["a", ""], "\ud800"],
        "on_full": ["cut"],
        "slide_to": [0],
        "logprobs": [-1],
        "seed": [2**64, -(2**63) - 1],
    },
    TypeError: {
        "max_new_tokens": ["5", True],
        "temperature": [None, "1", True, [1.0], 1j],
        "top_k": [True, "5", [5]],
        "top_p": ["0.9", True],
        "repetition_penalty": [None, "1"],
        "no_repeat_ngram_size": [None, True],
        "logit_bias": [[(1, 2.0)], {"1": 2.0}, {1: "2"}, {True: 1.0}, {1: None}],
        "constrain": [5, "f"],
        "num_return_sequences": [None, True, np.array([1, 2])],
        "early_stopping": [1, None],
        "stop_ids": ["1", True, [True], [1.5], 2.5, {"a"}, [[1]], np.array(3)],
        "stop": [5, [5], b"x", {"a"}],
        "on_full": [None, True],
        "seed": [1.0, "7", True],
    },
}


@pytest.mark.parametrize("name", GOOD)
def test_accepted(name):
    for value in GOOD[name]:
        assert Sampling(**{name: value}) == Sampling().merged(**{name: value})


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (error, name, value)
        for error, names in BAD.items()
        for name, values in names.items()
        for value in values
    ],
    ids=lambda value: repr(value)[:20],
)
def test_refused_by_name(error, name, value):
    with pytest.raises(error, match=f"^{name}.*: expected .*got "):
        Sampling(**{name: value})


def test_every_setting_is_tested():
    names = {field.name for field in dataclasses.fields(Sampling)}
    assert names == set(GOOD)
    assert names == {name for names in BAD.values() for name in names}


def test_values_in_one_form():
    settings = Sampling(stop="x", stop_ids=5, logit_bias={np.int64(3): 1}, temperature=1, top_k=np.int16(4))
    assert (settings.stop, settings.stop_ids, settings.logit_bias) == (("x",), (5,), {3: 1.0})
    assert type(settings.temperature) is float and type(settings.top_k) is int
    assert Sampling(stop_ids={7, 3}).stop_ids == (3, 7)


def test_a_bias_is_the_settings_own():
    bias = {3: 1.0}
    settings = Sampling(logit_bias=bias)
    bias[3] = 2.0
    assert settings.logit_bias == {3: 1.0}


def test_n_is_another_name():
    assert Sampling(n=3).num_return_sequences == 3
    assert Sampling(n=3, num_return_sequences=3).num_return_sequences == 3
    assert Sampling(n=3).merged(n=2).num_return_sequences == 2
    assert Sampling(n=3).merged(top_k=5).num_return_sequences == 3
    assert dataclasses.replace(Sampling(n=3), num_return_sequences=4).num_return_sequences == 4
    with pytest.raises(ValueError, match=r"^n: .*num_return_sequences says, 3, .*got 2"):
        Sampling(n=2, num_return_sequences=3)
    for bad in (0, -1, 1.5):
        with pytest.raises(ValueError, match="^n: expected"):
            Sampling(n=bad)


def test_merged():
    base = Sampling(temperature=0.5, top_k=10)
    assert base.merged() is base
    assert base.merged(top_k=None) == Sampling(temperature=0.5)
    with pytest.raises(ValueError, match="^top_p"):
        base.merged(top_p=2)
    with pytest.raises(TypeError, match="^top_q: no such setting; there are constrain, early_stopping"):
        base.merged(top_q=1)


def test_more_results_than_beams():
    assert Sampling(num_beams=3, n=3).num_return_sequences == 3
    with pytest.raises(ValueError, match=r"^num_return_sequences: expected at most num_beams \(2\), got 3"):
        Sampling(num_beams=2, num_return_sequences=3)


def test_greedy():
    for settings in ({"temperature": 0}, {"temperature": 1e-45}, {"top_k": 1}):
        assert Sampling(**settings).greedy
    for settings in ({}, {"temperature": 1e-30}, {"top_k": 2}, {"top_p": 0}):
        assert not Sampling(**settings).greedy


def test_immutable_hashable_and_pickled():
    settings = Sampling(top_k=5, logit_bias={1: 2.0}, stop=["a"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.top_k = 6
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert len({settings, settings.merged(top_p=None), Sampling()}) == 2


def test_every_setting_is_documented():
    for name in (*GOOD, "n"):
        assert f"\n    {name} : " in Sampling.__doc__
