# SPDX-License-Identifier: Apache-2.0
"""Edits: each does what it says, where it says, in every kind of call, and leaves nothing behind."""

import asyncio
import copy
import threading

import numpy as np
import pytest

import gpt2cy
from gpt2cy import reference
from gpt2cy.inspection import add, apply, mean, replace, scale, zero
from gpt2cy.kernels import dispatch
from gpt2cy.layers.tap import EDITS
from gpt2cy.tokenizer import ByteTokenizer

SIZES = (61, 36, 3, 2, 200)
H, D, C, F, V = 3, 12, 36, 144, 61
TOKENS = np.random.default_rng(5).integers(0, 61, 130)
OTHERS = np.random.default_rng(6).integers(0, 61, 130)


@pytest.fixture(scope="module")
def model(build):
    return build(*SIZES)


@pytest.fixture(scope="module")
def plain(model):
    return model.trace(TOKENS)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    yield
    assert EDITS.get() == ()


EDITABLE = [
    "embed", "h.0.ln_1", "h.1.attn.q", "h.0.attn.k", "h.1.attn.v", "h.0.attn.scores", "h.1.attn.weights",
    "h.0.attn.heads", "h.1.attn.out", "h.0.resid_mid", "h.1.ln_2", "h.0.mlp.pre", "h.1.mlp.hidden",
    "h.0.mlp.out", "h.1.resid", "ln_f", "logits",
]  # fmt: skip


@pytest.mark.parametrize("name", EDITABLE)
def test_an_edit_changes_what_comes_after_and_nothing_before(model, plain, name):
    with model.edit({name: scale(0.5)}):
        seen = model.trace(TOKENS)
        logits = model(TOKENS)
    np.testing.assert_array_equal(seen["logits"], logits)
    np.testing.assert_array_equal(seen[name], 0.5 * plain[name])
    assert (logits != plain["logits"]).any()
    for before in list(plain)[: list(plain).index(name)]:
        if seen[before] is not seen[name]:  # an alias
            np.testing.assert_array_equal(seen[before], plain[before])
    np.testing.assert_array_equal(model(TOKENS), plain["logits"])


@pytest.mark.parametrize("name", EDITABLE)
def test_an_edit_that_changes_nothing_changes_no_bit(model, plain, isa, name, same_bits):
    dispatch.use(isa)
    expected = model(TOKENS)
    with model.edit({name: lambda array: array}):
        same_bits(model(TOKENS), expected)
    with model.edit({name: add(0, positions=[3, 70])}):
        same_bits(model(TOKENS), expected)


@pytest.mark.parametrize("name", EDITABLE)
def test_every_kind_of_call_is_edited_alike(model, name, same_bits):
    """Forward, next_logits, batches, ragged lists, and with a cache token by token: the same bits."""
    edits = {name: scale(-1.5, positions=slice(1, None, 2))}
    with model.edit(edits):
        whole = model(TOKENS[:70])
        same_bits(model.next_logits(TOKENS[:70]), whole[-1])
        batch = np.stack([OTHERS[:70], TOKENS[:70]])
        same_bits(model(batch)[1], whole)
        same_bits(model.next_logits(batch)[1], whole[-1])
        ragged = model.forward_many([OTHERS[:9], TOKENS[:70]])
        same_bits(ragged[1], whole)
        cache = model.new_cache()
        same_bits(model(TOKENS[:65], cache), whole[:65])
        for i in range(65, 70):
            same_bits(model.next_logits(TOKENS[i : i + 1], cache), whole[i])
        two = model.new_cache(2)
        model(batch[:, :30], two)
        same_bits(model.next_logits(batch[:, 30:], two)[1], whole[-1])
        with model.edit({}):
            assert model.forward(TOKENS[:1], check_finite=True).shape == (1, 61)
    assert (model(TOKENS[:70]) != whole).any()


def test_a_function_that_mixes_positions_sees_all_of_them_in_next_logits(model, same_bits):
    for name in ("h.1.mlp.out", "h.1.attn.weights", "ln_f"):
        with model.edit({name: lambda array: np.flip(array, axis=-2).copy()}):
            same_bits(model.next_logits(TOKENS[:20]), model(TOKENS[:20])[-1])


