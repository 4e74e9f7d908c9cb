# SPDX-License-Identifier: Apache-2.0
"""GPT as a whole: against the reference at any shape, its parameters by name, its initial weights."""

import dataclasses
import gc
import itertools
import os
import tracemalloc

import formula
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpt2cy
from gpt2cy import reference

SIZES = (61, 12, 2, 3, 32)  # vocabulary, width, heads, layers, positions: no two equal
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}


def assert_agrees(model, tokens):
    logits = model(tokens)
    assert logits.dtype == np.float32
    assert logits.flags.writeable
    expected = reference.forward(model.config, model.state_dict(), tokens)
    np.testing.assert_allclose(logits, expected, **TOLERANCE)
    return np.abs(logits - expected).max()


configs = st.builds(
    lambda n_heads, head_dim, **fields: gpt2cy.GPTConfig(
        n_heads=n_heads, n_embd=n_heads * head_dim, **fields
    ),
    n_heads=st.integers(1, 4),
    head_dim=st.integers(3, 24),
    vocab_size=st.integers(1, 150),
    n_layers=st.integers(1, 3),
    block_size=st.integers(1, 100),
    n_inner=st.none() | st.integers(1, 80),
    activation=st.sampled_from(["gelu_tanh", "gelu_erf", "relu"]),
    layer_norm_eps=st.sampled_from([1e-5, 1e-3]),
    bias=st.booleans(),
    tie_weights=st.booleans(),
    lm_head_bias=st.none() | st.booleans(),
    scale_attn_weights=st.booleans(),
    scale_attn_by_inverse_layer_idx=st.booleans(),
)


@given(config=configs, data=st.data())
@settings(max_examples=60)
def test_any_configuration_agrees_with_the_reference(config, data):
    model = gpt2cy.GPT(config)
    model.load_state_dict(formula.weights(config))
    length = data.draw(st.integers(1, config.block_size))
    batch = data.draw(st.integers(0, 3))
    tokens = formula.tokens(config, max(batch, 1), length)
    assert_agrees(model, tokens if batch else tokens[0])


@pytest.mark.parametrize(
    "flags", [*itertools.product([False, True], repeat=5)], ids=lambda flags: "".join("01"[f] for f in flags)
)
def test_every_flag(build, flags):
    names = ("bias", "tie_weights", "lm_head_bias", "scale_attn_weights", "scale_attn_by_inverse_layer_idx")
    model = build(*SIZES, **dict(zip(names, flags, strict=True)))
    assert_agrees(model, formula.tokens(model.config, 2, 7))


@pytest.mark.parametrize("length", [1, 2, 13, 14, 15, 28, 29, 63, 64, 65, 127, 128, 129, 167, 168, 169, 200])
def test_lengths(build, length):
    model = build(97, 48, 3, 2, 200)
    assert_agrees(model, formula.tokens(model.config, 1, length))


@pytest.mark.parametrize("head_dim", [1, 256])
def test_head_widths(build, head_dim):
    model = build(61, 3 * head_dim if head_dim == 256 else 12, 3 if head_dim == 256 else 12, 2, 70)
    assert model.config.head_dim == head_dim
    assert_agrees(model, formula.tokens(model.config, 2, 70))


@pytest.mark.parametrize("preset", ["tiny", "small", "medium"])
def test_presets(preset):
    config = gpt2cy.GPTConfig.preset(preset)
    model = gpt2cy.GPT(config)
    model.load_state_dict(formula.weights(config))
    assert_agrees(model, formula.tokens(config, 1, config.block_size))


@given(lengths=st.lists(st.integers(1, 32), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_ragged_batches(build, lengths, seed):
    model = build(*SIZES)
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(0, 61, length) for length in lengths]
    results = model.forward_many(sequences)
    params = model.state_dict()
    for tokens, logits in zip(sequences, results, strict=True):
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, reference.forward(model.config, params, tokens), **TOLERANCE)


