# SPDX-License-Identifier: Apache-2.0
"""Memory that is not there: asked for before, refused at any point, and nothing lost."""

import itertools

import formula
import numpy as np
import pytest

import gpt2cy
from gpt2cy.kernels import host, memory

CONFIG = gpt2cy.GPTConfig(61, 20, 5, 2, 150)
TOKENS = np.arange(140).reshape(2, -1) % 61


@pytest.fixture
def model():
    model = gpt2cy.GPT(CONFIG, seed=0)
    model.load_state_dict(formula.weights(CONFIG))
    return model


def everything(model):
    """Every way to memory that the package has."""
    caches = model.new_cache(2), model.new_cache(), model.new_cache()
    model(TOKENS, caches[0])
    branch = caches[0].copy()
    model.next_logits([[1], [2]], branch)
    model.next_logits([[1], [2]], caches[0])
    model.forward_many([range(60), range(3)], caches[1:])
    model.forward_many([range(60), range(3)])
    model(np.zeros((9, 150), int))
    gpt2cy.GPT(CONFIG)
    for layer in (gpt2cy.Attention(20, 5), gpt2cy.Block(CONFIG), gpt2cy.MLP(20), gpt2cy.Linear(20, 3)):
        layer(np.ones((70, 20)))
    gpt2cy.LayerNorm(4)([1.0, 2, 3, 4])
    gpt2cy.Embedding(4, 4)([1])
    return branch


def test_every_allocation_may_fail(model, same_bits):
    """The n-th allocation fails, for n from 0 until nothing fails; all works again each time."""
    expected = model(TOKENS)
    kept = everything(model)
    continued = model.next_logits([[3], [4]], kept.copy())
    for n in itertools.count():
        memory.fail_allocations(n)
        try:
            everything(model)
        except MemoryError as error:
            assert str(error).startswith("cannot allocate") or "bytes" in str(error)
        else:
            break
        finally:
            memory.fail_allocations(-1)
        same_bits(model(TOKENS), expected)
        same_bits(model.next_logits([[3], [4]], kept.copy()), continued)
    assert n > 20


def test_a_cache_that_could_not_grow_goes_on(model, same_bits):
    whole = model(TOKENS)
    for cut, fail in itertools.product((10, 64, 69), range(3)):
        cache = model.new_cache(2)
        model(TOKENS[:, :cut], cache)
        branch = cache.copy()
        memory.fail_allocations(fail)
        try:
            model(TOKENS[:, cut:], cache)
        except MemoryError:
            assert cache.lengths == [cut, cut]
        finally:
            memory.fail_allocations(-1)
        if cache.lengths == [cut, cut]:
            same_bits(model(TOKENS[:, cut:], cache), whole[:, cut:])
        same_bits(model(TOKENS[:, cut:], branch), whole[:, cut:])


def test_a_model_that_cannot_fit_is_refused_before():
    config = gpt2cy.GPTConfig(n_embd=8192, n_heads=64, n_layers=2000)
    said = r"^config: .* MiB needed \(weights .*\), .* available: reduce n_layers"
    with pytest.raises(MemoryError, match=said):
        gpt2cy.GPT(config)


def test_a_call_that_cannot_fit_is_refused_before(model):
    model = gpt2cy.GPT(gpt2cy.GPTConfig(500_000, 4, 1, 1, 1000))
    tokens = np.zeros((200, 1000), int)
    said = r"^tokens: .*logits .*workspace .*reduce batch or length.*next_logits"
    with pytest.raises(MemoryError, match=said):
        model(tokens)
    cache = model.new_cache(200)
    with pytest.raises(MemoryError, match=r"^tokens: .*logits .*cache"):
        model(tokens, cache)
    assert cache.lengths == [0] * 200
    assert cache.nbytes == 0
    with pytest.raises(MemoryError, match=r"^sequences: .*logits"):
        model.forward_many(list(tokens))
    assert model.next_logits(tokens[:2]).shape == (2, 500_000)