@pytest.mark.parametrize("name", ["h.0.attn.heads", "h.1.attn.scores", "h.1.resid", "logits"])
def test_generation_is_edited(model, name):
    """What a loop over edited forward passes finds, also for prompts that share a beginning."""
    prompts = [TOKENS[:70], np.append(TOKENS[:66], [3, 4]), OTHERS[:5]]
    edits = {name: scale(-2, positions=slice(1, None, 3))}

    def greedy(prompt):
        ids = list(prompt)
        for _ in range(6):
            ids.append(int(model(ids)[-1].argmax()))
        return ids[len(prompt) :]

    with model.edit(edits):
        new = model.generate(prompts, max_new_tokens=6, temperature=0)
        assert [list(ids) for ids in new] == [greedy(prompt) for prompt in prompts]
    plain = model.generate(prompts, max_new_tokens=6, temperature=0)
    assert [list(ids) for ids in plain] == [greedy(prompt) for prompt in prompts]
    assert any(list(a) != list(b) for a, b in zip(plain, new, strict=True))


def test_streamed_text_has_the_edits_of_whoever_reads_it(build):
    lm = gpt2cy.LanguageModel(build(256, 36, 3, 2, 60), ByteTokenizer())
    settings = {"max_new_tokens": 12, "temperature": 0}
    plain = lm.generate("To be", **settings).text
    with lm.model.edit({"h.*.attn.heads": scale(-3)}):
        edited = lm.generate("To be", **settings).text
        assert "".join(lm.stream("To be", **settings)) == edited != plain
        begun = lm.stream("To be", **settings)
    assert "".join(begun) == plain


def test_a_generator_has_the_block_while_it_is_in_it(model, plain, same_bits):
    def halved():
        with model.edit({"embed": scale(0.5)}):
            yield model(TOKENS)
            yield model(TOKENS)

    both = halved()
    first = next(both)
    same_bits(model(TOKENS), first)  # its caller is in the block as well, as with any context variable
    both.close()
    same_bits(model(TOKENS), plain["logits"])
    with pytest.raises(KeyError):
        for _ in halved():
            raise KeyError


def test_rows_that_only_fill_their_caches_are_edited(model, same_bits):
    with model.edit({"h.0.resid": scale(2), "h.1.attn.k": add(1), "logits": scale(-1)}):
        expected = model.next_logits(TOKENS[:21])
        caches = [model.new_cache(), model.new_cache()]
        out = np.empty((1, V), np.float32)
        model.next_logits_many([TOKENS[:21], TOKENS[:20]], caches, out=out)
        same_bits(out[0], expected)
        model.next_logits_many([[7]], [model.new_cache()], out=out[:0])
        same_bits(model.next_logits(TOKENS[20:21], caches[1]), expected)


@pytest.mark.parametrize("name", ["h.0.attn.heads", "h.1.resid", "ln_f", "logits"])
@pytest.mark.parametrize("limit", [None, 50])
def test_scores_are_edited(model, name, limit):
    """As log softmax of edited logits, for sequences that share a beginning, and from a start."""
    tokens = np.minimum(TOKENS, 49)
    sequences = [tokens[:70], np.append(tokens[:66], [3, 4]), np.minimum(OTHERS, 49)[:5]]
    starts = [10, 66, 1]
    with model.edit({name: scale(-2, positions=slice(1, None, 3))}):
        scores = model.score_many(sequences, starts, top=2, vocab_limit=limit)
        expected = [np.array(model(sequence)[:, :limit], np.float64) for sequence in sequences]
    for found, sequence, start, logits in zip(scores, sequences, starts, expected, strict=True):
        shares = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        rows = np.arange(start - 1, len(sequence) - 1)
        np.testing.assert_allclose(found.logprobs, shares[rows, sequence[rows + 1]], atol=1e-5)
        np.testing.assert_array_equal(found.top_ids[:, 0], logits[rows].argmax(axis=-1))
    plain = model.score_many(sequences, starts, vocab_limit=limit)
    assert (plain[0].logprobs != scores[0].logprobs).any()


def test_an_error_while_scoring_comes_out(model):
    def fail(array):
        raise KeyError("no")

    for name in ("embed", "h.1.resid", "ln_f", "logits"):
        with pytest.raises(KeyError) as raised, model.edit({name: fail}):
            model.token_logprobs(TOKENS)
        assert name in raised.value.__notes__[0]
    assert np.isfinite(model.token_logprobs(TOKENS)).all()