def test_shapes_of_results(build):
    model = build(*SIZES)
    assert model([1, 2, 3]).shape == model.forward([1, 2, 3]).shape == (3, 61)
    assert model([[1, 2, 3], [4, 5, 6]]).shape == (2, 3, 61)
    assert model([[1]]).shape == (1, 1, 61)
    assert model.next_logits([1, 2, 3]).shape == (61,)
    assert model.next_logits([[1, 2, 3], [4, 5, 6]]).shape == (2, 61)
    results = model.forward_many([[1, 2, 3], [4]])
    assert type(results) is list
    assert [logits.shape for logits in results] == [(3, 61), (1, 61)]
    assert [logits.shape for logits in model.forward_many(np.ones((2, 4), int))] == [(4, 61), (4, 61)]


def test_next_logits_are_the_last_of_forward(build):
    model = build(*SIZES)
    tokens = formula.tokens(model.config, 3, 20)
    np.testing.assert_array_equal(model.next_logits(tokens), model(tokens)[:, -1])
    np.testing.assert_array_equal(model.next_logits(tokens[0]), model(tokens[0])[-1])


@pytest.mark.parametrize(
    "form",
    [
        lambda ids: ids.astype(np.int32),
        lambda ids: ids.astype(">i8"),
        lambda ids: ids.tolist(),
        lambda ids: np.asfortranarray(ids),
        lambda ids: np.repeat(ids, 2, axis=-1)[..., ::2],
        lambda ids: ids[..., ::-1].copy()[..., ::-1],
        lambda ids: np.broadcast_to(ids, ids.shape),  # read-only
        lambda ids: np.array(ids, order="K", dtype=np.dtype("i8").newbyteorder("=")),
    ],
    ids=["int32", "big-endian", "list", "columns-first", "strided", "backwards", "read-only", "native"],
)
def test_ids_in_any_form(build, form):
    """int64 arrays get in by a way of their own, whatever their strides; logits are those of other forms."""
    model = build(*SIZES)
    for ids in formula.tokens(model.config, 3, 20), formula.tokens(model.config, 1, 30)[0]:
        given = form(ids)
        np.testing.assert_array_equal(model(given), model(ids))
        np.testing.assert_array_equal(model.next_logits(given), model.next_logits(ids))
        cache = model.new_cache(3 if ids.ndim == 2 else 1)
        model.next_logits(given, cache)
        np.testing.assert_array_equal(np.stack(cache.tokens), np.atleast_2d(ids))
    ids = formula.tokens(model.config, 3, 20)
    np.testing.assert_array_equal(model.next_logits_many(form(ids)), model.next_logits(ids))


def test_a_plain_call_asks_no_function_of_pythons(build, monkeypatch):
    """Each would take tens of microseconds when a pass has swept the caches; what is special still asks."""

    def refuse(*arguments):
        raise AssertionError("called")

    model = build(*SIZES)
    caches = [model.new_cache() for _ in range(4)]
    ids = formula.tokens(model.config, 3, 20)
    for name in ("token_array", "sequence_arrays", "length_fits", "flag", "integer"):
        monkeypatch.setattr(f"gpt2cy._checks.{name}", refuse)
    monkeypatch.setattr("gpt2cy.kernels.host.require_memory", refuse)
    model(ids), model.forward(ids[0]), model.next_logits(ids), model.next_logits(ids[0], caches[0])
    model.next_logits(np.array([5]), caches[0])
    model.next_logits_many(ids, caches[1:])
    assert [cache.lengths for cache in caches] == [[21], [20], [20], [20]]
    for call in (
        lambda: model(ids.astype(np.int32)),
        lambda: model(ids.tolist()),
        lambda: model([[1, 61]]),
        lambda: model(ids, check_finite=True),
        lambda: model(np.zeros(model.config.block_size + 1, int)),
        lambda: model.next_logits_many([ids[0], ids[1, :3]]),
    ):
        with pytest.raises(AssertionError, match="called"):
            call()


