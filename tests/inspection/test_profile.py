# SPDX-License-Identifier: Apache-2.0
"""A profile: the plain pass, its work counted, and times that add up."""

import time

import numpy as np
import pytest

import gpt2cy
from gpt2cy.inspection import Profile, machine, profiling, work
from gpt2cy.inspection.clock import clocked
from gpt2cy.kernels import host

CONFIG = gpt2cy.GPTConfig(61, 36, 3, 2, 150, n_inner=50)
IDS = [i % 61 for i in range(63)]
MACHINE = machine.Machine(peak=100.0, bandwidth=10.0, isa="ref", n_threads=1)


@pytest.fixture
def model(build):
    return build(61, 36, 3, 2, 150, n_inner=50)


@pytest.mark.parametrize("last_only", [False, True])
@pytest.mark.parametrize("length", [1, 70])
@pytest.mark.parametrize("n_layers", [1, 2])
@pytest.mark.parametrize("n_threads", [1, 3])  # by 3, 140 rows go through a block in parts
def test_a_clocked_pass_is_the_plain_one(build, length, last_only, n_layers, n_threads, same_bits):
    model = build(61, 36, 3, n_layers, 150)
    gpt2cy.set_num_threads(n_threads)
    tokens = np.arange(2 * length).reshape(2, length) % 61
    seconds, logits = clocked(model, tokens, None, last_only)
    same_bits(logits, (model.next_logits if last_only else model.forward)(tokens))
    block = ["ln_1", "attn.c_attn", "attn.heads", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
    names = ["embed", *(f"h.{i}.{name}" for i in range(n_layers) for name in block), "ln_f", "lm_head"]
    counted = work.of_pass(model.config, [length] * 2, [0, 0], last_only)
    assert list(seconds) == names == [one.name for one in counted]
    assert min(seconds.values()) > 0


@pytest.mark.alone
def test_the_parts_of_a_clocked_pass_are_the_call(model):
    tokens = np.arange(140).reshape(2, 70) % 61
    for n_threads in (1, 3):
        gpt2cy.set_num_threads(n_threads)
        shares = []
        for _ in range(5):
            start = time.perf_counter()
            seconds, _ = clocked(model, tokens)
            shares.append(sum(seconds.values()) / (time.perf_counter() - start))
        assert 0.5 < max(shares) < 1  # the rest makes the clock and reads it


def test_a_cache_is_left_as_it_was(model, same_bits):
    cache = model.new_cache()
    model([IDS], cache)
    found = model.profile([[5, 6]], cache, seconds=0.01)
    assert cache.lengths == [63]
    assert found.n_tokens == 2
    same_bits(model([[5, 6]], cache), model([[*IDS, 5, 6]])[:, -2:])
    heads = next(row.work for row in found.rows if row.work.operation == "attn.heads")
    assert heads.bytes == 2 * 4 * 36 * 63
    assert heads.flops == 4 * 36 * (64 + 65)


@pytest.mark.parametrize("options", [{}, {"tie_weights": True}, {"bias": False}, {"lm_head_bias": False}])
def test_the_work_of_each_operation(options):
    """Two sequences, 7 and 3 tokens after 9 and 4 cached ones; tests/perf/test_limits.py counts passes."""
    config = gpt2cy.GPTConfig(61, 36, 3, 2, 150, n_inner=50, **options)
    bias, head_bias = options.get("bias", True), config.has_lm_head_bias
    expected = {
        "embed": (0, 0),
        "ln_1": (0, 4 * 36 * (1 + bias)),
        "attn.c_attn": (2 * 10 * 36 * 108, 4 * 108 * (36 + bias)),
        "attn.heads": (4 * 36 * (sum(range(10, 17)) + sum(range(5, 8))), 2 * 4 * 36 * 13),
        "attn.c_proj": (2 * 10 * 36 * 36, 4 * 36 * (36 + bias)),
        "ln_2": (0, 4 * 36 * (1 + bias)),
        "mlp.c_fc": (2 * 10 * 36 * 50, 4 * 50 * (36 + bias)),
        "mlp.c_proj": (2 * 10 * 50 * 36, 4 * 36 * (50 + bias)),
        "ln_f": (0, 4 * 36 * (1 + bias)),
        "lm_head": (2 * 10 * 36 * 61, 4 * 61 * (36 + head_bias)),
    }
    found = work.of_pass(config, [7, 3], [9, 4])
    names = list(expected)
    assert [one.operation for one in found] == [names[0], *2 * names[1:8], *names[8:]]
    for one in found:
        assert (one.flops, one.bytes) == expected[one.operation], one


def test_sums_and_shares():
    def row(operation, layer, flops, n_bytes, seconds):
        return profiling.Timed(work.Work(operation, layer, flops, n_bytes), seconds)

    rows = [row("embed", None, 0, 0, 1.0), row("ln_1", 0, 0, 10, 2.0), row("ln_1", 1, 0, 30, 4.0)]
    rows += [row("lm_head", None, 2e11, 1e9, 4.0)]
    found = Profile(rows, MACHINE, 3, 8)
    assert found.seconds == 11.0
    assert [(one.work.operation, one.work.bytes, one.seconds) for one in found.by_operation()] == [
        ("embed", 0, 1.0), ("ln_1", 40, 6.0), ("lm_head", 1e9, 4.0)]  # fmt: skip
    assert [(one.work.operation, one.seconds) for one in found.by_layer()] == [
        ("embed", 1.0), ("h.0", 2.0), ("h.1", 4.0), ("lm_head", 4.0)]  # fmt: skip
    assert found.by_operation()[-1].share(MACHINE) == 0.5  # 2e11 flops at 100 GFLOP/s: 2 of 4 seconds
    assert MACHINE.bound(2e11, 1e9) == "compute" and MACHINE.bound(1e9, 1e9) == "memory"
    lines = str(found).splitlines()
    assert lines[2].split()[:5] == ["ln_1", "2", "6000.000", "54.5", "%"]
    assert lines[3].split()[-3:] == ["50", "%", "compute"]
    assert "1 tokens/s; the middle half of 3 passes, 1 thread, ref" in str(found)


def test_which_passes_count():
    passes = [{"a": float(i)} for i in (0, 1, 3, 4, 5, 6, 9, 100)]
    assert [times["a"] for times in profiling.middle_half(passes)] == [3, 4, 5, 6]
    assert profiling.middle_half(passes[:3]) == [passes[1]]
    assert profiling.fastest_quarter(passes) == passes[:2]
    assert profiling.fastest_quarter(passes[:3]) == passes[:1]


@pytest.mark.parametrize(
    ("choose", "expected"), [(profiling.middle_half, 3.0), (profiling.fastest_quarter, 1.0)]
)
def test_times_are_of_the_passes_that_count(model, monkeypatch, choose, expected):
    names = [one.name for one in work.of_pass(CONFIG, [1], [0])]
    lasting = iter([9.0, 1.0, 5.0, 3.0])  # the first is not timed
    monkeypatch.setattr(profiling, "clocked", lambda *given: (dict.fromkeys(names, next(lasting)), None))
    rows, n_passes = profiling.timed(model, [1], None, False, 1e-9, choose)
    assert n_passes == 3
    assert [row.seconds for row in rows] == [expected] * len(names)


def test_bad_arguments(model):
    with pytest.raises(ValueError, match="tokens: id 61"):
        model.profile([61])
    with pytest.raises(ValueError, match="seconds: expected"):
        model.profile([1], seconds=0)
    with pytest.raises(TypeError, match="last_only: expected True or False"):
        model.profile([1], last_only=1)
    with pytest.raises(TypeError, match="^cache: expected a KVCache, got int"):
        model.profile([1], 3)
    with pytest.raises(ValueError, match="cache: expected .* batch_size of 2"):
        model.profile([[1], [2]], model.new_cache())
    with pytest.raises(ValueError, match="cache: slot 0 holds 0 of 3 positions, 4 more do not fit"):
        model.profile([[1, 2, 3, 4]], model.new_cache(capacity=3))


def test_caches_of_a_machine(tmp_path):
    for index, size in enumerate(("48K", "2048K", "32M", "nonsense")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert machine.last_cache(str(tmp_path)) == 32 << 20
    assert machine.last_cache(str(tmp_path / "none")) == 32 << 20
    assert 64 << 20 <= machine.beyond_caches() <= 512 << 20


def test_a_machine_short_of_memory_is_measured_with_less(model, monkeypatch):
    taken = []
    monkeypatch.setattr(
        machine, "_best", lambda seconds, m, depth, columns, n: taken.append(4 * depth * columns) or 1.0
    )
    for left in (None, 1 << 40, 20 << 20, 0):
        monkeypatch.setattr(host, "available_memory", lambda left=left: left)
        machine.measure()
    all_of_it = machine.beyond_caches()
    assert taken[1::2] == [all_of_it, all_of_it, 10 << 20, 4 * 1024]


def test_plot(model):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    found = model.profile([[1, 2, 3]], seconds=0.01)
    axes = found.plot()
    try:
        layers = [label.get_text() for label in axes.get_xticklabels()]
        assert layers == ["embed", "h.0", "h.1", "ln_f", "lm_head"]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == list(work.OPERATIONS)
        tops = [0.0] * 5
        for bars in axes.containers:
            tops = [top + bar.get_height() for top, bar in zip(tops, bars, strict=True)]
        assert sum(tops) == pytest.approx(1e3 * found.seconds)
    finally:
        pyplot.close(axes.figure)


@pytest.mark.slow
@pytest.mark.alone
def test_the_parts_are_the_whole():
    """At gpt2-small within 5 % of a forward without a clock: the fastest of many, in turn, by one thread."""
    gpt2cy.set_num_threads(1)
    model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("gpt2-small"), seed=0)
    tokens = np.arange(16)[None]
    plain, parts = [], []
    for _ in range(40):
        start = time.perf_counter()
        model(tokens)
        plain.append(time.perf_counter() - start)
        parts.append(sum(clocked(model, tokens)[0].values()))
    print(f"clocked {1e3 * min(parts):.2f} ms, plain {1e3 * min(plain):.2f} ms")
    assert abs(min(parts) / min(plain) - 1) <= 0.05
