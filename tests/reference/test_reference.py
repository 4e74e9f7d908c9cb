# SPDX-License-Identifier: Apache-2.0
"""Checks of the float64 reference itself, against numbers worked out by hand and against known properties."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest

from gpt2cy import reference

# The sizes of the random model: no two are equal.
V, P, C, H, L, F = 61, 29, 12, 2, 3, 20


@pytest.fixture
def rng():
    return np.random.default_rng(2019)


def make_config(**changes):
    config = {
        "vocab_size": V,
        "n_embd": C,
        "n_heads": H,
        "n_layers": L,
        "block_size": P,
        "n_inner": F,
        "activation": "gelu_tanh",
        "layer_norm_eps": 1e-5,
        "bias": True,
        "tie_weights": False,
        "lm_head_bias": None,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    }
    return SimpleNamespace(**config | changes)


@pytest.fixture
def params(rng):
    """Random weights of an untied model with all biases."""
    shapes = {"wte": (V, C), "wpe": (P, C), "ln_f": (C,)}
    for layer in range(L):
        shapes |= {
            f"h.{layer}.ln_1": (C,),
            f"h.{layer}.attn.c_attn": (C, 3 * C),
            f"h.{layer}.attn.c_proj": (C, C),
            f"h.{layer}.ln_2": (C,),
            f"h.{layer}.mlp.c_fc": (C, F),
            f"h.{layer}.mlp.c_proj": (F, C),
        }
    made = {f"{name}.weight": rng.normal(0.0, 0.3, shape) for name, shape in shapes.items()}
    for name in list(shapes)[2:]:
        made[f"{name}.bias"] = rng.normal(0.0, 0.3, shapes[name][-1])
    return made | {"lm_head.weight": rng.normal(0.0, 0.3, (V, C)), "lm_head.bias": rng.normal(0.0, 0.3, V)}


def attention_weights(rng, width):
    """Random c_attn and c_proj, each a weight and a bias, in the order of ``attention``'s arguments."""
    shapes = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    return [rng.normal(size=shape) for shape in shapes]


# Functions


def test_embedding_picks_rows(rng):
    weight = rng.normal(size=(7, 3))
    ids = [[6, 0], [3, 3]]
    assert np.array_equal(reference.embedding(ids, weight), weight[ids])


@pytest.mark.parametrize("wrong", [-1, 7, 2**40])
def test_embedding_refuses_ids_without_a_row(wrong):
    with pytest.raises(ValueError, match=f"{wrong} is outside a table of 7 rows"):
        reference.embedding([0, wrong], np.zeros((7, 3)))


def test_linear_by_hand():
    weight = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    expected = [[9.0 + 10, 12.0 + 20, 15.0 + 30], [-3.0 + 10, -3.0 + 20, -3.0 + 30]]
    assert np.array_equal(reference.linear([[1.0, 2.0], [1.0, -1.0]], weight, [10.0, 20.0, 30.0]), expected)


def test_linear_without_bias_keeps_leading_dimensions(rng):
    x, weight = rng.normal(size=(2, 5, 4, 3)), rng.normal(size=(3, 7))
    y = reference.linear(x, weight)
    assert y.shape == (2, 5, 4, 7)
    np.testing.assert_allclose(y[1, 2, 3], [math.fsum(x[1, 2, 3] * column) for column in weight.T])


def test_layernorm_by_hand():
    # mean 4, variance ((-3)^2 + (-1)^2 + 1^2 + 3^2) / 4 = 5; with eps 4 the root is 3.
    y = reference.layernorm([1.0, 3.0, 5.0, 7.0], [3.0, 3.0, 6.0, 3.0], [0.0, 0.0, 0.0, 1.0], eps=4.0)
    np.testing.assert_allclose(y, [-3.0, -1.0, 2.0, 4.0], rtol=1e-15)


def test_layernorm_gives_mean_0_and_variance_1(rng):
    x = rng.normal(100.0, 5.0, size=(4, 3, 50))
    y = reference.layernorm(x, np.ones(50), np.zeros(50), eps=0.0)
    np.testing.assert_allclose(y.mean(axis=-1), 0.0, atol=1e-12)
    np.testing.assert_allclose(y.var(axis=-1), 1.0, rtol=1e-12)


