# SPDX-License-Identifier: Apache-2.0
"""gpt2cy plan: the memory of the plan, advice that helps, and times that come true."""

import dataclasses
import json
import re
import statistics
import time
import tracemalloc

import numpy as np
import pytest

import gpt2cy
from gpt2cy import cli, plan
from gpt2cy.inspection import machine, profiling, work
from gpt2cy.kernels import host

MIB = 1 << 20
GPT2 = gpt2cy.GPTConfig.preset("gpt2-small")


@pytest.fixture
def run(capsys):
    """Run the command: exit code, stdout, stderr."""

    def call(*arguments):
        code = cli.main(["plan", *map(str, arguments)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def left(monkeypatch):
    """Say how much memory is left."""
    return lambda n_bytes: monkeypatch.setattr(host, "available_memory", lambda: n_bytes)


def test_memory_and_what_it_says(run, left):
    left(2000 * MIB)
    code, out, err = run("--preset", "gpt2-small", "--batch", 1, "--seq-len", 1024, "--no-measure")
    assert (code, err) == (0, "")
    total = GPT2.memory_plan(1, 1024)["total"] / MIB
    for part in (
        "163,087,441 parameters: vocab_size=50257, n_embd=768, n_heads=12, n_layers=12, block_size=1024",
        "1 x 1024 tokens",
        "weights 622.2 MiB, cache 72.0 MiB, workspace ",
        f"total {total:,.1f} MiB",
        "yes: 2,000.0 MiB available",
    ):
        assert part in out
    assert "Forward" not in out


@pytest.mark.parametrize(
    ("mib", "batch", "advice"),
    [
        (600, 1, "the weights alone do not fit: reduce n_layers, n_embd, n_inner, vocab_size or block_size"),
        (1600, 4, "batch 3 fits"),
        (800, 1, "the logits of all positions do not fit: next_logits makes those of the last one"),
        (640, 1, "reduce seq_len"),
    ],
)
def test_what_does_not_fit(mib, batch, advice, run, left):
    left(mib * MIB)
    found = plan.describe(GPT2, batch, 1024, measured=False)
    assert not found.fits
    code, out, _ = run("--preset", "gpt2-small", "--batch", batch, "--no-measure")
    assert code == 1
    assert f"NO: {mib:,}.0 MiB available; {advice}" in out
    if advice.startswith("batch"):
        left(GPT2.memory_plan(3, 1024)["total"])
        assert plan.describe(GPT2, 3, 1024, measured=False).fits


def test_what_does_not_fit_is_not_built(left):
    """What the plan says does not fit is refused with sizes, and what it says fits is not."""
    config = gpt2cy.GPTConfig(512, 768, 12, 4, 256)
    model, tokens = gpt2cy.GPT(config, init_std=0.0), np.zeros((8, 256), int)
    call = config.memory_plan(8, 256)
    left(call["workspace"] + call["logits"] - 1)
    with pytest.raises(MemoryError, match=r"tokens: .* needed \(logits .*workspace .*reduce batch or length"):
        model(tokens)
    left(call["weights"] - 1)
    with pytest.raises(MemoryError, match=r"config: .* MiB needed \(weights .*reduce n_layers"):
        gpt2cy.GPT(config)
    left(call["weights"])
    gpt2cy.GPT(config, init_std=0.0)


def test_where_memory_is_unknown(run, left):
    left(None)
    code, out, _ = run("--preset", "gpt2-xl", "--no-measure")
    assert code == 0
    assert "unknown: the system does not say how much memory is left" in out


def test_a_machine_too_full_to_measure(run, left):
    left(70 * MIB)
    code, out, _ = run("--preset", "gpt2-small", "--seq-len", 16)
    assert code == 1
    assert "NO: 70.0 MiB available; the weights alone do not fit" in out and "Forward" not in out
    assert "note: no times: the memory left is too little to measure (" in out


def test_times_in_text_and_json(run, monkeypatch):
    monkeypatch.setattr(machine, "beyond_caches", lambda: 1 * MIB)
    code, out, _ = run("--preset", "tiny", "--batch", 3, "--seq-len", 20)
    assert code == 0
    assert re.search(
        r"^Machine: +\d+ threads?, \w+: \d+ GFLOP/s, [\d.]+ GB/s, as measured$", out, re.MULTILINE
    )
    assert re.search(
        r"^Forward: +[\d.]+ ms expected, [\d,]+ tokens/s \(((compute|memory)-bound; at|from a cache:) ",
        out,
        re.MULTILINE,
    )
    assert re.search(r"^Next token: .* after 19 cached ones of 3 sequences$", out, re.MULTILINE)
    found = json.loads(run("--preset", "tiny", "--batch", 3, "--seq-len", 20, "--json")[1])
    assert found["memory"] == gpt2cy.GPTConfig.preset("tiny").memory_plan(3, 20)
    assert found["forward"]["n_tokens"] == 60 and found["decode"]["n_tokens"] == 3
    assert found["forward"]["tokens_per_second"] == pytest.approx(60 / found["forward"]["seconds"])
    assert found["fits"] is True and found["note"] is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.25, "250 ms expected, 8 tokens/s (memory-bound; at least 200 ms)"),
     (0.1, "100 ms expected, 20 tokens/s (from a cache: 200 ms at the memory's speed)")],
)  # fmt: skip
def test_nothing_is_faster_than_the_least_that_is_said(seconds, said):
    """A small model's weights stay in a cache, which the roofline of the memory does not know."""
    limits = machine.Machine(peak=1000.0, bandwidth=10.0, isa="ref", n_threads=1)
    assert plan._speed(plan.Expected(seconds, 2, flops=10, bytes=2_000_000_000), limits) == said


