# SPDX-License-Identifier: Apache-2.0
"""The same bits everywhere: logits depend on the weights and on the tokens before, and on nothing else.

Every comparison is exact. The base instruction set has no fused multiply-add: it keeps every promise but
equality with the others.
"""

import contextlib
import ctypes
import hashlib
import platform
import sys
import threading

import formula
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpt2cy
from gpt2cy.kernels import dispatch

CONFIG = gpt2cy.GPTConfig(61, 20, 5, 2, 150, layer_norm_eps=0.1)
WIDE = gpt2cy.GPTConfig(61, 64, 2, 2, 150, layer_norm_eps=0.1)  # heads of whole panels put keys in on the way
GOLDEN = "c50fd80c8defbccf60b8d9060e2e59db223e26fa1d8d82a544d866c8b6eb8711"


def make(config=CONFIG, weights=None):
    model = gpt2cy.GPT(config)
    model.load_state_dict(weights or formula.weights(config))
    return model


@pytest.fixture(scope="module", params=[CONFIG, WIDE], ids=["narrow", "wide"])
def model(request):
    return make(request.param)


@pytest.fixture(scope="module")
def tokens():
    return formula.tokens(CONFIG, 4, 150)


# ---- a golden hash


def digest(*arrays):
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in dispatch.available() if dispatch.fused(name)])
def test_golden_hash(name, n_threads):
    """Pinned: a change of a bit on any instruction set shows, and needs a new numerics_version."""
    dispatch.use(name)
    gpt2cy.set_num_threads(n_threads)
    logits = []
    for options in (
        {},
        {"activation": "gelu_erf", "tie_weights": True},
        {"activation": "relu", "bias": False},
    ):
        config = gpt2cy.GPTConfig(61, 48, 3, 2, 100, **options)
        logits.append(make(config)(formula.tokens(config, 2, 100)))
    assert np.isfinite(logits).all()
    assert dispatch.numerics_version() == 1
    assert digest(*logits) == GOLDEN


# ---- batches


def test_batch_size_and_neighbours(isa, model, tokens, same_bits):
    dispatch.use(isa)
    alone = [model(row) for row in tokens]
    for size in (1, 2, 3, 4):
        for logits, expected in zip(model(tokens[:size]), alone, strict=False):
            same_bits(logits, expected)
    order = [2, 0, 3, 1]
    for logits, i in zip(model(tokens[order]), order, strict=True):
        same_bits(logits, alone[i])
    same_bits(model.next_logits(tokens), np.stack(alone)[:, -1])


@given(lengths=st.lists(st.integers(1, 150), min_size=1, max_size=7), data=st.data())
@settings(max_examples=12)
def test_ragged_neighbours(isa, model, tokens, same_bits, lengths, data):
    """RAGGED-01: lengths from 1 to the longest beside one another, in any order, with any text."""
    dispatch.use(isa)
    rows = [data.draw(st.integers(0, 3)) for _ in lengths]
    results = model.forward_many([tokens[row, :length] for row, length in zip(rows, lengths, strict=True)])
    for row, length, logits in zip(rows, lengths, results, strict=True):
        same_bits(logits, model(tokens[row, :length]))


def test_every_token_is_real(model, tokens, same_bits):
    """RAGGED-02: no id is padding."""
    for pad in (0, 60):
        padded = np.full((1, 20), pad)
        padded[0, :12] = tokens[0, :12]
        same_bits(model(padded)[0], model(padded[0]))
        assert (model(padded)[0, 12:] != model(np.where(padded == pad, 7, padded))[0, 12:]).any()


# ---- prefixes, pieces, caches


def test_later_tokens_do_not_matter(isa, model, tokens, same_bits):
    dispatch.use(isa)
    whole = model(tokens[0])
    for length in range(1, 150, 9 if isa == "ref" else 1):
        same_bits(model(tokens[0, :length]), whole[:length])
    other = tokens[0].copy()
    other[70:] = tokens[1, 70:]
    same_bits(model(other)[:70], whole[:70])


def test_a_cut_at_every_position(isa, model, tokens, same_bits):
    dispatch.use(isa)
    row = tokens[0, :135]
    whole = model(row)
    cache = model.new_cache()
    for cut in range(1, 135, 9 if isa == "ref" else 1):
        cache.reset()
        same_bits(model(row[:cut], cache), whole[:cut])
        same_bits(model(row[cut:], cache), whole[cut:])