def test_layernorm_of_a_constant_row_is_beta():
    assert np.array_equal(reference.layernorm([7.0, 7.0], [2.0, 2.0], [3.0, 4.0], eps=1e-5), [3.0, 4.0])


def test_gelu_erf_is_x_times_the_normal_distribution():
    x = np.linspace(-9.0, 9.0, 181)
    expected = [value * 0.5 * math.erfc(-value / math.sqrt(2.0)) for value in x]
    np.testing.assert_allclose(reference.gelu_erf(x), expected, rtol=1e-12, atol=1e-15)


def test_gelu_tanh_by_math():
    x = np.linspace(-9.0, 9.0, 181)
    expected = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x]
    np.testing.assert_allclose(reference.gelu_tanh(x), expected, rtol=1e-12, atol=1e-15)


def test_the_two_gelus_differ_by_less_than_5e_4():
    x = np.linspace(-9.0, 9.0, 1801)
    difference = np.abs(reference.gelu_tanh(x) - reference.gelu_erf(x)).max()
    assert 4e-4 < difference < 5e-4


@pytest.mark.parametrize("gelu", [reference.gelu_tanh, reference.gelu_erf])
def test_gelu_of_large_numbers(gelu):
    assert np.array_equal(gelu([-50.0, 0.0, 50.0]), [0.0, 0.0, 50.0])


@pytest.mark.parametrize("gelu", [reference.gelu_tanh, reference.gelu_erf])
def test_gelu_minus_its_mirror_image_is_x(gelu):
    x = np.linspace(0.0, 9.0, 91)
    np.testing.assert_allclose(gelu(x) + gelu(-x) + x, 2.0 * gelu(x), rtol=1e-12)


def test_relu():
    assert np.array_equal(reference.relu([[-2.0, 0.0, 3.0]]), [[0.0, 0.0, 3.0]])


def test_softmax_rows_sum_to_1(rng):
    y = reference.softmax(rng.normal(0.0, 30.0, size=(3, 4, 9)))
    np.testing.assert_allclose(y.sum(axis=-1), 1.0, rtol=1e-15)
    assert (y >= 0.0).all()


def test_softmax_by_hand():
    np.testing.assert_allclose(reference.softmax(np.log([1.0, 2.0, 5.0])), [0.125, 0.25, 0.625], rtol=1e-15)


def test_softmax_ignores_a_shift(rng):
    x = rng.normal(size=(2, 7))
    np.testing.assert_allclose(reference.softmax(x + 1e4), reference.softmax(x), rtol=1e-11)


def test_softmax_of_minus_infinity_is_0():
    assert np.array_equal(reference.softmax([-np.inf, 3.0, -np.inf]), [0.0, 1.0, 0.0])


# Layers


def test_attention_by_hand():
    # One head of width 1; q = x, k = x, v = 2 x; x = [1, ln 3]. The second query weighs the two keys as
    # exp(ln 3 * 1) = 3 to exp(ln 3 * ln 3) = 3 ** ln 3.
    a = math.log(3.0)
    first, second = 3.0, 3.0**a
    expected = [2.0, (first * 2.0 + second * 2.0 * a) / (first + second)]
    y = reference.attention([[1.0], [a]], [[1.0, 1.0, 2.0]], None, [[1.0]], None, n_heads=1, scale=1.0)
    np.testing.assert_allclose(y[:, 0], expected, rtol=1e-14)


def test_attention_as_loops(rng):
    T, width, n_heads, scale = 5, 6, 3, 0.7
    head_dim = width // n_heads
    x = rng.normal(size=(T, width))
    c_attn, c_attn_bias, c_proj, c_proj_bias = attention_weights(rng, width)
    qkv = x @ c_attn + c_attn_bias
    heads = np.zeros((T, width))
    for head in range(n_heads):
        q, k, v = (qkv[:, part * width + head * head_dim :][:, :head_dim] for part in range(3))
        for query in range(T):
            powers = [math.exp(scale * sum(q[query] * k[key])) for key in range(query + 1)]
            for key, power in enumerate(powers):
                heads[query, head * head_dim :][:head_dim] += power / sum(powers) * v[key]
    expected = heads @ c_proj + c_proj_bias
    y = reference.attention(x, c_attn, c_attn_bias, c_proj, c_proj_bias, n_heads, scale)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_attention_never_looks_ahead(rng):
    x = rng.normal(size=(7, 6))
    weights = attention_weights(rng, 6)
    before = reference.attention(x, *weights, n_heads=2, scale=1.0)
    x[4:] += 1e3
    after = reference.attention(x, *weights, n_heads=2, scale=1.0)
    assert np.array_equal(after[:4], before[:4])
    assert (after[4:] != before[4:]).all()


