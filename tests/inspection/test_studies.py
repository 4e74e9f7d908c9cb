# SPDX-License-Identifier: Apache-2.0
"""Studies against NumPy on the reference model, and against what they must find in models made for it."""

import tracemalloc

import numpy as np
import pytest

import gpt2cy
from gpt2cy import reference
from gpt2cy.inspection import replace, studies
from gpt2cy.inspection.studies.attention import repeated
from gpt2cy.reference.model import _attention_scale, _block_params, _head
from gpt2cy.tokenizer import ByteTokenizer

SIZES = (61, 36, 3, 2, 120)
L, H, C, V = 2, 3, 36, 61
OPTIONS = [{}, {"tie_weights": True}, {"bias": False, "activation": "relu"}]
RNG = np.random.default_rng(8)
CLEAN, OTHER = RNG.integers(0, V, (2, 12))
ANSWER, WRONG = 7, 23


@pytest.fixture(params=OPTIONS, ids=["plain", "tied", "no bias"])
def model(build, request):
    return build(*SIZES, **request.param)


@pytest.fixture
def truth(model):
    return reference.trace(model.config, model.state_dict(), CLEAN)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=3e-4, atol=3e-4)


def log_softmax(logits):
    return logits - np.logaddexp.reduce(logits)


def measure(logits, wrong):
    last = logits[-1]
    return last[ANSWER] - last[WRONG] if wrong is not None else log_softmax(last)[ANSWER]


# ---- attention


def test_attention_maps(model, truth):
    maps = studies.attention_maps(model, CLEAN)
    assert (maps.layers, maps.heads) == ([0, 1], [0, 1, 2])
    close(maps.weights, [truth[f"h.{layer}.attn.weights"] for layer in range(L)])
    some = studies.attention_maps(model, CLEAN, layers=1, heads=[2, 0])
    np.testing.assert_array_equal(some.weights, maps.weights[[1]][:, [2, 0]])
    assert some.labels == [str(token) for token in CLEAN]
    assert studies.attention_maps(model, CLEAN, layers=np.array(1)).layers == [1]


def test_attention_spread(model, truth):
    spread = studies.attention_spread(model, CLEAN)
    weights = np.stack([truth[f"h.{layer}.attn.weights"] for layer in range(L)])
    for layer, head, query in np.ndindex(L, H, len(CLEAN)):
        row = weights[layer, head, query, : query + 1]
        close(spread.entropy[layer, head, query], -np.sum(row * np.log2(row)))
        close(spread.distance[layer, head, query], np.sum(row * (query - np.arange(query + 1))))
    close(spread.mean_entropy.values, spread.entropy.mean(axis=-1))
    close(spread.mean_distance.values, spread.distance.mean(axis=-1))
    assert (spread.entropy[:, :, 0] == 0).all()