# ---- each edit against NumPy


def seen_with(model, name, edit):
    with model.edit({name: edit}):
        return model.trace(TOKENS, name)[name]


@pytest.mark.parametrize("name", ["h.0.mlp.hidden", "h.1.attn.heads"])
def test_the_edits_are_their_formulas(model, plain, name):
    before = plain[name]
    other = model.trace(OTHERS, name)[name]
    vector = np.random.default_rng(1).normal(size=before.shape[-1]).astype(np.float32)
    at = before.ndim - 2
    cases = [
        (zero(), 0 * before),
        (scale(3), 3 * before),
        (scale(vector), vector * before),
        (scale(other), other * before),
        (add(-2.5), before - np.float32(2.5)),
        (add(vector), before + vector),
        (add(other), before + other),
        (replace(1), 0 * before + 1),
        (replace(vector), 0 * before + vector),
        (replace(other), other),
        (mean(), before.mean(axis=at, keepdims=True, dtype=float) + 0 * before),
        (mean(other), other.mean(axis=at, keepdims=True, dtype=float) + 0 * before),
        (mean(np.stack([other, before])), ((other + before) / 2).mean(axis=at, keepdims=True) + 0 * before),
        (mean(vector), 0 * before + vector),
        (apply(np.square), before * before),
        (np.abs, np.abs(before)),
        ([np.abs, scale(2), add(1)], 2 * np.abs(before) + 1),
    ]
    for edit, expected in cases:
        np.testing.assert_allclose(seen_with(model, name, edit), expected, rtol=1e-5, atol=1e-5)


POSITIONS = [
    (0, [0]), (129, [129]), ([5, 3, 5], [3, 5]), (range(10, 40, 7), [10, 17, 24, 31, 38]),
    (range(38, 9, -7), [10, 17, 24, 31, 38]), (slice(120, None), range(120, 130)),
    (slice(None, 9, 4), [0, 4, 8]), (np.array([1, 2]), [1, 2]), (np.array(7), [7]),
    ([4, 199], [4]), (199, []),
]  # fmt: skip


@pytest.mark.parametrize(("given", "meant"), POSITIONS)
def test_positions(model, plain, given, meant):
    others = np.setdiff1d(np.arange(130), meant)
    for name in ("h.1.resid", "h.0.attn.q"):
        edited = seen_with(model, name, zero(positions=given))
        seen, before = np.moveaxis(edited, -2, 0), np.moveaxis(plain[name], -2, 0)
        assert not seen[list(meant)].any()
        np.testing.assert_array_equal(seen[others], before[others])


@pytest.mark.parametrize("head", [0, 2, [2, 0], range(3), np.int64(1)])
@pytest.mark.parametrize("kind", ["q", "k", "v", "heads", "weights"])
def test_heads(model, plain, kind, head):
    name = f"h.1.attn.{kind}"
    seen = seen_with(model, name, zero(head=head))
    meant = np.atleast_1d(head)
    assert not seen[meant].any()
    others = np.setdiff1d(np.arange(3), meant)
    np.testing.assert_array_equal(seen[others], plain[name][others])


def test_head_and_positions_together(model, plain):
    name = "h.0.attn.v"
    other = model.trace(OTHERS, name)[name]
    seen = seen_with(model, name, replace(other, head=[0, 2], positions=[7, 9, 100]))
    expected = plain[name].copy()
    expected[np.ix_([0, 2], [7, 9, 100])] = other[np.ix_([0, 2], [7, 9, 100])]
    np.testing.assert_array_equal(seen, expected)
    shapes = []

    def look(part):
        shapes.append(part.shape)
        return part

    seen_with(model, name, apply(look, head=1, positions=[3, 4]))
    seen_with(model, "embed", apply(look, positions=5))
    assert shapes == [(1, 2, 12), (1, 36)]


# ---- attention


def test_patching_all_of_a_residual_gives_the_other_prompts_logits(model, same_bits):
    other = model.trace(OTHERS)
    for name in ("embed", "h.0.resid", "resid.1", "h.1.resid_mid", "ln_f", "logits"):
        with model.edit({name: replace(other[name])}):
            same_bits(model(TOKENS), other["logits"])


