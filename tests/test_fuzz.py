# SPDX-License-Identifier: Apache-2.0
"""Anything in any order: sequences of calls against the reference, and arguments that mean harm."""

import contextlib
import random

import formula
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import gpt2cy
from gpt2cy import reference
from gpt2cy.kernels import host

CONFIG = gpt2cy.GPTConfig(23, 12, 3, 2, 80)
exhaustive = [pytest.mark.slow, pytest.mark.exhaustive]
DOCUMENTED = (TypeError, ValueError, RuntimeError, MemoryError, OverflowError)


class Calls(RuleBasedStateMachine):
    """A model and its caches, beside plain lists of what each slot has read."""

    @initialize(tied=st.booleans(), head_dim=st.sampled_from([4, 32]))
    def start(self, tied, head_dim):
        self.config = gpt2cy.GPTConfig(23, 3 * head_dim, 3, 2, 80, tie_weights=tied)
        self.weights = formula.weights(self.config)
        self.model = gpt2cy.GPT(self.config)
        self.model.load_state_dict(self.weights)
        self.caches = [self.model.new_cache()]
        self.read = [[]]

    def want(self, tokens):
        return reference.forward(self.config, self.weights, np.array(tokens))

    def agree(self, got, want):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

    ids = st.lists(st.integers(0, 22), min_size=1, max_size=70)

    @rule(i=st.integers(0, 9), new=ids, last=st.booleans())
    def go_on(self, i, new, last):
        i %= len(self.caches)
        call = self.model.next_logits if last else self.model.forward
        if len(self.read[i]) + len(new) > 80:
            with pytest.raises(ValueError, match="do not fit"):
                call(new, self.caches[i])
            return
        got = call(new, self.caches[i])
        self.read[i] = self.read[i] + new
        want = self.want(self.read[i])
        self.agree(got, want[-1] if last else want[-len(new) :])

    @precondition(lambda self: len(self.caches) > 1)
    @rule(new=st.tuples(ids, ids))
    def go_on_together(self, new):
        pasts = self.read[:2]
        if any(len(past) + len(more) > 80 for past, more in zip(pasts, new, strict=True)):
            with pytest.raises(ValueError, match="do not fit"):
                self.model.forward_many(new, self.caches[:2])
            return
        got = self.model.forward_many(new, self.caches[:2])
        for i, more in enumerate(new):
            self.read[i] = self.read[i] + more
            self.agree(got[i], self.want(self.read[i])[-len(more) :])

    @rule(i=st.integers(0, 9), share=st.floats(0, 1))
    def truncate(self, i, share):
        i %= len(self.caches)
        keep = int(share * len(self.read[i]))
        self.caches[i].truncate(keep)
        self.read[i] = self.read[i][:keep]

    @rule(i=st.integers(0, 9))
    def reset(self, i):
        i %= len(self.caches)
        self.caches[i].reset()
        self.read[i] = []

    @rule(i=st.integers(0, 9))
    def copy(self, i):
        i %= len(self.caches)
        if len(self.caches) < 4:
            self.caches.append(self.caches[i].copy())
            self.read.append(self.read[i])

    @precondition(lambda self: len(self.caches) > 1)
    @rule(i=st.integers(0, 9))
    def drop(self, i):
        i %= len(self.caches)
        del self.caches[i], self.read[i]

    @rule(new=ids)
    def without_a_cache(self, new):
        self.agree(self.model(new), self.want(new))

    @invariant()
    def lengths_are_known(self):
        if hasattr(self, "caches"):
            assert [cache.lengths for cache in self.caches] == [[len(read)] for read in self.read]


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=25, stateful_step_count=20, deadline=None, derandomize=True)


# ---- arguments that mean harm


class Liar:
    """Answers differently each time, changes what it is given, or raises."""

    def __init__(self, victim, rng):
        self.victim, self.rng = victim, rng

    def act(self):
        kind = self.rng.randrange(5)
        if kind == 0:
            raise self.rng.choice([ValueError, RuntimeError, TypeError])("on purpose")
        if kind == 1:
            with contextlib.suppress(*DOCUMENTED):
                self.victim.wte.weight = self.victim.wte.weight * 1
        if kind == 2:
            with contextlib.suppress(*DOCUMENTED):
                self.victim([[1, 2]])
        return self.rng.choice([0, 1, -1, 2**70, 3, 22, 23, 10**6])

    def __array__(self, dtype=None, copy=None):
        size = abs(self.act()) % 5
        return np.full(size, self.act() % 2**62, dtype or np.int64)

    def __len__(self):
        return abs(self.act()) % 100

    def __index__(self):
        return self.act()

    def __float__(self):
        return float(self.act() % 100)

    def __iter__(self):
        return iter([self.act()] * 3)

    def __getitem__(self, i):
        return self.act()

    def __bool__(self):
        return bool(self.act())