def test_of_a_source(run, build, tmp_path):
    build(61, 36, 3, 2, 80, tie_weights=True).save_pretrained(tmp_path)
    code, out, _ = run(tmp_path, "--no-measure")
    assert code == 0
    assert "vocab_size=61, n_embd=36, n_heads=3, n_layers=2, block_size=80" in out and "1 x 80 tokens" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected SOURCE or --preset, one of them"),
        (["somewhere", "--preset", "tiny"], "expected SOURCE or --preset, one of them"),
        (["no/such/folder"], "source: no file or folder 'no/such/folder'"),
        (["--preset", "tiny", "--seq-len", 129], "seq_len"),
        (["--preset", "tiny", "--batch", 0], "batch: expected an integer >= 1, got 0"),
    ],
)
def test_bad_arguments(arguments, message, run):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("gpt2cy plan: error: ") and message in err and err.count("\n") == 1


def test_arguments_of_describe():
    with pytest.raises(TypeError, match="^config: expected a GPTConfig, got NoneType$"):
        plan.describe(None)
    with pytest.raises(TypeError, match="^measured: expected True or False, got str 'no'$"):
        plan.describe(GPT2, measured="no")


def test_the_slice_is_no_larger_than_it_must_be(monkeypatch):
    monkeypatch.setattr(machine, "beyond_caches", lambda: 64 * MIB)
    xl = plan._slice(gpt2cy.GPTConfig.preset("gpt2-xl"), 1, 1024).config
    assert (xl.n_embd, xl.n_heads, xl.n_layers) == (1600, 25, 1)
    assert 4 * 1024 * xl.vocab_size >= 64 * MIB and xl.vocab_size < 50257
    tiny = gpt2cy.GPTConfig.preset("tiny")
    small = plan._slice(tiny, 2, 8).config
    assert small.block_size == 8
    assert (small.n_layers, small.vocab_size) == (tiny.n_layers, tiny.vocab_size)


def test_the_least_is_what_the_pass_has_to_do():
    config = gpt2cy.GPTConfig(61, 36, 3, 4, 50, n_inner=50)
    for batch, length, past in ((1, 9, 0), (5, 9, 0), (3, 1, 20)):
        todo = work.of_pass(config, [length] * batch, [past] * batch)
        flops, n_bytes = plan._least(config, batch, length, past)
        assert (flops, n_bytes) == (sum(one.flops for one in todo), sum(one.bytes for one in todo))