@pytest.mark.parametrize("kind", ["scores", "weights"])
def test_heads_follow_edited_weights(model, plain, kind):
    name = "h.1.attn." + kind
    with model.edit({name: replace(model.trace(OTHERS, name)[name], head=1)}):
        seen = model.trace(TOKENS)
    weights = model.trace(OTHERS, "h.1.attn.weights")["h.1.attn.weights"]
    np.testing.assert_array_equal(seen["h.1.attn.weights"][1], weights[1])
    heads = weights[1].astype(np.float64) @ plain["h.1.attn.v"][1]
    np.testing.assert_allclose(seen["h.1.attn.heads"][1], heads, atol=2e-6)
    np.testing.assert_array_equal(seen["h.1.attn.heads"][[0, 2]], plain["h.1.attn.heads"][[0, 2]])


def test_edited_rows_alone_are_made_anew(model, plain):
    with model.edit({"h.0.attn.weights": scale(0.25, head=2, positions=[66, 67, 90])}):
        heads = model.trace(TOKENS, "h.0.attn.heads")["h.0.attn.heads"]
    before = plain["h.0.attn.heads"]
    different = (heads != before).any(axis=-1)
    assert np.argwhere(different).tolist() == [[2, 66], [2, 67], [2, 90]]
    np.testing.assert_allclose(heads[2, 66], before[2, 66] / 4, rtol=1e-4, atol=1e-6)


def test_new_heads_are_one_chain_on_every_fused_isa(model, fused_isa, same_bits):
    edits = {"h.*.attn.weights": lambda weights: weights * weights, "h.1.attn.scores": add(0.5)}
    dispatch.use("ref")
    with model.edit(edits):
        expected = model.trace(TOKENS)
        dispatch.use(fused_isa)
        for name, array in model.trace(TOKENS).items():
            same_bits(array, expected[name])


def test_the_mask_is_not_editable(model, plain):
    with model.edit({"h.0.attn.scores": zero()}):
        weights = model.trace(TOKENS, "h.0.attn.*")
    uniform = np.tri(130) / np.arange(1, 131)[:, None]
    for head in weights["h.0.attn.weights"]:
        np.testing.assert_allclose(head, uniform, rtol=1e-6)
    assert np.isneginf(weights["h.0.attn.scores"][:, ~np.tri(130, dtype=bool)]).all()
    with model.edit({"h.0.attn.weights": replace(1)}):
        seen = model.trace(TOKENS)
        np.testing.assert_array_equal(seen["h.0.attn.weights"][0], np.tri(130))
        np.testing.assert_array_equal(model(TOKENS[:70]), seen["logits"][:70])  # nobody saw what came later


def test_an_inf_to_come_does_not_reach_back_through_edited_weights(model, plain):
    def poison(values):
        values[:, 50:] = np.inf
        return values

    with model.edit({"h.0.attn.v": poison, "h.0.attn.weights": scale(0.5)}):
        heads = model.trace(TOKENS, "h.0.attn.heads")["h.0.attn.heads"]
    assert np.isfinite(heads[:, :50]).all()
    assert not np.isfinite(heads[:, 50:]).any()


def test_ablating_a_head_is_the_model_without_it(model):
    """Against the reference with the rows of c_proj that belong to the head set to 0."""
    params = model.state_dict()
    rows = params["h.0.attn.c_proj.weight"].copy()
    rows[D : 2 * D] = 0
    params["h.0.attn.c_proj.weight"] = rows
    expected = reference.forward(model.config, params, TOKENS)
    with model.edit({"h.0.attn.heads": zero(head=1)}):
        np.testing.assert_allclose(model(TOKENS), expected, rtol=1e-4, atol=1e-4)