def test_next_logits_of_different_lengths(build):
    """Those of each sequence alone, where they are asked for; the others are read into their caches."""
    model = build(*SIZES)
    sequences = [[1, 2, 3], [4], range(30)]
    expected = np.stack([model.next_logits(ids) for ids in sequences])
    np.testing.assert_array_equal(model.next_logits_many(sequences), expected)
    rectangle = formula.tokens(model.config, 3, 20)
    np.testing.assert_array_equal(model.next_logits_many(rectangle), model.next_logits(rectangle))
    for wanted in range(4):
        caches = [model.new_cache() for _ in sequences]
        out = np.zeros((wanted, 61), np.float32)
        assert model.next_logits_many(sequences, caches, out=out) is out
        np.testing.assert_array_equal(out, expected[:wanted])
        assert [cache.tokens[0].tolist() for cache in caches] == [list(ids) for ids in sequences]
        matrix = np.zeros((wanted, 61), np.float32).view(np.matrix)  # never flat
        np.testing.assert_array_equal(model.next_logits_many(sequences, out=matrix), expected[:wanted])
        after = model.next_logits_many([[9], [8, 7], [6]], caches)
        whole = model.next_logits_many([[1, 2, 3, 9], [4, 8, 7], [*range(30), 6]])
        np.testing.assert_array_equal(after, whole)


@pytest.mark.parametrize("name", ["__call__", "forward", "next_logits"])
def test_logits_into_an_array_of_the_caller(build, name):
    """The same bits, everything written, nothing of their size allocated, and the cache has the ids."""
    model = build(*SIZES)
    call = getattr(model, name)
    for tokens in formula.tokens(model.config, 3, 20), formula.tokens(model.config, 1, 30)[0]:
        expected = call(tokens)
        out = np.full(expected.shape, np.nan, np.float32)
        assert call(tokens, out=out) is out
        np.testing.assert_array_equal(out, expected)
        cache = model.new_cache(1 if tokens.ndim == 1 else len(tokens))
        call(tokens, cache, check_finite=True, out=out)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(np.stack(cache.tokens), np.atleast_2d(tokens))
        cache = model.new_cache(cache.batch_size)
        assert call(tokens, cache, out=out) is out
        np.testing.assert_array_equal(np.stack(cache.tokens), np.atleast_2d(tokens))


def test_an_array_of_the_caller_spares_a_new_one(build):
    model = build(*SIZES)
    tokens = formula.tokens(model.config, 100, 30)
    out = np.empty((100, 30, 61), np.float32)
    model.forward(tokens, out=out)
    tracemalloc.start()
    try:
        model.forward(tokens, out=out)
        spared = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        model.forward(tokens)
        assert spared < out.nbytes / 4 and tracemalloc.get_traced_memory()[1] > out.nbytes
    finally:
        tracemalloc.stop()


def test_results_own_their_memory(build):
    model = build(*SIZES)
    first = model([1, 2, 3])
    kept = first.copy()
    model([7, 8, 9])
    np.testing.assert_array_equal(first, kept)
    first[:] = 0.0
    np.testing.assert_array_equal(model([1, 2, 3]), kept)


def test_sublayers_outlive_the_model(build):
    model = build(*SIZES)
    block, head = model.blocks[1], model.lm_head
    weight = block.mlp.c_fc.weight
    del model
    gc.collect()
    np.testing.assert_array_equal(block.mlp.c_fc.weight, weight)
    assert np.isfinite(head(block(np.ones((4, 12))))).all()


def test_attributes(build):
    model = build(*SIZES)
    assert model.config == gpt2cy.GPTConfig(*SIZES)
    assert (model.wte.num_embeddings, model.wpe.num_embeddings) == (61, 32)
    assert type(model.blocks) is tuple
    assert [block.layer_idx for block in model.blocks] == [0, 1, 2]
    assert model.ln_f.n_embd == 12
    assert model.lm_head.weight.shape == (12, 61)
    assert "3 layers" in repr(model)
    assert f"{model.config.n_params:,}" in repr(model)
    for name in ("config", "wte", "wpe", "blocks", "ln_f", "lm_head"):
        with pytest.raises(AttributeError):
            setattr(model, name, getattr(model, name))