def test_spread_of_a_long_text_is_refused_before(build, monkeypatch):
    model = build(61, 12, 1, 1, 4000)
    monkeypatch.setattr("gpt2cy.kernels.host.available_memory", lambda: 100 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(MemoryError, match=r"^tokens: .*reduce .* what is traced or edited"):
            studies.attention_spread(model, np.zeros(4000, int))
        assert tracemalloc.get_traced_memory()[1] < 4000 * 4000
    finally:
        tracemalloc.stop()


def test_spread_of_weights_that_are_known(model):
    eye, even = np.eye(12, dtype=np.float32), np.tri(12, dtype=np.float32)
    even /= even.sum(axis=-1, keepdims=True)
    patterns = np.stack([eye, np.eye(12, k=-1, dtype=np.float32) + np.eye(1, 12).T @ np.eye(1, 12), even])
    with model.edit({"h.*.attn.weights": replace(patterns)}):
        spread = studies.attention_spread(model, CLEAN)
    close(spread.entropy[0, 0], np.zeros(12))
    close(spread.distance[0, 0], np.zeros(12))
    close(spread.distance[1, 1], [0, *[1] * 11])
    close(spread.entropy[0, 2], np.log2(np.arange(1, 13)))
    close(spread.distance[0, 2], np.arange(12) / 2)


def test_induction_scores_ask_for_memory_before_they_draw(model, monkeypatch):
    def draw(*arguments):
        raise AssertionError("drawn")

    monkeypatch.setattr("gpt2cy.kernels.host.available_memory", lambda: 65 << 20)
    monkeypatch.setattr("gpt2cy.inspection.studies.attention.repeated", draw)
    with pytest.raises(MemoryError, match="^batch: .* MiB needed .*: reduce batch or length$"):
        studies.induction_scores(model, length=20, batch=10**6)


def test_induction_scores(model):
    found = studies.induction_scores(model, length=9, batch=3, seed=4, first=5)
    rows = repeated(np.random.default_rng(4), V, 3, 9, 5)
    expected = np.zeros((3, L, H))
    for tokens in rows:
        seen = reference.trace(model.config, model.state_dict(), tokens)
        for layer in range(L):
            weights = seen[f"h.{layer}.attn.weights"]
            for query in range(10, 19):
                for i, key in enumerate((query - 8, query - 1, query - 9)):
                    assert i != 2 or tokens[key] == tokens[query]
                    assert i != 0 or tokens[key - 1] == tokens[query]
                    expected[i, layer] += weights[:, query, key] / 27
    for table, values in zip((found.induction, found.previous, found.duplicate), expected, strict=True):
        close(table.values, values)


@pytest.mark.parametrize("first", [None, 0, 19])
def test_repeated_tokens(first):
    begin = int(first is not None)
    rows = repeated(np.random.default_rng(0), 20, 50, 20 - begin, first)
    assert rows.shape == (50, 40 - begin)
    for row in rows:
        assert begin == 0 or row[0] == first
        half = row[begin:20]
        np.testing.assert_array_equal(half, row[20:])
        assert sorted(set(row)) == list(range(20))
        assert sorted(half) == sorted(set(range(20)) - {first})
    assert len({tuple(row) for row in rows}) == 50


def test_heads_of_each_kind_are_found(model):
    back = [np.eye(20, k=-k, dtype=np.float32) for k in (9, 1, 10)]
    with model.edit({"h.1.attn.weights": replace(np.stack(back))}):
        found = studies.induction_scores(model, length=10)
    for head, table in enumerate((found.induction, found.previous, found.duplicate)):
        assert table.values[1, head] == 1
        assert table.top(1) == [(1, head, 1.0)]
        assert (np.delete(table.values[1], head) == 0).all()


# ---- the residual stream


def test_logit_lens(model, truth):
    lens = studies.logit_lens(model, CLEAN, top=4)
    config, params = model.config, model.state_dict()
    streams = [truth["embed"], *(truth[f"h.{layer}.resid"] for layer in range(L))]
    beta = params.get("ln_f.bias", 0.0)
    assert lens.answers.tolist() == [*CLEAN[1:], truth["logits"][-1].argmax()]
    for layer, stream in enumerate(streams):
        rows = reference.layernorm(stream, params["ln_f.weight"], beta, config.layer_norm_eps)
        shares = reference.softmax(reference.linear(rows, *_head(config, params)))
        order = np.argsort(-shares, axis=-1)[:, :4]
        close(lens.top_probabilities[layer], np.take_along_axis(shares, order, axis=-1))
        assert (lens.top_ids[layer] == order).mean() > 0.9  # rounding may swap two
        own = shares[np.arange(12), lens.answers]
        close(lens.probabilities[layer], own)
        assert np.abs(lens.ranks[layer] - (shares > own[:, None]).sum(axis=-1)).max() <= 1
    last = gpt2cy.softmax(model(CLEAN))
    np.testing.assert_array_equal(lens.top_ids[-1][:, 0], last.argmax(axis=-1))
    own = last[np.arange(12), lens.answers]
    np.testing.assert_array_equal(lens.probabilities[-1], own)
    np.testing.assert_array_equal(lens.ranks[-1], (last > own[:, None]).sum(axis=-1))
    assert lens.ranks[-1, -1] == 0
    one = studies.logit_lens(model, CLEAN, answer=ANSWER)
    each = studies.logit_lens(model, CLEAN, answer=[ANSWER] * 12)
    np.testing.assert_array_equal(one.ranks, each.ranks)
    np.testing.assert_array_equal(one.probabilities[-1], last[:, ANSWER])


def test_residual_norms(model, truth):
    norms = studies.residual_norms(model, CLEAN)
    streams = [truth["embed"], *(truth[f"h.{layer}.resid"] for layer in range(L))]
    close(norms.stream, np.linalg.norm(streams, axis=-1))
    close(norms.attention, [np.linalg.norm(truth[f"h.{layer}.attn.out"], axis=-1) for layer in range(L)])
    close(norms.mlp, [np.linalg.norm(truth[f"h.{layer}.mlp.out"], axis=-1) for layer in range(L)])


def test_embedding_neighbours(model):
    table = model.state_dict()["wte.weight"].astype(np.float64)
    cosines = table @ table[7] / np.linalg.norm(table, axis=1) / np.linalg.norm(table[7])
    order = [i for i in np.argsort(-cosines) if i != 7]
    near = studies.embedding_neighbours(model, 7, k=5)
    assert near.ids.tolist() == order[:5]
    close(near.similarities, cosines[order[:5]])
    assert studies.embedding_neighbours(model, 7, k=1000).ids.tolist() == order
    vector = table[7] - table[3]
    by_vector = studies.embedding_neighbours(model, vector.tolist(), k=2)
    assert 7 in by_vector.ids
    wte = table.astype(np.float32)
    wte[3] = 0
    model.wte.weight = wte
    assert 3 not in studies.embedding_neighbours(model, 7, k=1000).ids


# ---- effects


@pytest.mark.parametrize("wrong", [None, WRONG])
@pytest.mark.parametrize("position", [None, 0, 5])
def test_direct_attribution(model, truth, wrong, position):
    parts = studies.direct_attribution(model, CLEAN, ANSWER, wrong, position=position)
    config, params = model.config, model.state_dict()
    at = 11 if position is None else position
    weight, bias = _head(config, params)
    bias = np.zeros(V) if bias is None else bias
    column = weight[:, ANSWER] - (0 if wrong is None else weight[:, wrong])
    row = truth["h.1.resid"][at]
    deviation = np.sqrt(row.var() + config.layer_norm_eps)

    def share(vector):
        return (vector - vector.mean()) / deviation * params["ln_f.weight"] @ column

    close(parts.embed, share(truth["embed"][at]))
    for layer in range(L):
        for head in range(H):
            close(parts.heads[layer, head], share(truth[f"h.{layer}.attn.per_head"][head, at]))
        close(parts.attn_bias[layer], share(params.get(f"h.{layer}.attn.c_proj.bias", np.zeros(C))))
        close(parts.mlp[layer], share(truth[f"h.{layer}.mlp.out"][at]))
    constant = params.get("ln_f.bias", np.zeros(C)) @ column + bias[ANSWER]
    close(parts.constant, constant - (0 if wrong is None else bias[wrong]))
    logits = truth["logits"][at]
    close(parts.total, logits[ANSWER] - (0 if wrong is None else logits[wrong]))
    close(sum(parts.layers.values()), parts.total)
    assert list(parts.layers) == ["embed", "attn 0", "mlp 0", "attn 1", "mlp 1", "constant"]
    assert parts.by_head.values is parts.heads


@pytest.mark.parametrize("wrong", [None, WRONG])
def test_head_ablation(model, truth, wrong):
    zeroed = studies.head_ablation(model, CLEAN, ANSWER, wrong)
    averaged = studies.head_ablation(model, CLEAN, ANSWER, wrong, by="mean")
    config = model.config
    close(zeroed.baseline, measure(truth["logits"], wrong))
    assert averaged.baseline == zeroed.baseline
    for layer, head in np.ndindex(L, H):
        columns = slice(head * 12, (head + 1) * 12)
        params = dict(model.state_dict())
        name = f"h.{layer}.attn.c_proj"
        rows = params[f"{name}.weight"].astype(np.float64)
        lost = truth[f"h.{layer}.attn.heads"][head].mean(axis=0) @ rows[columns]
        rows[columns] = 0
        params[f"{name}.weight"] = rows
        close(zeroed.values[layer, head], measure(reference.forward(config, params, CLEAN), wrong))
        if config.bias:
            params[f"{name}.bias"] = params[f"{name}.bias"] + lost
            close(averaged.values[layer, head], measure(reference.forward(config, params, CLEAN), wrong))
    close(zeroed.effects.values, zeroed.values - zeroed.baseline)
    usual = np.stack([CLEAN, CLEAN])
    again = studies.head_ablation(model, CLEAN, ANSWER, wrong, by="mean", usual=usual)
    close(again.values, averaged.values)


def test_the_mean_over_texts_of_different_lengths(model):
    """Over all their positions alike: as if one had been cut in two where nothing is seen across."""
    texts = [OTHER[:1], OTHER[3:4], CLEAN[:2]]
    seen = [model.trace(text, "h.1.attn.heads")["h.1.attn.heads"] for text in texts]
    expected = np.concatenate(seen, axis=1).mean(axis=1)  # [H, D]
    found = studies.head_ablation(model, CLEAN, ANSWER, by="mean", usual=texts)
    for head in range(H):
        value = np.zeros((H, len(CLEAN), 12)) + expected[:, None]
        with model.edit({"h.1.attn.heads": replace(value, head=head)}):
            close(found.values[1, head], measure(model(CLEAN), None))


@pytest.mark.filterwarnings("error")
def test_prompts_that_measure_the_same_have_nothing_to_recover(model):
    assert np.isnan(studies.patching(model, CLEAN, CLEAN, ANSWER).recovered).all()


def patched(model, clean, place, layer, at):
    """The logits of OTHER with one part of `clean` (a reference trace) put in: block by block in NumPy."""
    config, params = model.config, model.state_dict()
    x = reference.trace(config, params, OTHER)["embed"]
    for i in range(L):
        own = _block_params(config, params, i)
        w = {name: (own[f"{name}.weight"], own.get(f"{name}.bias")) for name in
             ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}  # fmt: skip
        if place == "resid_pre" and i == layer:
            before = clean["embed"] if i == 0 else clean[f"h.{i - 1}.resid"]
            x = np.where(np.arange(12)[:, None] == at, before, x)
        inside = {}
        norm = reference.layernorm(x, own["ln_1.weight"], own.get("ln_1.bias", 0.0), config.layer_norm_eps)
        scale = _attention_scale(config, i)
        out = reference.attention(norm, *w["attn.c_attn"], *w["attn.c_proj"], H, scale, inside)
        if place == "heads" and i == layer:
            rows = own["attn.c_proj.weight"][at * 12 : (at + 1) * 12]
            out = out + (clean[f"h.{i}.attn.heads"][at] - inside["heads"][at]) @ rows
        if place == "attn.out" and i == layer:
            out = np.where(np.arange(12)[:, None] == at, clean[f"h.{i}.attn.out"], out)
        x = x + out
        norm = reference.layernorm(x, own["ln_2.weight"], own.get("ln_2.bias", 0.0), config.layer_norm_eps)
        out = reference.mlp(norm, *w["mlp.c_fc"], *w["mlp.c_proj"], config.activation)
        if place == "mlp.out" and i == layer:
            out = np.where(np.arange(12)[:, None] == at, clean[f"h.{i}.mlp.out"], out)
        x = x + out
    x = reference.layernorm(x, params["ln_f.weight"], params.get("ln_f.bias", 0.0), config.layer_norm_eps)
    return reference.linear(x, *_head(config, params))


@pytest.mark.parametrize("place", ["resid_pre", "attn.out", "mlp.out", "heads"])
@pytest.mark.parametrize("wrong", [None, WRONG])
def test_patching(model, truth, place, wrong):
    found = studies.patching(model, CLEAN, OTHER, ANSWER, wrong, place=place)
    other = reference.forward(model.config, model.state_dict(), OTHER)
    close(found.clean, measure(truth["logits"], wrong))
    close(found.corrupted, measure(other, wrong))
    assert found.values.shape == (L, H if place == "heads" else 12)
    for layer, at in np.ndindex(found.values.shape):
        close(found.values[layer, at], measure(patched(model, truth, place, layer, at), wrong))
    close(found.recovered, (found.values - found.corrupted) / (found.clean - found.corrupted))


def test_patching_where_one_token_differs(model):
    other = CLEAN.copy()
    other[4] = (other[4] + 1) % V
    found = studies.patching(model, CLEAN, other, ANSWER, WRONG).recovered
    assert found[0, 4] == 1  # all of it enters there, to the bit
    assert (np.delete(found[0], 4) == 0).all()
    assert (found[1, :4] == 0).all()


# ---- what it is about


def test_a_language_model_and_text(build):
    lm = gpt2cy.LanguageModel(build(256, 36, 3, 2, 120), ByteTokenizer())
    maps = studies.attention_maps(lm, "a $b\n")
    assert maps.labels == ["a", " ", "$", "b", "\n"]
    assert studies.attention_maps(lm, "é�").labels == [r"\xc3", r"\xa9", r"\xef", r"\xbf", r"\xbd"]
    same = studies.attention_maps(lm.model, [97, 32, 36, 98, 10])
    np.testing.assert_array_equal(maps.weights, same.weights)
    by_text = studies.direct_attribution(lm, "abc", answer="d", wrong="e").total
    assert by_text == studies.direct_attribution(lm.model, [97, 98, 99], 100, 101).total
    lens = studies.logit_lens(lm, "abc", answer="d", top=2)
    assert lens.answers.tolist() == [100] * 3
    label = bytes([lens.top_ids[0, 0, 0]]).decode("utf-8", "backslashreplace")
    assert lens.top_labels[0][0][0] == label
    assert studies.embedding_neighbours(lm, "a", k=2).ids.tolist() == (
        studies.embedding_neighbours(lm.model, 97, k=2).ids.tolist()
    )
    with pytest.raises(ValueError, match="^answer: expected a text of one token, got 'xy' of 2"):
        studies.direct_attribution(lm, "abc", answer="xy")


def test_bad_input_is_named(model):
    for bad in ("text", None, [1.5]):
        with pytest.raises(TypeError, match="^tokens: expected"):
            studies.attention_maps(model, bad)
    for bad in ([[1, 2]], [], [61], [0] * 121):
        with pytest.raises(ValueError, match="^tokens: "):
            studies.attention_spread(model, bad)
    for bad in (None, "gpt2", 3):
        with pytest.raises(TypeError, match="^model: expected a GPT or a LanguageModel"):
            studies.residual_norms(bad, [1])
    cases = [
        (lambda: studies.attention_maps(model, [1], layers=2), "layers: expected an integer from 0 to 1"),
        (lambda: studies.attention_maps(model, [1], heads=[]), "heads: expected at least one"),
        (lambda: studies.attention_maps(model, [1], heads=-1), "heads: expected an integer from 0 to 2"),
        (lambda: studies.induction_scores(model, length=61), "length: 122 tokens do not fit"),
        (lambda: studies.induction_scores(model, length=1), "length: expected an integer from 2 to 61"),
        (lambda: studies.induction_scores(model, length=61, first=1), "length: expected an integer from 2"),
        (lambda: studies.logit_lens(model, [1], top=62), "top: expected an integer from 1 to 61"),
        (lambda: studies.logit_lens(model, [1, 2], answer=[1]), "answer: expected an id, or one for each"),
        (lambda: studies.logit_lens(model, [1], answer=61), "answer: expected an integer from 0 to 60"),
        (lambda: studies.direct_attribution(model, [1], 1, 99), "wrong: expected an integer from 0 to 60"),
        (lambda: studies.direct_attribution(model, [1], 1, position=1), "position: expected an integer from"),
        (lambda: studies.head_ablation(model, [1], 1, by="half"), "by: expected one of 'zero', 'mean'"),
        (
            lambda: studies.head_ablation(model, [1], 1, usual=5),
            "usual: expected None with by='zero', got int",
        ),
        (
            lambda: studies.head_ablation(model, [1], 1, by="mean", usual=[[1], [2, 61]]),
            "usual[1]: id 61 at [1] is outside",
        ),
        (
            lambda: studies.head_ablation(model, [1], 1, by="mean", usual=[[61]]),
            "usual: id 61 at [0, 0] is outside",
        ),
        (lambda: studies.patching(model, [1], [1, 2], 1), "corrupted: expected 1 tokens, as many as clean"),
        (lambda: studies.patching(model, [1], [2], 1, place="resid"), "place: expected one of 'resid_pre'"),
        (lambda: studies.embedding_neighbours(model, [0.0] * 36), "token: expected a direction"),
        (lambda: studies.embedding_neighbours(model, [1.0] * 35), "token: expected shape"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError) as raised:
            call()
        assert str(raised.value).startswith(message)
    with pytest.raises(TypeError, match="^answer: expected an id, got str"):
        studies.direct_attribution(model, [1], "a")