def test_memory_of_edits_is_asked_for_before(model, monkeypatch):
    """Of attention most, since it is not kept otherwise; a pass that is not edited needs none of it."""
    monkeypatch.setattr("gpt2cy.kernels.host.ALWAYS_FITS", 0)
    left = 1 << 20  # less than six times the scores of 3 heads, 130 queries and keys
    monkeypatch.setattr("gpt2cy.kernels.host.available_memory", lambda: left)
    calls = (
        model, model.next_logits, model.token_logprobs, lambda ids: model.trace(ids, "embed"),
        lambda ids: model.forward_many([ids]), lambda ids: model.next_logits_many([ids]),
        lambda ids: model.generate([ids], max_new_tokens=1),
    )  # fmt: skip
    for name in ("h.0.attn.scores", "h.1.attn.weights"):
        for call in calls:
            call(TOKENS)
            with model.edit({name: scale(2)}), pytest.raises(MemoryError, match="activations 1 MiB"):
                call(TOKENS)
    left = 8 << 20
    with model.edit({"h.0.attn.scores": scale(2)}):
        model(TOKENS)


# ---- blocks in blocks


def test_inner_edits_come_after_outer_ones(model, plain):
    name = "h.0.mlp.out"
    with model.edit({name: scale(2)}):
        with model.edit({name: add(1)}):
            np.testing.assert_array_equal(model.trace(TOKENS, name)[name], 2 * plain[name] + 1)
        np.testing.assert_array_equal(model.trace(TOKENS, name)[name], 2 * plain[name])
    with model.edit({name: add(1)}), model.edit({name: scale(2)}):
        np.testing.assert_array_equal(model.trace(TOKENS, name)[name], 2 * (plain[name] + np.float32(1)))
    np.testing.assert_array_equal(model.trace(TOKENS, name)[name], plain[name])


def test_one_block_gives_the_model_and_can_be_entered_again(model, plain):
    block = model.edit({"h.*.attn.out": scale(2)})
    np.testing.assert_array_equal(model(TOKENS), plain["logits"])
    with block as same:
        assert same is model
        once = model(TOKENS)
        with block:
            np.testing.assert_array_equal(
                model.trace(TOKENS, "h.0.attn.out")["h.0.attn.out"], 4 * plain["h.0.attn.out"]
            )
        np.testing.assert_array_equal(model(TOKENS), once)
    with block:
        np.testing.assert_array_equal(model(TOKENS), once)
    more, name = model.edit({"h.0.attn.out": add(1)}), "h.0.attn.out"
    with block, more:
        with block:
            pass  # of the two, the inner one is left
        np.testing.assert_array_equal(model.trace(TOKENS, name)[name], 2 * plain[name] + 1)


def test_patterns_apply_in_the_mappings_order(model, plain):
    name = "h.1.mlp.out"
    with model.edit({"h.*.mlp.out": scale(2), name: add(1), "*.out": scale(3, positions=4)}):
        seen = model.trace(TOKENS, name)[name]
    assert (seen[3] != seen[4]).all()
    with model.edit({"resid.*": scale(2)}):  # embed, h.0.resid, h.1.resid, each once
        np.testing.assert_array_equal(model.trace(TOKENS, "embed")["embed"], 2 * plain["embed"])
    with model.edit({"*resid*": scale(2, positions=3)}):  # h.0.resid and resid.1 are one
        seen = model.trace(TOKENS, ["h.0.mlp.out", "h.0.resid_mid", "resid.1"])
    expected = 2 * (seen["h.0.mlp.out"] + seen["h.0.resid_mid"])[3]
    np.testing.assert_array_equal(seen["resid.1"][3], expected)
    with model.edit({"h.0.resid": scale(2), "resid.1": scale(2)}):
        np.testing.assert_array_equal(model.trace(TOKENS, "resid.1")["resid.1"], 4 * plain["resid.1"])


def test_other_models_are_not_edited(model, plain, build):
    other = build(*SIZES)
    with model.edit({"h.0.mlp.out": zero()}):
        np.testing.assert_array_equal(other(TOKENS), plain["logits"])