@pytest.mark.parametrize(
    ("sizes", "batch"),
    [({}, 10**20), ({"n_layers": 10**9}, 1), ({"block_size": 10**12}, 1), ({"vocab_size": 10**12}, 2)],
)
def test_absurd_sizes_are_planned_in_the_memory_of_small_ones(sizes, batch, monkeypatch):
    monkeypatch.setattr(machine, "beyond_caches", lambda: 1 << 20)
    monkeypatch.setattr(plan, "_HEAD_BYTES", 1 << 20)
    config = gpt2cy.GPTConfig(**{"vocab_size": 100, "n_embd": 32, "n_heads": 2, "block_size": 16, **sizes})
    tracemalloc.start()
    try:
        found = plan.describe(config, batch, 16)
        text = plan.lines(found)
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB  # modules that are imported meanwhile too
    finally:
        tracemalloc.stop()
    assert not found.fits
    assert found.note is None and found.forward.seconds > 0
    assert "NO: " in text[3] and ("batch " in text[3] if batch > 2 else "reduce" in text[3])


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("preset", "batch", "length"), [("tiny", 1, 64), ("medium", 2, 100)])
def test_expected_times_come_true(preset, batch, length):
    """Within 30 %. A plan is of a machine with nobody else, so is the time it is held against."""
    config = gpt2cy.GPTConfig.preset(preset)
    model = gpt2cy.GPT(config, seed=0)
    tokens = np.arange(batch * length).reshape(batch, length) % config.vocab_size
    cache = model.new_cache(batch)
    model.next_logits(tokens, cache)

    def next_token():
        cache.truncate(length - 1)
        model(tokens[:, -1:], cache)

    ratios = held_against(
        lambda: [passes(lambda: model(tokens), 0.1), passes(next_token, 0.1)], config, batch, length
    )
    print("{}, expected / measured: forward {:.2f}, next token {:.2f}".format(preset, *ratios))
    assert all(0.7 <= ratio <= 1.3 for ratio in ratios)


@pytest.mark.slow
@pytest.mark.alone
def test_a_slice_stands_for_the_whole(monkeypatch):
    """Two of six blocks, an eighth of the head and two of three sequences: a forward pass within 30 %."""
    config = dataclasses.replace(gpt2cy.GPTConfig.preset("medium"), vocab_size=4096)
    batch, length = 3, 100
    model = gpt2cy.GPT(config, seed=0)
    tokens = np.arange(batch * length).reshape(batch, length) % config.vocab_size
    block = 4 * dataclasses.replace(config, n_layers=1).parameter_counts()["h.0"]
    monkeypatch.setattr(machine, "beyond_caches", lambda: 2 * block)
    monkeypatch.setattr(plan, "_HEAD_BYTES", 512 * 4 * 200)
    monkeypatch.setattr(plan, "_MOST_ROWS", 200)
    small = plan._slice(config, 2, length).config
    assert (small.n_layers, small.vocab_size) == (2, 512)
    (forward,) = held_against(lambda: [passes(lambda: model(tokens), 0.1)], config, batch, length)
    print(f"a slice: expected / measured: {forward:.2f}")
    assert 0.7 <= forward <= 1.3


def held_against(measure, config, batch, length):
    """The plan's times over those measured, as many as there are.

    By one thread, since a team is left alone for a while when another program takes one of its processors.
    A core that is shared may run at two speeds, each for tenths of a second: plans and passes take turns, and
    the best of either counts.
    """
    gpt2cy.set_num_threads(1)
    expected, measured = [], []
    for _ in range(12):
        expected.append([one.seconds for one in plan.expect(config, batch, length, seconds=0.1)])
        measured.append(measure())
    best = np.min(measured, axis=0)
    return np.min(expected, axis=0)[: len(best)] / best


def passes(call, seconds):
    """Seconds of a call, the mean of the fastest quarter of those made in `seconds`; three at least."""
    times, begin = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.fmean(profiling.fastest_quarter(sorted(times)))