# ---- parameters by name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_names_and_shapes(build, tied, bias):
    model = build(*SIZES, tie_weights=tied, bias=bias)
    named = list(model.named_parameters())
    assert {name: array.shape for name, array in named} == model.config.parameter_shapes()
    assert [name for name, _ in named] == list(model.config.parameter_shapes())
    assert sum(array.size for _, array in named) == model.config.n_params
    for _, array in named:
        assert array.dtype == np.float32
        assert not array.flags.writeable
    assert list(model.state_dict()) == [name for name, _ in named]


@pytest.mark.parametrize("tied", [False, True])
def test_round_trip(build, tied):
    model = build(*SIZES, tie_weights=tied)
    params = formula.weights(model.config)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, params[name], err_msg=name)
    other = gpt2cy.GPT(model.config)
    other.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(other([1, 2, 3]), model([1, 2, 3]))


def test_parameters_are_those_of_the_layers(build):
    model = build(*SIZES)
    params = model.state_dict()
    np.testing.assert_array_equal(model.wte.weight, params["wte.weight"])
    np.testing.assert_array_equal(model.blocks[2].attn.c_attn.weight, params["h.2.attn.c_attn.weight"])
    np.testing.assert_array_equal(model.blocks[1].ln_2.beta, params["h.1.ln_2.bias"])
    np.testing.assert_array_equal(model.lm_head.weight, params["lm_head.weight"].T)


def test_loading_takes_any_form(form):
    config = gpt2cy.GPTConfig(61, 12, 2, 1, 32)
    params = {name: np.round(8 * array) / 8 for name, array in formula.weights(config).items()}
    model, same = gpt2cy.GPT(config), gpt2cy.GPT(config)
    model.load_state_dict(params)
    same.load_state_dict({name: form(array) for name, array in params.items()})
    np.testing.assert_array_equal(same([1, 2, 3]), model([1, 2, 3]))


def test_each_weight_changes_the_next_forward(build):
    model = build(*SIZES)
    before = model([5, 6, 7])
    params = model.state_dict()
    for name, array in params.items():
        model.load_state_dict(params | {name: array + np.float32(0.1)})
        assert (model([5, 6, 7]) != before).any(), name
    model.load_state_dict(params)
    np.testing.assert_array_equal(model([5, 6, 7]), before)


def test_one_error_lists_every_problem(build):
    model = build(*SIZES)
    before = model.state_dict()
    bad = dict(before) | {"h.0.attn.c_atn.bias": np.ones(36), "wpe.weight": np.ones((12, 32))}
    bad |= {"ln_f.bias": np.ones(12, int), "h.1.ln_1.weight": None, 5: np.ones(3)}
    del bad["h.0.attn.c_attn.bias"], bad["h.2.mlp.c_fc.weight"]
    with pytest.raises(ValueError) as caught:
        model.load_state_dict(bad)
    for part in (
        "missing: h.0.attn.c_attn.bias [36]",
        "missing: h.2.mlp.c_fc.weight [12, 48]",
        "unexpected: h.0.attn.c_atn.bias",
        "unexpected: 5",
        "wpe.weight: expected shape [32, 12], got shape [12, 32]",
        "ln_f.bias: expected floating-point",
        "h.1.ln_1.weight: expected",
    ):
        assert part in str(caught.value)
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("name", gpt2cy.GPTConfig(61, 12, 2, 1, 32).parameter_shapes())
def test_each_missing_name_is_named(build, name):
    model = build(61, 12, 2, 1, 32)
    params = model.state_dict()
    del params[name]
    with pytest.raises(ValueError) as caught:
        model.load_state_dict(params)
    assert str(caught.value).count("missing: ") == 1
    assert f"missing: {name} " in str(caught.value)


