# SPDX-License-Identifier: Apache-2.0
"""Beam search: what transformers found, recorded (golden/make_beams.py); what any search must do."""

import copy
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import gpt2cy
from gpt2cy.generation import beams
from gpt2cy.inspection import zero
from gpt2cy.kernels import dispatch
from gpt2cy.tokenizer import ByteTokenizer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "hf_beams.json").read_text())


@pytest.fixture(scope="module")
def model(build):
    config = dict(GOLDEN["config"])
    sizes = [config.pop(name) for name in ("vocab_size", "n_embd", "n_heads", "n_layers", "block_size")]
    return build(*sizes, scale=GOLDEN["scale"], **config)


def search(model, prompts, **settings):
    return model.generate(prompts, details=True, **{"max_new_tokens": 12, **settings})


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: str(case["settings"]))
def test_as_transformers(model, case):
    found = search(model, [GOLDEN["prompt"]], **case["settings"])
    assert [result.tokens.tolist() for result in found] == [ids for ids, _ in case["beams"]]
    np.testing.assert_allclose(
        [result.score for result in found], [score for _, score in case["beams"]], rtol=1e-4
    )
    for result in found:
        stopped = result.tokens[-1] in case["settings"].get("stop_ids", [])
        assert result.finish_reason == ("stop_id" if stopped else "length")
        assert result.stop == (result.tokens[-1] if stopped else None)


def test_enough_beams_find_the_best(build):
    """With a beam for every beginning nothing is lost: the search is exhaustive."""
    model = build(4, 12, 2, 2, 16)
    found = search(
        model, [[1, 2]], num_beams=16, num_return_sequences=3, max_new_tokens=3, length_penalty=0.0
    )
    scores = {}
    for new in itertools.product(range(4), repeat=3):
        logits = model.forward([1, 2, *new])[1:-1].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        scores[new] = logprobs[range(3), list(new)].sum()
    best = sorted(scores, key=scores.get, reverse=True)[:3]
    assert [tuple(result.tokens.tolist()) for result in found] == best
    np.testing.assert_allclose([result.score for result in found], [scores[new] for new in best], rtol=1e-5)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_alone_and_among_others(isa, model, n_threads):
    """Several searches at once, sampled rows between them, equal prompts: each as if alone, always."""
    dispatch.use(isa)
    gpt2cy.set_num_threads(n_threads)
    prompts = [[3, 1, 4], [5], [3, 1, 4], [3, 1, 4, 1, 5]]
    given = {"stop_ids": [2], "max_new_tokens": 8, "seed": 0}
    found = search(model, prompts, num_beams=[4, 1, 2, 3], num_return_sequences=[2, 2, 1, 1], **given)
    assert [(result.prompt, result.sample) for result in found] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
        (3, 0),
    ]
    alone = [
        *search(model, prompts[:1], num_beams=4, num_return_sequences=2, **given),
        *search(model, [[9], [5]], num_return_sequences=2, **given)[2:],
        *search(model, prompts[:1], num_beams=2, **given),
        *search(model, prompts[3:], num_beams=3, **given),
    ]
    for result, right in zip(found, alone, strict=True):
        assert result.tokens.tolist() == right.tokens.tolist()
        assert result.score == right.score


def test_progress_counts_the_ids_of_all_beams(model):
    counts = []
    search(model, [[3, 1, 4], [5]], num_beams=[4, 2], max_new_tokens=[3, 2], progress=counts.append)
    assert counts == [6, 6, 4]


def test_a_cache_is_continued(model):
    cache = model.prefill([3, 1, 4])
    for more in ([1, 5], []):
        found = search(model, [more], cache=cache, num_beams=3)[0]
        whole = search(model, [[3, 1, 4, *more]], num_beams=3)[0]
        assert (found.tokens.tolist(), found.score) == (whole.tokens.tolist(), whole.score)
    assert cache.lengths == [3]


@pytest.mark.parametrize(
    ("length", "n", "reason"), [(40, 1, "context"), (35, 6, "context"), (33, 7, "length")]
)
def test_the_context_ends_a_search(model, length, n, reason):
    found = search(model, [[1] * length], num_beams=3, max_new_tokens=None if reason == "context" else 7)[0]
    assert (len(found.tokens), found.finish_reason) == (n, reason)


def test_no_tokens(model):
    found = search(model, [[1]], num_beams=3, num_return_sequences=2, max_new_tokens=0)
    assert [(len(result.tokens), result.finish_reason, result.score) for result in found] == [
        (0, "length", 0.0)
    ] * 2