def test_attention_takes_batches(rng):
    x = rng.normal(size=(2, 3, 5, 6))
    weights = attention_weights(rng, 6)
    y = reference.attention(x, *weights, n_heads=3, scale=0.5)
    assert y.shape == x.shape
    np.testing.assert_allclose(
        y[1, 2], reference.attention(x[1, 2], *weights, n_heads=3, scale=0.5), rtol=1e-12
    )


def test_attention_does_not_feel_a_bias_on_the_keys(rng):
    # q . (k + b) adds the same q . b to all scores of a query, and softmax ignores a shift.
    x = rng.normal(size=(5, 6))
    c_attn, c_attn_bias, *c_proj = attention_weights(rng, 6)
    shifted = c_attn_bias.copy()
    shifted[6:12] += 1.0
    y = reference.attention(x, c_attn, c_attn_bias, *c_proj, n_heads=2, scale=1.0)
    np.testing.assert_allclose(
        reference.attention(x, c_attn, shifted, *c_proj, n_heads=2, scale=1.0), y, rtol=1e-10
    )


@pytest.mark.parametrize(
    ("activation", "function"),
    [("gelu_tanh", reference.gelu_tanh), ("gelu_erf", reference.gelu_erf), ("relu", reference.relu)],
)
def test_mlp(rng, activation, function):
    x, w1, b1, w2, b2 = (rng.normal(size=shape) for shape in [(4, 3), (3, 8), (8,), (8, 3), (3,)])
    expected = function(x @ w1 + b1) @ w2 + b2
    np.testing.assert_allclose(reference.mlp(x, w1, b1, w2, b2, activation), expected, rtol=1e-12)


def test_mlp_uses_the_tanh_form_unless_told():
    assert reference.mlp([1.0], [[1.0]], None, [[1.0]], None) == reference.gelu_tanh(1.0)


def test_block_without_biases_equals_biases_of_0(rng):
    shapes = {
        "ln_1": (4,),
        "attn.c_attn": (4, 12),
        "attn.c_proj": (4, 4),
        "ln_2": (4,),
        "mlp.c_fc": (4, 16),
        "mlp.c_proj": (16, 4),
    }
    bare = {f"{name}.weight": rng.normal(size=shape) for name, shape in shapes.items()}
    zeros = {f"{name}.bias": np.zeros(shape[-1]) for name, shape in shapes.items()}
    x = rng.normal(size=(5, 4))
    np.testing.assert_array_equal(reference.block(x, bare, 2, 0.5), reference.block(x, bare | zeros, 2, 0.5))


# Model


def test_forward_by_hand():
    # Width 2, no blocks: layer norm turns any row [a, b] with a > b into [1, -1].
    config = make_config(vocab_size=2, n_embd=2, n_layers=0, layer_norm_eps=0.0)
    params = {
        "wte.weight": [[5.0, 0.0], [0.0, 5.0]],
        "wpe.weight": [[0.0, 0.0], [0.0, 9.0]],
        "ln_f.weight": [2.0, 3.0],
        "ln_f.bias": [1.0, 1.0],
        "lm_head.weight": [[1.0, 0.0], [1.0, 10.0]],
        "lm_head.bias": [0.0, 100.0],
    }
    # Position 0, id 0: [5, 0] -> [1, -1] -> [3, -2]; position 1, id 0: [5, 9] -> [-1, 1] -> [-1, 4].
    expected = [[3.0, 3.0 - 20.0 + 100.0], [-1.0, -1.0 + 40.0 + 100.0]]
    np.testing.assert_allclose(reference.forward(config, params, [0, 0]), expected, rtol=1e-14)


def test_forward_shapes(params):
    tokens = np.arange(14).reshape(2, 7)
    logits = reference.forward(make_config(), params, tokens)
    assert logits.dtype == np.float64
    assert logits.shape == (2, 7, V)
    assert reference.forward(make_config(), params, tokens[1]).shape == (7, V)
    np.testing.assert_allclose(reference.forward(make_config(), params, tokens[1]), logits[1], rtol=1e-9)