def test_token_by_token(isa, model, tokens, same_bits):
    dispatch.use(isa)
    whole = model(tokens)
    cache = model.new_cache(4)
    for position in range(150):
        same_bits(model.next_logits(tokens[:, position : position + 1], cache), whole[:, position])


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_steps_of_many_sequences(isa, same_bits, n_threads):
    """Up to a tile's rows each, and more, some across a block's end: keys are there before they are read."""
    dispatch.use(isa)
    gpt2cy.set_num_threads(n_threads)
    config = gpt2cy.GPTConfig(61, 256, 4, 2, 100)
    model = make(config)
    tokens = formula.tokens(config, 12, 100)
    whole = model(tokens)
    starts = [0, 1, 40, 55, 62, 63, 64, 65, 70, 3, 17, 50]
    for most in (1, 2, 6, 14, 15):
        caches = [model.new_cache() for _ in starts]
        for cache, row, start in zip(caches, tokens, starts, strict=True):
            if start:
                model.next_logits(row[:start], cache)
        sizes = [1 + i % most for i in range(12)]
        pieces = [row[s : s + n] for row, s, n in zip(tokens, starts, sizes, strict=True)]
        for i, logits in enumerate(model.forward_many(pieces, caches=caches)):
            same_bits(logits, whole[i, starts[i] : starts[i] + sizes[i]])


@pytest.mark.parametrize("sequence", [range(10), [60, 0, 60], [5]])
def test_every_prefix_alone_in_a_ragged_batch(model, same_bits, sequence):
    prefixes = [list(sequence[: i + 1]) for i in range(len(sequence))]
    whole = model(list(sequence))
    for i, logits in enumerate(model.forward_many(prefixes)):
        same_bits(logits, whole[: i + 1])


# ---- instruction sets and threads


@pytest.mark.parametrize("head_dim", [1, 5, 32, 33, 64, 200])
@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf", "relu"])
def test_instruction_sets(fused_isa, same_bits, head_dim, activation):
    config = gpt2cy.GPTConfig(71, 2 * head_dim, 2, 2, 90, activation=activation, n_inner=83)
    model = make(config)
    tokens = formula.tokens(config, 2, 90)
    dispatch.use("ref")
    expected = model(tokens)
    dispatch.use(fused_isa)
    same_bits(model(tokens), expected)


def test_a_model_outlives_a_change_of_instruction_set(model, tokens, same_bits):
    """Weights and caches have one layout on all of them, so a cache may even be continued by another."""
    names = [name for name in dispatch.available() if dispatch.fused(name)]
    cache = model.new_cache()
    whole = model(tokens[0])
    for i, piece in enumerate(np.split(tokens[0], 10)):
        dispatch.use(names[i % len(names)])
        same_bits(model(piece, cache), whole[15 * i : 15 * i + 15])


def test_numbers_of_threads(isa, same_bits):
    """Large enough for every kernel to share its work."""
    dispatch.use(isa)
    config = gpt2cy.GPTConfig(307, 96, 4, 1, 200)
    model = make(config)
    tokens = formula.tokens(config, 2, 200)
    results = []
    for n in (1, 2, 3, 7):
        gpt2cy.set_num_threads(n)
        results.append(model(tokens))
    for result in results[1:]:
        same_bits(result, results[0])


def test_python_threads_at_once(isa, model, tokens, same_bits):
    """One has the team, the others compute alone meanwhile; each its own rows, caches and shapes."""
    dispatch.use(isa)
    expected = [model(row) for row in tokens]
    barrier = threading.Barrier(4)
    failures = []

    def work(i):
        try:
            cache = model.new_cache()
            barrier.wait()
            for _ in range(10):
                same_bits(model(tokens[i]), expected[i])
                cache.reset()
                same_bits(model(tokens[i, :77], cache), expected[i][:77])
                same_bits(model.next_logits(tokens[i, 77:], cache), expected[i][-1])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# ---- the host's floating-point mode

GLIBC_X86 = sys.platform == "linux" and platform.machine() == "x86_64"
UP, DOWN, ZERO, FTZ, DAZ = 0x4000, 0x2000, 0x6000, 0x8000, 0x0040
MODES = {"up": UP, "down": DOWN, "zero": ZERO, "ftz": FTZ, "daz": DAZ, "all": ZERO | FTZ | DAZ}
CONTROL = 0xFFC0  # of MXCSR: all but the sticky exception flags

