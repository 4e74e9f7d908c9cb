# SPDX-License-Identifier: Apache-2.0
"""check_finite: the first activation and position that is not finite is named, and nothing is kept."""

import pickle

import numpy as np
import pytest

from gpt2cy import inspection
from gpt2cy.inspection import NonFinite, first_nonfinite, zero

SIZES = (61, 36, 3, 2, 200)
TOKENS = np.random.default_rng(5).integers(0, 61, 90)


@pytest.fixture
def model(build):
    return build(*SIZES)


def poisoned(name, position, value, head=None):
    """An edit that puts one bad number into an activation, at an absolute position."""

    def put(part):
        part[..., -1] = value
        return part

    return {name: inspection.apply(put, positions=[position], head=head)}


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "name",
    [
        "embed", "h.0.ln_1", "h.1.attn.q", "h.0.attn.k", "h.1.attn.v", "h.1.attn.heads", "h.0.attn.out",
        "h.1.resid_mid", "h.0.ln_2", "h.0.mlp.pre", "h.1.mlp.hidden", "h.0.mlp.out", "h.1.resid", "ln_f",
        "logits",
    ],
)  # fmt: skip
def test_the_first_one_is_named(model, name, value):
    cache = model.new_cache()
    model(TOKENS[:30], cache)
    with model.edit(poisoned(name, 70, value)):
        for call in (model, model.forward, lambda tokens, **kw: model.forward_many([tokens], **kw)):
            with pytest.raises(FloatingPointError) as raised:
                call(TOKENS, check_finite=True)
            assert str(raised.value).startswith(f"{name}: {value} at position 70 of sequence 0")
        with pytest.raises(FloatingPointError, match=f"^{name}: {value} at position 70 of sequence 0"):
            model.next_logits(TOKENS[30:71], cache, check_finite=True)
        assert cache.lengths == [30]
        assert model(TOKENS).shape == (90, 61)  # without the check it goes on
        assert str(first_nonfinite(model, TOKENS)) == f"{name}: {value} at position 70 of sequence 0"
        assert first_nonfinite(model, TOKENS[:70]) is None
    assert first_nonfinite(model, TOKENS) is None


def test_of_several_sequences_the_one_is_named(model):
    with model.edit(poisoned("h.1.mlp.pre", 70, np.inf)):
        where = NonFinite("h.1.mlp.pre", 70, 1, np.inf)
        assert first_nonfinite(model, [TOKENS[:20], TOKENS[:80], TOKENS]) == where
        assert first_nonfinite(model, np.stack([TOKENS, TOKENS])) == where._replace(sequence=0)


def test_bad_weights_are_found_where_they_act(model):
    weight = model.blocks[1].mlp.c_fc.weight.copy()
    weight[3, 5] = np.inf
    model.blocks[1].mlp.c_fc.weight = weight
    where = first_nonfinite(model, TOKENS)
    assert where[:3] == ("h.1.mlp.pre", 0, 0)


def test_products_beyond_float32(model):
    model.blocks[0].mlp.c_fc.weight = np.full((36, 144), 3e38, np.float32)
    assert first_nonfinite(model, TOKENS).name == "h.0.mlp.pre"


def test_scores_that_overflow_show_in_the_heads(model):
    model.blocks[0].attn.c_attn.weight = np.full((36, 108), 1e20, np.float32)
    assert first_nonfinite(model, TOKENS).name == "h.0.attn.heads"


def test_a_check_changes_no_bit_and_an_edit_can_mend(model, same_bits):
    expected = model(TOKENS)
    same_bits(model(TOKENS, check_finite=True), expected)
    same_bits(model.next_logits(TOKENS, check_finite=True), expected[-1])
    same_bits(model.forward_many([TOKENS, TOKENS[:5]], check_finite=True)[0], expected)
    cache = model.new_cache()
    same_bits(model(TOKENS, cache, check_finite=True), expected)
    assert cache.lengths == [90]
    with model.edit({**poisoned("h.0.mlp.out", 4, np.nan)}), model.edit({"h.0.mlp.out": zero()}):
        assert np.isfinite(model(TOKENS, check_finite=True)).all()


@pytest.mark.parametrize("wrong", [None, "gpt2", 0, []])
def test_what_is_no_model_is_named(wrong):
    with pytest.raises(TypeError, match=f"^model: expected a GPT, got {type(wrong).__name__}$"):
        first_nonfinite(wrong, [1])


def test_the_flag_is_a_flag(model):
    for call in (model, model.next_logits, model.forward_many):
        with pytest.raises(TypeError, match="^check_finite: expected True or False, got 1"):
            call([[1]], check_finite=1)


def test_the_error_can_be_pickled(model):
    with model.edit(poisoned("embed", 0, np.inf)), pytest.raises(inspection.NonFiniteError) as raised:
        model([1], check_finite=True)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.where) == (str(raised.value), NonFinite("embed", 0, 0, np.inf))