def test_forward_never_looks_ahead(params):
    tokens = np.arange(P)
    before = reference.forward(make_config(), params, tokens)
    tokens[11:] = 60
    after = reference.forward(make_config(), params, tokens)
    assert np.array_equal(after[:11], before[:11])
    assert (after[11:] != before[11:]).any(axis=-1).all()


def test_a_prefix_gives_the_first_logits(params):
    tokens = np.arange(P)
    whole = reference.forward(make_config(), params, tokens)
    np.testing.assert_allclose(reference.forward(make_config(), params, tokens[:5]), whole[:5], rtol=1e-9)


def test_a_tied_head_is_the_embedding(params):
    tied = make_config(tie_weights=True, lm_head_bias=False)
    untied = make_config(lm_head_bias=False)
    tokens = [3, 1, 4, 1, 5]
    np.testing.assert_array_equal(
        reference.forward(tied, params, tokens),
        reference.forward(untied, params | {"lm_head.weight": params["wte.weight"]}, tokens),
    )


@pytest.mark.parametrize(
    ("changes", "has_bias"),
    [
        ({}, True),
        ({"tie_weights": True}, False),
        ({"bias": False}, False),
        ({"lm_head_bias": False}, False),
        ({"bias": False, "lm_head_bias": True}, True),
        ({"tie_weights": True, "lm_head_bias": True}, True),
    ],
)
def test_when_the_head_has_a_bias(params, changes, has_bias):
    config = make_config(**changes)
    raised = params | {"lm_head.bias": params["lm_head.bias"] + 1.0}
    difference = reference.forward(config, raised, [3, 1, 4]) - reference.forward(config, params, [3, 1, 4])
    np.testing.assert_allclose(difference, float(has_bias), atol=1e-12)


def test_bias_false_uses_no_linear_bias(params):
    norms_only = {
        name: values for name, values in params.items() if not name.endswith(".bias") or ".ln_" in f".{name}"
    }
    config = make_config(bias=False)
    np.testing.assert_array_equal(
        reference.forward(config, params, [3, 1, 4]), reference.forward(config, norms_only, [3, 1, 4])
    )


def test_an_absent_layernorm_bias_is_0(params):
    betas = [name for name in params if name.endswith(".bias") and ".ln_" in f".{name}"]
    zeros = params | {name: np.zeros(C) for name in betas}
    absent = {name: values for name, values in params.items() if name not in betas}
    config = make_config(bias=False)
    np.testing.assert_array_equal(
        reference.forward(config, absent, [3, 1, 4]), reference.forward(config, zeros, [3, 1, 4])
    )


@pytest.mark.parametrize(
    "name", ["wte.weight", "h.1.attn.c_proj.bias", "h.2.mlp.c_fc.weight", "lm_head.bias"]
)
def test_a_missing_weight_is_a_key_error(params, name):
    del params[name]
    with pytest.raises(KeyError, match=name):
        reference.forward(make_config(), params, [3, 1, 4])