needs_mxcsr = pytest.mark.skipif(not GLIBC_X86, reason="MXCSR is the last word of fenv_t on x86-64 Linux")
any_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def mxcsr():
    environment = (ctypes.c_uint32 * 8)()
    ctypes.CDLL("libm.so.6").fegetenv(environment)
    return environment[7] & CONTROL


@contextlib.contextmanager
def host_mode(bits):
    """This thread's MXCSR with the bits set; puts back what was there."""
    libm = ctypes.CDLL("libm.so.6")
    found, changed = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()
    libm.fegetenv(found)
    changed[:] = found
    changed[7] |= bits
    libm.fesetenv(changed)
    try:
        yield
    finally:
        libm.fesetenv(found)


@needs_mxcsr
@any_mode
@pytest.mark.parametrize("n_threads", [1, 2])
def test_host_mode_changes_nothing_and_stays(isa, model, tokens, mode, n_threads):
    dispatch.use(isa)
    gpt2cy.set_num_threads(n_threads)
    tokens = tokens[:, :90]
    expected = model(tokens)
    before = mxcsr()
    with host_mode(mode):
        cache = model.new_cache(4)
        results = [model(tokens), model(tokens[:, :70], cache), model(tokens[:, 70:], cache)]
        inside = mxcsr()
        with pytest.raises(ValueError):
            model([[0, 61]])
        with pytest.raises(ValueError):
            model([[1]] * 3, cache)
        after_error = mxcsr()
    assert inside == after_error == before | mode
    assert mxcsr() == before
    np.testing.assert_array_equal(results[0].view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(
        np.concatenate(results[1:], axis=1).view(np.uint32), expected.view(np.uint32)
    )


@needs_mxcsr
@any_mode
def test_a_model_built_in_another_host_mode_is_the_same(model, tokens, mode):
    weights = formula.weights(model.config)
    with host_mode(mode):
        other = make(model.config, weights)
    np.testing.assert_array_equal(other(tokens[0]).view(np.uint32), model(tokens[0]).view(np.uint32))


@needs_mxcsr
@any_mode
def test_layers_alone_keep_their_bits_in_any_host_mode(mode):
    x = np.random.default_rng(0).standard_normal((50, 48), np.float32) * np.float32(0.3)
    layers = [
        gpt2cy.LayerNorm(48, eps=0.1),
        gpt2cy.Linear(48, 30, seed=0),
        gpt2cy.MLP(48, seed=0),
        gpt2cy.gelu,
        gpt2cy.Attention(48, 3, seed=0),
        gpt2cy.Block(gpt2cy.GPTConfig(7, 48, 3, 2, 60, layer_norm_eps=0.1), seed=0),
        gpt2cy.gelu_erf,
        gpt2cy.relu,
        gpt2cy.softmax,
    ]
    expected = [layer(x) for layer in layers]
    before = mxcsr()
    with host_mode(mode):
        results = [layer(x) for layer in layers]
        assert mxcsr() == before | mode
    for layer, result, right in zip(layers, results, expected, strict=True):
        np.testing.assert_array_equal(result.view(np.uint32), right.view(np.uint32), err_msg=str(layer))


@needs_mxcsr
def test_a_hosts_traps_do_not_fire(python):
    """A host that wants a signal for each division by zero or invalid operation gets none of ours."""
    code = """
import numpy as np, gpt2cy, ctypes
model = gpt2cy.GPT(gpt2cy.GPTConfig(61, 40, 5, 2, 100), seed=0)
weight = model.wte.weight.copy(); weight[7] = np.inf; weight[8] = np.nan
model.wte.weight = weight
tokens = np.arange(90) % 61
expected = model(tokens)
libm = ctypes.CDLL("libm.so.6"); libm.feclearexcept(0x3d); libm.feenableexcept(0x0d)
result = model(tokens)
libm.fedisableexcept(0x3d)
print(np.array_equal(result, expected, equal_nan=True), np.isnan(result).any())
"""
    assert python(code).split() == ["True", "True"]


def test_import_and_forward_leave_subnormals_alone(python):
    """NUM-05"""
    code = """
import threading, warnings
warnings.simplefilter("error")
import numpy as np, gpt2cy
def check():
    assert np.float32(1e-45) > 0
    assert np.float32(1e-39) * np.float32(0.5) > 0
    assert np.finfo("f4").smallest_subnormal > 0 and np.finfo("f8").smallest_subnormal > 0
check()
model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
gpt2cy.set_num_threads(2)
model(np.zeros((2, 128), int))
check()
failed = []
threading.excepthook = failed.append
thread = threading.Thread(target=check); thread.start(); thread.join()
weight = model.wte.weight.copy(); weight[3] = np.nan; model.wte.weight = weight
assert np.isnan(model([3])).all() and np.isfinite(model([4])).all()
print(len(failed))
"""
    assert python(code).split() == ["0"]


# ---- Inf and NaN to come


@pytest.mark.parametrize(
    ("poison", "tied"), [(np.nan, False), (np.nan, True), (np.inf, True), (-np.inf, False), (3e38, False)]
)
def test_poisoned_token_reaches_only_forward(isa, tokens, same_bits, poison, tied):
    """Token 60 appears at position `at` and later: logits before it keep their bits, cached or not."""
    dispatch.use(isa)
    config = gpt2cy.GPTConfig(61, 20, 5, 2, 150, tie_weights=tied)
    model = make(config)
    clean = np.where(tokens[:2] == 60, 1, tokens[:2])
    body = slice(0, 60)  # a tied head gives the poisoned token's own logit
    expected = model(clean)
    weight = model.wte.weight.copy()
    weight[60] = poison
    model.wte.weight = weight
    for at in (1, 14, 63, 64, 149):
        dirty = clean.copy()
        dirty[0, at] = 60
        logits = model(dirty)
        same_bits(logits[0, :at, body], expected[0, :at, body])
        same_bits(logits[1, :, body], expected[1, :, body])
        if poison != 3e38:
            assert np.isnan(logits[0, at, body]).all()
        cache = model.new_cache(2)
        same_bits(model(dirty[:, :at], cache)[..., body], expected[:, :at, body])
        model(dirty[:, at:], cache)
        cache.truncate(at)
        same_bits(model(clean[:, at:], cache)[..., body], expected[:, at:, body])


def test_poisoned_positions_reach_only_forward(isa, tokens, same_bits):
    dispatch.use(isa)
    model = make()
    expected = model(tokens[0])
    weight = model.wpe.weight.copy()
    weight[70:] = np.nan
    weight[100:] = np.inf
    model.wpe.weight = weight
    logits = model(tokens[0])
    same_bits(logits[:70], expected[:70])
    assert np.isnan(logits[70:]).all()
    same_bits(model.forward_many([tokens[0], tokens[0, :60]])[1], expected[:60])


def test_scores_of_any_size_stay_causal(isa, tokens, same_bits):
    """NUM-01"""
    dispatch.use(isa)
    model = make()
    attention = model.blocks[0].attn
    weight = attention.c_attn.weight.copy()
    weight[:, :40] *= 300  # queries and keys
    attention.c_attn.weight = weight
    expected = model(tokens[0])
    for at in (1, 30, 64, 100):
        other = tokens[0].copy()
        other[at:] = (other[at:] + 7) % 61
        same_bits(model(other)[:at], expected[:at])


# ---- memory that held something else


def test_dirty_memory_never_shows(model, tokens):
    """NUM-07: 200 calls, with NaN freed in pieces of the sizes a call asks for before each."""
    expected = {batch: model(tokens[:batch]) for batch in (1, 3)}
    for repeat in range(200):
        dirt = [
            np.full(size, np.nan, np.float32) for size in (20, 150 * 20, 150 * 80, 46592, 46592 * 3, 10**6)
        ]
        del dirt
        batch = 1 + 2 * (repeat % 2)
        np.testing.assert_array_equal(model(tokens[:batch]).view(np.uint32), expected[batch].view(np.uint32))


@pytest.mark.skipif(sys.platform != "linux", reason="MALLOC_PERTURB_ is glibc's")
@pytest.mark.parametrize("byte", [1, 128, 255])
def test_perturbed_memory_never_shows(python, model, tokens, byte):
    code = f"""
import sys, hashlib; sys.path.append(sys.argv[1])
import formula, gpt2cy
from gpt2cy import GPTConfig
config = {model.config!r}
model = gpt2cy.GPT(config, seed=1)
model.load_state_dict(formula.weights(config))
tokens = formula.tokens(config, 4, 150)
cache = model.new_cache(4)
model(tokens[:, :77], cache)
print(hashlib.sha256(model(tokens).tobytes() + model(tokens[:, 77:], cache).tobytes()).hexdigest())
"""
    whole = model(tokens)
    printed = python(code, formula.__file__.rpartition("/")[0], MALLOC_PERTURB_=str(byte))
    assert printed.split() == [digest(whole, np.ascontiguousarray(whole[:, 77:]))]