def test_bans_hold(model):
    """Ids that must not come do not, in any beam."""
    found = search(
        model, [[3, 1]], num_beams=4, num_return_sequences=4, vocab_limit=20, logit_bias={11: -np.inf}
    )
    assert all((result.tokens < 20).all() and (result.tokens != 11).all() for result in found)
    found = search(model, [[3]], num_beams=3, constrain=lambda ids: [len(ids) % 5, 6])[0]
    assert all(token in (6, (1 + i) % 5) for i, token in enumerate(found.tokens.tolist()))


def test_fewer_than_wanted(model):
    """Only what is allowed comes out, each once; a sampled row's error where nothing is."""
    only = search(model, [[3]], num_beams=3, n=3, max_new_tokens=4, constrain=lambda ids: [5])
    assert [result.tokens.tolist() for result in only] == [[5] * 4]
    found = search(
        model, [[3]], num_beams=4, n=4, max_new_tokens=2, constrain=lambda ids: [5, 6], stop_ids=[5]
    )
    assert {tuple(result.tokens) for result in found} == {(5,), (6, 5), (6, 6)}
    for constrain, step in ((lambda ids: [], 0), (lambda ids: [5] if len(ids) < 3 else [], 2)):
        with pytest.raises(ValueError, match=f"^constrain, .*got none in any .* prompt 1, at step {step}"):
            search(model, [[3, 1], [3]], num_beams=2, max_new_tokens=4, constrain=[None, constrain])


def test_text(build):
    """Stop strings end a beam, and are not shown."""
    lm = gpt2cy.LanguageModel(build(256, 20, 5, 2, 64), ByteTokenizer())
    free = lm.generate("To be", num_beams=3, max_new_tokens=8)
    assert free.text == lm.decode(free.tokens)
    stop = free.text[3:5]
    found = lm.generate("To be", num_beams=3, max_new_tokens=8, stop=stop, n=3)
    for result in found:
        ends = result.finish_reason == "stop_string"
        assert (result.stop == stop) == ends
        assert stop not in result.text
        assert lm.decode(result.tokens).startswith(result.text + stop * ends)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("top_k", 5), ("top_p", 0.5), ("min_p", 0.1), ("typical_p", 0.5), ("temperature", 0.7), ("logprobs", 0),
     ("on_full", "slide")],
)  # fmt: skip
def test_what_has_no_meaning_is_refused(model, setting, value):
    with pytest.raises(ValueError, match=f"^{setting}: expected .* where num_beams > 1"):
        search(model, [[1]], num_beams=2, **{setting: value})


def test_logits_that_are_not_finite(build):
    model = build(23, 12, 2, 2, 16)
    weight = model.wte.weight.copy()
    weight[5] = np.nan
    model.wte.weight = weight
    where = "prompt 1, at step 0; it began with embed: nan at position 1 of"
    with pytest.raises(FloatingPointError, match=f"^logits: expected finite numbers.* in a beam of {where}"):
        search(model, [[1, 2], [1, 5]], num_beams=2, logit_bias={5: -np.inf})


@pytest.mark.parametrize("prompts", [[[1, 2, 3]], [[1, 2, 3], [1, 2, 4, 4], [7]]])
def test_beams_are_edited(model, prompts):
    """A head that is taken out by an edit is out, to the bit, as if its rows of c_proj were 0."""
    without = copy.deepcopy(model)
    projection = without.blocks[0].attn.c_proj
    rows = projection.weight.copy()
    rows[: model.blocks[0].attn.head_dim] = 0
    projection.weight = rows
    expected = search(without, prompts, num_beams=3, num_return_sequences=2)
    with model.edit({"h.0.attn.heads": zero(head=0)}):
        found = search(model, prompts, num_beams=3, num_return_sequences=2)
    for one, other in zip(found, expected, strict=True):
        assert (one.tokens.tolist(), one.score) == (other.tokens.tolist(), other.score)
    plain = search(model, prompts, num_beams=3, num_return_sequences=2)
    assert [one.score for one in plain] != [one.score for one in found]


@pytest.mark.parametrize("k", [1, 3, 9, 20])
def test_the_best(k):
    scores = np.array([3.0, 1.0, 3.0, -np.inf, 2.0, 3.0, -np.inf, 0.0, 2.0])
    assert beams.best(scores, k).tolist() == np.argsort(-scores, kind="stable")[:k].tolist()