@pytest.mark.parametrize(
    "changes", [{}, {"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}]
)
def test_attention_scale(params, changes):
    # Scaling the scores of a layer is scaling its queries.
    config = make_config(**changes)
    flat = make_config(scale_attn_weights=False)
    scaled = dict(params)
    for layer in range(L):
        factor = math.sqrt(H / C) if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            factor /= layer + 1
        for kind in ("weight", "bias"):
            c_attn = params[f"h.{layer}.attn.c_attn.{kind}"].copy()
            c_attn[..., :C] *= factor
            scaled[f"h.{layer}.attn.c_attn.{kind}"] = c_attn
    tokens = [3, 1, 4, 1, 5]
    np.testing.assert_allclose(
        reference.forward(config, params, tokens), reference.forward(flat, scaled, tokens), rtol=1e-9
    )


def test_forward_refuses_more_positions_than_it_has(params):
    with pytest.raises(ValueError, match=f"{P} is outside a table of {P} rows"):
        reference.forward(make_config(), params, np.zeros(P + 1, int))


def test_trace_shows_each_stage(params):
    config = make_config()
    steps = reference.trace(config, params, [3, 1, 4])
    stages = [name for name in steps if not name.startswith("h.") or name.endswith(".resid")]
    assert stages == ["embed", "h.0.resid", "h.1.resid", "h.2.resid", "ln_f", "logits"]
    np.testing.assert_array_equal(steps["embed"], params["wte.weight"][[3, 1, 4]] + params["wpe.weight"][:3])
    own = {name.removeprefix("h.1."): values for name, values in params.items() if name.startswith("h.1.")}
    expected = reference.block(steps["h.0.resid"], own, H, math.sqrt(H / C))
    np.testing.assert_allclose(steps["h.1.resid"], expected, rtol=1e-12)
    np.testing.assert_array_equal(steps["logits"], reference.forward(config, params, [3, 1, 4]))


def test_trace_shows_what_lies_within_a_block(params):
    config = make_config()
    steps = reference.trace(config, params, [3, 1, 4])
    near = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14)
    at, mlp = "h.1.attn", "h.1.mlp"
    w = {name.removeprefix("h.1."): np.asarray(value, float) for name, value in params.items()}
    qkv = steps["h.1.ln_1"] @ w["attn.c_attn.weight"] + w["attn.c_attn.bias"]
    for part, name in enumerate("qkv"):
        for head in range(H):
            columns = slice(part * C + head * C // H, part * C + (head + 1) * C // H)
            near(steps[f"{at}.{name}"][head], qkv[:, columns])
    for head in range(H):
        q, k, v = (steps[f"{at}.{name}"][head] for name in "qkv")
        scores, weights = steps[f"{at}.scores"][head], steps[f"{at}.weights"][head]
        for query in range(3):
            assert np.isneginf(scores[query, query + 1 :]).all()
            near(scores[query, : query + 1], k[: query + 1] @ q[query] * math.sqrt(H / C))
            powers = np.exp(scores[query])
            near(weights[query], powers / powers.sum())
        near(steps[f"{at}.heads"][head], weights @ v)
        rows = w["attn.c_proj.weight"][head * C // H : (head + 1) * C // H]
        near(steps[f"{at}.per_head"][head], weights @ v @ rows)
    near(steps[f"{at}.out"], steps[f"{at}.per_head"].sum(0) + w["attn.c_proj.bias"])
    near(steps["h.1.resid_mid"], steps["h.0.resid"] + steps[f"{at}.out"])
    near(steps[f"{mlp}.pre"], steps["h.1.ln_2"] @ w["mlp.c_fc.weight"] + w["mlp.c_fc.bias"])
    near(steps[f"{mlp}.hidden"], reference.gelu_tanh(steps[f"{mlp}.pre"]))
    near(steps["h.1.resid"], steps["h.1.resid_mid"] + steps[f"{mlp}.out"])


def test_forward_does_not_change_its_arguments(params):
    copies = {name: values.copy() for name, values in params.items()}
    tokens = np.array([3, 1, 4])
    reference.forward(make_config(), params, tokens)
    assert np.array_equal(tokens, [3, 1, 4])
    assert all(np.array_equal(params[name], copy) for name, copy in copies.items())


def test_token_probabilities_by_hand():
    logits = np.log([8.0, 1.0, 4.0, 2.0, 1.0])
    for settings, expected in [
        ({}, [8, 1, 4, 2, 1]),
        ({"temperature": 0.5}, [64, 1, 16, 4, 1]),
        ({"top_k": 4}, [8, 1, 4, 2, 0]),
        ({"top_k": 9}, [8, 1, 4, 2, 1]),
        ({"top_p": 0.5}, [8, 0, 0, 0, 0]),
        ({"top_p": 0.500001}, [8, 0, 4, 0, 0]),
        ({"top_p": 0.0}, [8, 0, 0, 0, 0]),
        ({"top_p": 1.0}, [8, 1, 4, 2, 1]),
        ({"top_k": 2, "top_p": 0.7}, [8, 0, 4, 0, 0]),  # 8 of 12 are less than 0.7, though not 8 of 16
        ({"min_p": 0.25}, [8, 0, 4, 2, 0]),
        ({"typical_p": 0.1}, [0, 0, 4, 0, 0]),  # surprises 1, 4, 2, 3, 4 bits; their mean is 1.875
        ({"typical_p": 0.3}, [8, 0, 4, 0, 0]),
    ]:
        found = reference.token_probabilities(logits, **settings)
        np.testing.assert_allclose(found, np.array(expected) / sum(expected), rtol=1e-12)
