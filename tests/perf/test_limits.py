# SPDX-License-Identifier: Apache-2.0
"""The roofline and the limits of the machine that it is made of."""

import json
import os
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
from running import HAS_COMPILER, check_figures, run

import gpt2cy

CONFIG = gpt2cy.GPTConfig(50, 12, 3, 2, 40, n_inner=20)


def counted_forward(config, lengths, past):
    """Flops of a forward pass, counted one by one: each matrix of the model, each key that a query sees."""
    shapes = config.parameter_shapes()
    matrices = [shape for name, shape in shapes.items() if name.startswith("h.") and len(shape) == 2]
    matrices.append((config.n_embd, config.vocab_size))
    flops = sum(2 * sum(lengths) * k * n for k, n in matrices)
    for length in lengths:
        for position in range(past, past + length):
            flops += config.n_layers * (position + 1) * 2 * 2 * config.n_embd
    return flops


@pytest.mark.parametrize("tied", [False, True])
def test_the_roofline_counts_every_product(script, tied):
    roofline = script("roofline")
    config = gpt2cy.GPTConfig(50, 12, 3, 2, 40, n_inner=20, tie_weights=tied)
    for lengths, past in (([7], 0), ([3, 1, 9], 0), ([1, 1], 30)):
        assert roofline.forward(config, lengths, past).flops == counted_forward(config, lengths, past)
    weights = sum(int(np.prod(shape)) for shape in config.parameter_shapes().values())
    looked_up = (50 + 40) * 12 if not tied else 40 * 12
    assert roofline.weight_bytes(config) == 4 * (weights - looked_up)


def test_the_roofline_of_the_released_model(script):
    roofline, config = script("roofline"), gpt2cy.GPTConfig.preset("gpt2")
    assert [round(roofline.forward(config, [t]).flops / 1e9, 1) for t in (16, 64, 256)] == [4.0, 15.9, 64.5]
    assert round(roofline.weight_bytes(config) / 1e6) == 495
    assert (
        roofline.decode(config, 1, 900).bytes - roofline.decode(config, 1, 0).bytes == 2 * 12 * 900 * 768 * 4
    )


def test_the_roofline_of_a_prompt(script):
    """One token: the same as forward. More: what the last block and the head leave out."""
    roofline = script("roofline")
    assert roofline.next_logits(CONFIG, [1]) == roofline.forward(CONFIG, [1])
    whole, last = roofline.forward(CONFIG, [9]), roofline.next_logits(CONFIG, [9])
    width, inner = CONFIG.n_embd, CONFIG.inner
    left_out = 2 * 8 * (width * width + width * width + 2 * width * inner + width * CONFIG.vocab_size)
    assert whole.flops - last.flops == left_out + 4 * width * sum(range(1, 9))
    assert whole.bytes == last.bytes


def test_work(script):
    work = script("roofline").Work(flops=6e9, bytes=1e9)
    assert work.seconds(peak=2, bandwidth=10) == 3 and work.bound(2, 10) == "compute"
    assert work.seconds(peak=100, bandwidth=10) == 0.1 and work.bound(100, 10) == "memory"


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_limits(tmp_path):
    output = tmp_path / "limits.json"
    done = run("limits", "--quick", "--threads", "1,2", "--output", output)
    assert done.returncode == 0, done.stderr
    found = {row["limit"]: row for row in json.loads(output.read_text())["rows"]}
    isa = next(name for name in found if name.startswith("fma/")).split("/")[1]
    for name in (f"fma/{isa}/1", f"fma/{isa}/2", "read/l2/1", "read/dram-4k/2", "read/dram-2m/2"):
        check_figures(found[name])
    assert found["read/l2/1"]["median"] > 1.5 * found["read/dram-4k/1"]["median"]  # some seven times as fast


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_limits_refuse_nonsense(script):
    limits = script("limits").Limits()
    try:
        for request, message in (
            ("", "empty request"),
            ("rob bank", "no such request"),
            ("fma", "wrong number of words"),
            ("fma mmx 1 0.01", "ISA"),
            (f"fma {limits.isas[-1]} 0 0.01", "THREADS"),
            (f"read {limits.isas[-1]} 3k 1024 1 0.01", "PAGES"),
            (f"read {limits.isas[-1]} 4k 1000 1 0.01", "BYTES"),
        ):
            with pytest.raises(script("limits").NoLimits, match=message):
                limits.ask(request)
        assert limits.ask(f"divide {limits.isas[0]} 1 0.001")["rate"] > 0
        assert limits.level_of(1, 1) == "l2" and limits.level_of(1 << 50, 1) == "dram-2m"
        sizes = [limits.working_set(level, 2) for level in ("l2", "l3", "dram-4k")]
        assert sizes == sorted(sizes) and sizes[2] > limits.caches["l3"]
    finally:
        limits.close()
    with pytest.raises(script("limits").NoLimits, match="its process has ended"):
        script("limits").Limits.ask(
            SimpleNamespace(
                process=subprocess.Popen(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ),
            "isas",
        )


@pytest.mark.skipif(not HAS_COMPILER or os.uname().machine != "x86_64", reason="reads x86-64 assembler")
def test_the_loops_of_the_limits_are_what_they_say(script, tmp_path):
    """Fused multiply-adds of each width, chains in registers: as many as CHAINS says."""
    limits = script("limits")
    listing = tmp_path / "limits.s"
    subprocess.run(["cc", *limits.FLAGS, "-S", limits.SOURCE, "-o", listing], check=True)
    text = listing.read_text()
    for isa, register, chains in (("avx2", "ymm", 14), ("avx512", "zmm", 24)):
        body = text.split(f"\n{isa}_fma:", 1)[1].split(".size", 1)[0]
        fused = [
            line for line in body.splitlines() if "vfmadd" in line and register in line and "(" not in line
        ]
        assert len(fused) == chains


def test_without_a_compiler_there_are_no_limits(script):
    with pytest.raises(script("limits").NoLimits, match="no C compiler 'no-such-cc'"):
        script("limits").Limits("no-such-cc")


def test_cache_sizes(script, tmp_path):
    sizes = script("limits").cache_sizes
    assert sizes(tmp_path) == {"l2": 1 << 20, "l3": 32 << 20}
    for index, level, size in (("index0", "1", "32K"), ("index2", "2", "1280K"), ("index3", "3", "48M")):
        (tmp_path / index).mkdir()
        (tmp_path / index / "level").write_text(level + "\n")
        (tmp_path / index / "size").write_text(size + "\n")
    (tmp_path / "index4").mkdir()
    assert sizes(tmp_path) == {"l2": 1280 << 10, "l3": 48 << 20}


def test_a_meter_takes_the_mean_around_each_round(script):
    values = iter([10.0, 20.0, 40.0])
    meter = script("limits").Meter(SimpleNamespace(measure=lambda *_: next(values)), ["fma/x/1", "fma/x/1"])
    for _ in range(3):
        meter.take()
    assert meter.during("fma/x/1") == [15.0, 30.0]
    assert meter.summary()["fma/x/1"]["median"] == 20.0
    work = script("roofline").Work(flops=30e6, bytes=0)
    row = script("bench").against_roofline(work, [4.0, 2.0], meter, "fma/x/1", None)
    assert row["share"]["rounds"] == [0.5, 0.5] and row["roofline"] == 1.5 and row["bound"] == "compute"