def arguments(rng, model):
    """One value of the kind nobody expects."""
    simple = [
        None,
        True,
        0,
        1,
        -1,
        2,
        22,
        23,
        80,
        81,
        2**31,
        2**63,
        -(2**63),
        10**400,
        1.0,
        1e308,
        float("nan"),
    ]
    simple += [
        float("inf"),
        "",
        "x",
        b"x",
        [],
        [[]],
        {},
        (),
        [None],
        [[1], [2, 3]],
        [1.5],
        object(),
        CONFIG,
        model,
    ]
    simple += [
        model.new_cache(),
        model.new_cache(2),
        [model.new_cache()],
        range(5),
        {1, 2},
        1j,
        slice(3),
        ...,
        dict,
    ]
    kind = rng.randrange(4)
    if kind == 0:
        return Liar(model, rng)
    if kind == 1:
        shape = [rng.choice([0, 1, 2, 3, 12, 23, 81]) for _ in range(rng.randrange(4))]
        dtypes = [
            "i1",
            "u1",
            "i2",
            "<i4",
            ">i4",
            "i8",
            ">u8",
            "f2",
            "f4",
            ">f4",
            "f8",
            "c8",
            "?",
            "O",
            "S3",
            "M8[s]",
        ]
        array = np.zeros(shape, rng.choice(dtypes))
        with contextlib.suppress(Exception), np.errstate(all="ignore"):
            array[...] = rng.choice([0, 1, 22, 23, -1, float("nan"), 1e300])
        if array.ndim and rng.random() < 0.5:
            array = array[::-1]
        if array.ndim > 1 and rng.random() < 0.5:
            array = array.T
        array.flags.writeable = rng.random() < 0.5
        return array
    return rng.choice(simple)


def targets(model, rng):
    """Every public door."""
    cache = model.new_cache(rng.randrange(1, 3))
    block = model.blocks[0]
    yield from (gpt2cy.GPTConfig, gpt2cy.GPT, gpt2cy.Embedding, gpt2cy.LayerNorm, gpt2cy.Linear, gpt2cy.MLP)
    yield from (
        gpt2cy.Attention,
        gpt2cy.Block,
        gpt2cy.KVCache,
        gpt2cy.GPTConfig.preset,
        gpt2cy.set_num_threads,
    )
    yield from (gpt2cy.gelu, gpt2cy.gelu_erf, gpt2cy.relu, gpt2cy.softmax, model, model.next_logits)
    yield from (
        model.forward_many,
        model.new_cache,
        model.load_state_dict,
        cache.truncate,
        cache.__setstate__,
    )
    yield from (
        model.wte,
        model.wpe,
        model.ln_f,
        model.lm_head,
        block,
        block.attn,
        block.mlp,
        model.__setstate__,
    )
    yield lambda a, *b: model.forward([[1, 2]] * cache.batch_size, a)
    yield lambda a, *b: setattr(rng.choice([model.wte, model.lm_head, block.mlp.c_fc]), "weight", a)
    yield lambda a, *b: setattr(rng.choice([model.lm_head, block.mlp.c_fc, block.attn.c_proj]), "bias", a)
    yield lambda a, *b: setattr(model.ln_f, rng.choice(["gamma", "beta"]), a)
    yield lambda a, *b: setattr(model, rng.choice(["blocks", "wte", "config", "x"]), a)
    yield lambda a, *b: model.config.memory_plan(a, *b[:1])
    yield lambda a, *b: model.__init__(a, *b)


@pytest.mark.parametrize("rounds", [3000, pytest.param(100_000, marks=exhaustive)])
def test_arguments_that_mean_harm(monkeypatch, rounds, same_bits):
    """Only documented exceptions, and the model is none the worse; of memory there are 200 MiB."""
    monkeypatch.setattr(host, "available_memory", lambda: 200 << 20)
    rng = random.Random(rounds)
    model = gpt2cy.GPT(CONFIG)
    weights = formula.weights(CONFIG)
    model.load_state_dict(weights)
    expected = model([[1, 2, 3]])
    refused = 0
    for _ in range(rounds):
        target = rng.choice(list(targets(model, rng)))
        given = [arguments(rng, model) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        try:
            target(*given)
        except DOCUMENTED:
            refused += 1
        except AttributeError as error:  # a read-only attribute
            assert "object" in str(error)
            refused += 1
    assert refused > rounds / 2
    gpt2cy.set_num_threads(None)
    model.load_state_dict(weights)
    same_bits(model([[1, 2, 3]]), expected)