X = np.zeros((1 << 18, 32), np.float32)  # 32 MiB
ALONE = {
    "Embedding": lambda: gpt2cy.Embedding(3, 32, seed=0)(np.zeros(1 << 20, np.int8)),
    "LayerNorm": lambda: gpt2cy.LayerNorm(32)(np.concatenate([X] * 3)),
    "Linear": lambda: gpt2cy.Linear(32, 100, seed=0)(X),
    "MLP": lambda: gpt2cy.MLP(32, seed=0)(X),
    "Attention": lambda: gpt2cy.Attention(32, 2, seed=0)(X.reshape(-1, 64, 32)),
    "Block": lambda: gpt2cy.Block(gpt2cy.GPTConfig(5, 32, 2, 1, 64), seed=0)(X.reshape(-1, 64, 32)),
    "gelu": lambda: gpt2cy.gelu(np.concatenate([X] * 3)),
    "softmax": lambda: gpt2cy.softmax(np.concatenate([X] * 3)),
}
HUGE = {
    "num_embeddings, n_embd": lambda: gpt2cy.Embedding(1 << 20, 1 << 10),
    "in_features, out_features": lambda: gpt2cy.Linear(1 << 15, 1 << 15),
    "n_embd": lambda: gpt2cy.LayerNorm(1 << 29),
    "n_embd, n_inner": lambda: gpt2cy.MLP(1 << 14),
    "config": lambda: gpt2cy.Block(gpt2cy.GPTConfig(5, 1 << 13, 1 << 7, 1, 4)),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_layer_alone_asks_before_it_takes(monkeypatch, name):
    """Result and workspace of more than the 65 MiB that are said to be left."""
    monkeypatch.setattr(host, "available_memory", lambda: 65 << 20)
    argument = "ids" if name == "Embedding" else "x"
    said = rf"^{argument}: .*result .* 65 MiB available: reduce the number of rows"
    with pytest.raises(MemoryError, match=said):
        ALONE[name]()


@pytest.mark.parametrize("names", HUGE)
def test_a_layer_that_cannot_fit_is_refused_before(monkeypatch, names):
    monkeypatch.setattr(host, "available_memory", lambda: 1 << 30)
    with pytest.raises(MemoryError, match=rf"^{names}: .*weights .* 1,024 MiB available: reduce them"):
        HUGE[names]()


# ---- what is available


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def available(tmp_path, membership=""):
    write(tmp_path / "membership", membership)
    return host.available_memory(
        str(tmp_path / "meminfo"), str(tmp_path / "cgroup"), str(tmp_path / "membership")
    )


def test_the_systems_estimate(tmp_path):
    assert available(tmp_path) is None
    write(tmp_path / "meminfo", "MemTotal: 9 kB\nMemAvailable:    4000 kB\n")
    assert available(tmp_path) == 4_096_000
    write(tmp_path / "meminfo", "MemAvailable: many kB\n")
    assert available(tmp_path) is None


def test_version_2_groups_and_those_above(tmp_path):
    write(tmp_path / "meminfo", "MemAvailable: 1000000 kB\n")
    write(tmp_path / "cgroup/memory.max", "max\n")
    write(tmp_path / "cgroup/memory.current", "1\n")
    write(tmp_path / "cgroup/a/memory.max", "900000\n")
    write(tmp_path / "cgroup/a/memory.current", "500000\n")
    write(tmp_path / "cgroup/a/memory.stat", "anon 1\ninactive_file 100000\n")
    write(tmp_path / "cgroup/a/b/memory.max", "max\n")
    assert available(tmp_path, "0::/a/b\n") == 500_000
    write(tmp_path / "cgroup/a/memory.current", "2000000\n")
    assert available(tmp_path, "0::/a/b\n") == 0


def test_version_1_groups(tmp_path):
    write(tmp_path / "cgroup/memory/x/memory.limit_in_bytes", "700000\n")
    write(tmp_path / "cgroup/memory/x/memory.usage_in_bytes", "300000\n")
    write(tmp_path / "cgroup/memory/x/memory.stat", "total_inactive_file 50000\n")
    assert available(tmp_path, "4:cpu,memory:/x\n2:cpu:/y\n") == 450_000
    assert available(tmp_path, "4:cpu:/x\n") is None


@pytest.mark.parametrize("membership", ["nonsense", "::", "0::/../../../etc\n", "\0"])
def test_a_membership_that_makes_no_sense(tmp_path, membership):
    assert available(tmp_path, membership) is None