def test_a_prefix_is_explained(build):
    model = build(*SIZES)
    with pytest.raises(ValueError, match=r"no 'transformer.' prefix"):
        model.load_state_dict({f"transformer.{name}": array for name, array in model.state_dict().items()})


@pytest.mark.parametrize("mapping", [None, 5, "text", [1, 2], object()])
def test_what_is_not_a_mapping(build, mapping):
    with pytest.raises(TypeError, match=r"^mapping: expected"):
        build(*SIZES).load_state_dict(mapping)


# ---- tied weights


def test_tied_weights_change_through_either_door(build):
    model = build(*SIZES, tie_weights=True)
    assert "lm_head.weight" not in model.state_dict()
    np.testing.assert_array_equal(model.lm_head.weight, model.wte.weight.T)
    for layer, shape in ((model.wte, (61, 12)), (model.lm_head, (12, 61))):
        before = model([1, 2])
        layer.weight = np.random.default_rng(shape).standard_normal(shape)
        np.testing.assert_array_equal(model.lm_head.weight, model.wte.weight.T)
        np.testing.assert_array_equal(model.wte([60, 0, 31, 32]), model.wte.weight[[60, 0, 31, 32]])
        assert (model([1, 2]) != before).any()
        assert_agrees(model, [1, 2])


def test_a_tied_head_may_be_given_if_it_is_equal(build):
    model = build(*SIZES, tie_weights=True)
    params = model.state_dict()
    model.load_state_dict(params | {"lm_head.weight": params["wte.weight"]})
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from wte\.weight"):
        model.load_state_dict(params | {"lm_head.weight": params["wte.weight"] + 1})


def test_untied_weights_are_apart(build):
    model = build(*SIZES)
    head = model.lm_head.weight
    model.wte.weight = np.zeros((61, 12))
    np.testing.assert_array_equal(model.lm_head.weight, head)


# ---- initial weights


def test_seeds():
    config = gpt2cy.GPTConfig(*SIZES)
    one, same, other, free = (gpt2cy.GPT(config, seed=seed).state_dict() for seed in (1, 1, 2, None))
    for name, array in one.items():
        np.testing.assert_array_equal(array, same[name])
        drawn = name.endswith("weight") and "ln_" not in name
        assert (array != other[name]).any() == drawn
        assert (array != free[name]).any() == drawn


def test_global_random_state_is_untouched():
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    gpt2cy.GPT(gpt2cy.GPTConfig(*SIZES))
    gpt2cy.GPT(gpt2cy.GPTConfig(*SIZES), seed=5)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("std", [0.02, 0.5, 0.0])
@pytest.mark.parametrize("tied", [False, True])
def test_initial_statistics(std, tied):
    config = gpt2cy.GPTConfig.preset("tiny", tie_weights=tied)
    seen = set()
    for name, array in gpt2cy.GPT(config, seed=0, init_std=std).state_dict().items():
        if name.endswith("bias"):
            assert not array.any()
        elif "ln_" in name:
            assert (array == 1).all()
        else:
            assert abs(array.std() - std) <= 4 * std / np.sqrt(2 * array.size)
            assert abs(array.mean()) <= 4 * std / np.sqrt(array.size)
            if std:
                assert array[0, 0] not in seen  # each matrix is drawn anew
                seen.add(array[0, 0])


def test_config_is_kept_and_stays_frozen(build):
    model = build(*SIZES)
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.config.vocab_size = 10**6


# ---- sizes and numbers at the edge


@pytest.mark.slow
def test_more_logits_than_32_bits_count(build):
    """NUM-06: B T V just over 2**31; 8.6 GB."""
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 12e9:
        pytest.skip("needs 12 GB of free memory")
    model = build(50257, 4, 2, 1, 1024)
    tokens = formula.tokens(model.config, 42, 1024)
    logits = model(tokens)
    assert logits.size > 2**31
    for row in (0, 20, 41):
        np.testing.assert_array_equal(logits[row], model(tokens[row]))