def test_threads_do_not_see_each_others_edits(model, plain):
    factors = [1, 2, 3, 4]
    expected = []
    for factor in factors:
        with model.edit({"h.0.mlp.out": scale(factor)}):
            expected.append(model(TOKENS))
    barrier = threading.Barrier(len(factors))
    wrong = []

    def work(factor, logits):
        for _ in range(10):
            with model.edit({"h.0.mlp.out": scale(factor)}):
                barrier.wait()
                if not np.array_equal(model(TOKENS), logits):
                    wrong.append(factor)
                barrier.wait()

    threads = [threading.Thread(target=work, args=pair) for pair in zip(factors, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    np.testing.assert_array_equal(model(TOKENS), plain["logits"])


def test_a_thread_that_is_given_the_context_is_edited(model, plain, same_bits):
    async def aside():
        with model.edit({"h.0.mlp.out": zero()}):
            return model(TOKENS), await asyncio.to_thread(model, TOKENS)

    same_bits(*asyncio.run(aside()))
    same_bits(model(TOKENS), plain["logits"])


def test_asyncio_tasks_do_not_see_each_others_edits(model, plain):
    async def work(factor):
        with model.edit({"h.1.mlp.out": scale(factor)}):
            await asyncio.sleep(0.01)
            return model.trace(TOKENS, "h.1.mlp.out")["h.1.mlp.out"]

    async def both():
        return await asyncio.gather(work(2), work(4))

    two, four = asyncio.run(both())
    np.testing.assert_array_equal(two, 2 * plain["h.1.mlp.out"])
    np.testing.assert_array_equal(four, 4 * plain["h.1.mlp.out"])


# ---- errors


class Boom(Exception):
    pass


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("name", EDITABLE)
def test_an_error_of_an_edit_comes_out_and_the_cache_stays(model, plain, name, error, same_bits):
    calls = []

    def fail(array):
        calls.append(1)
        raise error("no")

    cache = model.new_cache()
    model(TOKENS[:60], cache)
    with pytest.raises(error, match="no") as raised, model.edit({name: fail}):
        model(TOKENS[60:], cache)
    assert raised.value.__notes__ == [f"gpt2cy: in an edit of {name}, sequence 0, positions from 60"]
    assert len(calls) == 1
    assert cache.lengths == [60]
    same_bits(model(TOKENS[60:], cache), plain["logits"][60:])


def test_an_array_that_a_function_has_given_another_shape(model):
    for name in ("h.0.resid", "h.0.attn.weights"):

        def flatten(array):
            array.shape = (array.size,)
            return array

        with (
            pytest.raises(ValueError, match=f"^{name}: what the edit returned: "),
            model.edit({name: flatten}),
        ):
            model(TOKENS[:5])


@pytest.mark.filterwarnings("error")
def test_products_that_are_not_finite_are_no_warning(model, plain):
    """Scores are -inf where they are masked; elsewhere an overflow goes on, for check_finite to find."""
    with model.edit({"h.0.attn.scores": scale(0)}):
        weights = model.trace(TOKENS, "h.0.attn.weights")["h.0.attn.weights"]
    np.testing.assert_allclose(weights[:, 3, :5], [[0.25, 0.25, 0.25, 0.25, 0]] * 3, atol=1e-7)
    huge = model.edit({"h.0.mlp.out": [scale(3e38), scale(3e38)]})
    with huge, pytest.raises(FloatingPointError, match=r"^h\.0\.mlp\.out: "):
        model(TOKENS, check_finite=True)


BAD_ANSWERS = [
    (lambda array: None, TypeError), (lambda array: array[:1], ValueError), (lambda array: 0.0, ValueError),
    (lambda array: array.astype(int), TypeError), (lambda array: array > 0, TypeError),
    (lambda array: array.astype(complex), TypeError), (lambda array: array.astype(float) + 1e300, ValueError),
    (lambda array: "text", TypeError), (lambda array: array.T, ValueError), (lambda: 0, TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("function", "error"), BAD_ANSWERS)
@pytest.mark.parametrize("name", ["h.0.resid", "h.1.attn.weights"])
def test_bad_answers_of_an_edit_are_named(model, name, function, error):
    cache = model.new_cache()
    with pytest.raises(error) as raised, model.edit({name: function}):
        model(TOKENS[:5], cache)
    assert name in f"{raised.value} {raised.value.__notes__}"
    assert cache.lengths == [0]


def test_answers_in_other_float_types_and_layouts_are_taken(model, plain):
    name = "h.0.resid"
    for form in (np.float64, np.float16, np.longdouble, ">f4"):
        with model.edit({name: lambda array, form=form: (array * 0 + 1).astype(form)}):
            assert (model.trace(TOKENS, name)[name] == 1).all()
    with model.edit({name: lambda array: np.asfortranarray(array)[::-1]}):
        np.testing.assert_array_equal(model.trace(TOKENS, name)[name], plain[name][::-1])


def test_what_a_function_keeps_is_its_own(model, plain):
    kept = []

    def keep(array):
        kept.append(array)
        return array

    with model.edit({"h.0.resid": keep, "h.0.attn.weights": keep}):
        model(TOKENS)
    for array in kept:
        array[...] = np.nan  # long after the pass: nobody reads it
    np.testing.assert_array_equal(model(TOKENS), plain["logits"])


def test_the_model_within_an_edit_of_it(model, plain):
    """It is not edited again, its weights cannot be changed, and what it does to edits is of no effect."""
    inside = []

    def call(array):
        inside.append(model(TOKENS))
        with pytest.raises(RuntimeError):
            model.ln_f.gamma = np.ones(36, np.float32)
        model.edit({"h.1.resid": zero()}).__enter__()
        return 2 * array

    with model.edit({"h.0.resid": call}):
        seen = model.trace(TOKENS)
    np.testing.assert_array_equal(inside[0], plain["logits"])
    np.testing.assert_array_equal(seen["h.0.resid"], 2 * plain["h.0.resid"])
    assert seen["h.1.resid"].any()


def set_weights(model, cache):
    model.blocks[0].mlp.c_fc.weight = model.blocks[0].mlp.c_fc.weight


DEEDS = {
    "generates": lambda model, cache: model.generate([TOKENS[:5]], max_new_tokens=3),
    "profiles": lambda model, cache: model.profile([1, 2], seconds=0.001),
    "scores": lambda model, cache: model.token_logprobs(TOKENS),
    "one thread": lambda model, cache: gpt2cy.set_num_threads(1),
    "more threads": lambda model, cache: gpt2cy.set_num_threads(4),
    "another isa": lambda model, cache: dispatch.use("ref"),
    "reads the cache": lambda model, cache: model(TOKENS[:3], cache),
    "cuts the cache": lambda model, cache: cache.truncate(0),
    "copies the cache": lambda model, cache: cache.copy(),
    "sets weights": set_weights,
    "loads weights": lambda model, cache: model.load_state_dict(model.state_dict()),
    "copies the model": lambda model, cache: copy.deepcopy(model),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("name", ["embed", "h.0.attn.weights", "h.1.mlp.hidden", "logits"])
def test_what_an_edit_does_besides_does_not_disturb_its_pass(model, plain, isa, name, deed, same_bits):
    """It works, or it is refused because the pass is using what it is about."""
    dispatch.use(isa)
    expected = model(TOKENS)
    cache, refused = model.new_cache(), []

    def act(array):
        try:
            DEEDS[deed](model, cache)
        except RuntimeError as error:
            refused.append(str(error))
        return array

    with model.edit({name: act}):
        same_bits(model(TOKENS, cache), expected)
    assert cache.lengths == [130]
    assert bool(refused) == (deed.split()[-1] in ("cache", "weights")), refused


def test_arrays_of_an_edit_are_copied(model, plain):
    value = plain["h.0.resid"].copy()
    edit = replace(value)
    value[...] = 0
    np.testing.assert_array_equal(seen_with(model, "h.0.resid", edit), plain["h.0.resid"])


def test_positions_that_a_patch_does_not_hold(model):
    held = model.trace(TOKENS[:5])
    for name in ("h.0.resid", "h.0.attn.v", "h.0.attn.weights"):
        for positions, length, first in ([3, 4, 7], 9, 7), (None, 6, 5):
            with (
                model.edit({name: replace(held[name], positions=positions)}),
                pytest.raises(ValueError, match=f"replace: holds positions 0 to 4 of {name}, not {first}"),
            ):
                model(TOKENS[:length])
        with model.edit({name: replace(held[name], positions=[3, 4, 7])}):
            assert model(TOKENS[:5]).shape == (5, 61)
    with (
        model.edit({"h.0.attn.weights": replace(held["h.0.attn.weights"][:, :, :3])}),
        pytest.raises(ValueError, match=r"replace: holds 3 keys of h.0.attn.weights, not 5"),
    ):
        model(TOKENS[:5])


def test_what_is_no_edit_is_said_at_once(model):
    for edits in (None, 3, [("embed", zero())]):
        with pytest.raises(TypeError, match="^edits: expected a mapping"):
            model.edit(edits)
    for value in (None, 3, "zero", np.zeros(36), [zero(), 3]):
        with pytest.raises(TypeError, match="^edits: expected an edit"):
            model.edit({"embed": value})
    with pytest.raises(ValueError, match=r"^edits: 'h\.5\.resid' matches no"):
        model.edit({"h.5.resid": zero()})
    with pytest.raises(ValueError, match=r"^edits: h\.0\.attn\.per_head is made of attn\.heads"):
        model.edit({"h.0.attn.per_head": zero()})
    with pytest.raises(TypeError, match="^edits: expected a name"):
        model.edit({3: zero()})
    with pytest.raises(ValueError, match=r"^head: h\.0\.mlp\.out \[T, C=36\] has no heads"):
        model.edit({"h.*.mlp.out": zero(head=1)})
    with pytest.raises(ValueError, match="^head: expected an integer from 0 to 2, got 3"):
        model.edit({"h.0.attn.q": zero(head=[0, 3])})
    with pytest.raises(ValueError, match="^positions: expected an integer from 0 to 199, got 200"):
        model.edit({"embed": zero(positions=200)})
    with pytest.raises(ValueError, match="^positions: expected an integer from 0 to 199, got 999999999999"):
        model.edit({"embed": zero(positions=range(10**12))})
    with pytest.raises(ValueError, match=r"^mean: h\.0\.attn\.scores is masked"):
        model.edit({"h.0.attn.scores": mean()})


BAD_OPERANDS = [
    ("embed", np.zeros(5)), ("embed", np.zeros((5, 5))), ("embed", np.zeros((3, 5, 36))),
    ("h.0.attn.q", np.zeros(36)), ("h.0.attn.q", np.zeros((2, 5, 12))), ("h.0.attn.q", np.zeros((5, 36))),
    ("h.0.attn.scores", np.zeros(5)), ("h.0.attn.scores", np.zeros((5, 5))), ("logits", np.zeros((5, 60))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operand"), BAD_OPERANDS)
@pytest.mark.parametrize("make", [scale, add, replace])
def test_operands_that_do_not_fit_are_named(model, name, operand, make):
    with pytest.raises(ValueError, match=rf"^{make.__name__}: expected a number or .* for {name}, got shape"):
        model.edit({name: make(operand)})


def test_bad_arguments_of_edits():
    for bad in (-1, [-1], [], slice(-3, None), slice(None, None, 0)):
        with pytest.raises(ValueError, match="^positions: expected"):
            zero(positions=bad)
    for bad in (1.5, "1", [None], True, {1}, ..., slice("a"), [[1]]):
        with pytest.raises(TypeError, match="^positions: expected"):
            zero(positions=bad)
    for bad in (range(0), range(-1, 5), range(5, -2, -1)):
        with pytest.raises(ValueError, match="^positions: expected"):
            zero(positions=bad)
    with pytest.raises(ValueError, match="^head: expected"):
        zero(head=-1)
    for make, name in ((scale, "factor"), (add, "value"), (replace, "value")):
        for bad in (None, "x", True, [[1.0], [2.0, 3.0]], 1e300):
            with pytest.raises((TypeError, ValueError), match=f"^{name}: expected"):
                make(bad)
    with pytest.raises(TypeError, match="^of: expected"):
        mean("x")
    with pytest.raises(TypeError, match="^function: expected something to call"):
        apply(3)


def test_an_edit_says_what_it_is():
    cases = {
        "Edit(zero)": zero(),
        "Edit(scale, 2.5, head=[0, 1])": scale(2.5, head=[1, 0]),
        "Edit(add, operand [3], positions=[4])": add([1, 2, 3], positions=4),
        "Edit(replace, 0, head=[0, 2], positions=slice(1, None, None))": replace(
            0, head=range(0, 3, 2), positions=slice(1, None)
        ),
        "Edit(mean, positions=range(0, 9))": mean(positions=range(9)),
        "Edit(apply <ufunc 'square'>)": apply(np.square),
    }
    for text, edit in cases.items():
        assert repr(edit) == text


def test_layers_alone_are_not_edited(model, plain):
    with model.edit({"h.0.ln_1": zero()}):
        np.testing.assert_array_equal(model.blocks[0].ln_1(plain["embed"]), plain["h.0.ln_1"])
    assert gpt2cy.inspection.Edit is type(zero())
