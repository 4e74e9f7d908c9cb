# SPDX-License-Identifier: Apache-2.0
"""The examples run and say what they promise. (test_cli.py runs model_architecture.py.)"""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import gpt2cy

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(capsys, monkeypatch):
    """Run an example in this process: what it printed."""

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_look_inside(run):
    out = run("look_inside.py")
    assert "743,040 parameters" in out
    assert "h.0.attn.c_attn.weight (128, 384)" in out
    assert "positions cached: [24]" in out
    assert "same bits without the cache: True" in out


def part(out, title):
    """The lines of break_it.py under a title."""
    return out.partition(f"\n{title}\n")[2].partition("\n\n")[0]


def test_break_it(run):
    out = run("break_it.py")
    for title, *expected in [
        ("NO CAUSAL MASK", "the logits of 0 earlier positions with the mask", "57 earlier positions without"),
        ("NO SCALING OF SCORES", "2.8 times as large"),
        ("EPSILON 0", "eps: expected a finite number > 0", "epsilon 1e-05: 58 of 58", "epsilon 0: 0 of 58"),
        ("ERF GELU", "another favourite at 0%"),
        ("NO MAXIMUM SUBTRACTED", "another favourite at 0%", "with: 58 of 58", "without: 0 of 58"),
        ("HEADS SWAPPED", "All shapes fit"),
        ("NO POSITIONS", "six times one token, without positions: its logits differ by "),
        ("HEADS THAT DO NOT DIVIDE", "divides n_embd (32), got 3; nearest valid: 2 and 4", "the twin: "),
        ("IDS OUT OF RANGE", "id 256 at [3] is outside", "id -1 at [3] is", "row -1 is row 255: True"),
    ]:  # fmt: skip
        for words in expected:
            assert words in " ".join(part(out, title).split())
    assert ": no error" not in out

    def moved(title):
        return float(re.search(r"logits move by up to (\S+);", part(out, title))[1])

    assert moved("NO MAXIMUM SUBTRACTED") < 1e-12 < moved("ERF GELU") < 0.1
    for title in ("NO CAUSAL MASK", "NO SCALING OF SCORES", "HEADS SWAPPED", "NO POSITIONS"):
        assert moved(title) > 1
    assert float(re.search(r"without positions: its logits differ by (\S+)", out)[1]) < 1e-12
    assert float(re.search(r"with positions: its logits differ by (\S+)", out)[1]) > 1


def test_break_it_with_a_model(run, build, tmp_path):
    build(256, 36, 3, 2, 80, tie_weights=True).save_pretrained(tmp_path)
    out = run("break_it.py", tmp_path, "--text", "Anything else")
    assert "13 tokens; loss " in out and "divides n_embd (36), got 5" in out


def test_induction_head(run):
    """The studies find the two heads that were made by hand, and nothing else."""
    out = run("induction_head.py")
    assert "it goes on with SOFBIR\n" in out and "E 100% A 100% D 100%" in out
    assert "previous score: most in block 0, head 0: 1.00" in out
    assert "induction score: most in block 1, head 0: 1.00" in out
    parts = dict(re.findall(r"(attn \d|mlp \d|embed) (-?[\d.]+)", out))
    assert float(parts.pop("attn 1")) > 5 > 10 * max(abs(float(part)) for part in parts.values())
    left_out = [float(value) for value in re.findall(r"left out: (-?[\d.]+)", out)]
    assert left_out[0] > -0.01 < left_out[2] and left_out[4] > -0.01
    assert left_out[1] < -2 > left_out[3]
    assert out.count("in S at 5\n") == 2
    assert "without notes it goes on with" in out and "with SOFBIR" not in out.partition("without notes")[2]


def test_induction_head_draws(run, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    assert "saved " in run("induction_head.py", "--out", tmp_path)
    pictures = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {"notes.png", "induction.png", "lens.png", "ablation.png", "patching.png"} == set(pictures)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())


def test_trace_a_forward(run):
    out = run("trace_a_forward.py", "--text", "A cat.")
    assert "'A cat.': 6 tokens" in out and "'A'=65 ' '=32" in out
    for line in (
        r"embed +\[6, 64\]",
        r"attn.q +\[4, 6, 16\]",
        r"attn.weights +\[4, 6, 6\]",
        r"mlp.hidden +\[6, 256\]",
        r"logits +\[6, 256\]",
    ):
        assert re.search(rf"^  {line} +mean [-+ .\d]+ std ", out, re.MULTILINE)
    assert re.search(r"^  ln_1 .*std +1\.0", out, re.MULTILINE)
    assert re.search(r"^  attn.weights .* \+0.00 to +\+1.00  \[H, T, T\]: softmax", out, re.MULTILINE)
    assert re.search(r"^  h.1: ('.+'@\d \d+%(, )?){4}$", out, re.MULTILINE)
    assert "block 1: attn " in out
    assert "the same bits as without looking: True" in out


def test_experiment(run, tmp_path):
    out = run("experiment.py")
    for values in ({"n_embd": 64}, {"n_embd": 384}, {"n_heads": 16}, {"n_layers": 8}):
        sizes = {"vocab_size": 512, "n_embd": 128, "n_heads": 4, "n_layers": 4, "block_size": 64, **values}
        value, count = next(iter(values.values())), gpt2cy.GPTConfig(**sizes).n_params
        assert re.search(rf"^ +{value} +{count:,} +[\d.]+ +[\d.]+ +[\d.]+$", out, re.MULTILINE)


def test_experiment_draws(run, tmp_path):
    pytest.importorskip("matplotlib")
    assert "drawn: " in run("experiment.py", "--plot", tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory():
    """In a process of its own: what is resident in this one depends on the tests before."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, EXAMPLES / "memory.py"], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^(tiny|small|medium) +(\S+) +(\S+) +(\S+) +(\S+) +(\S+)$", done.stdout, re.MULTILINE)
    assert [name for name, *_ in rows] == ["tiny", "small", "medium"]
    for name, *numbers in rows:
        weights, grown, planned, peak, left = map(float, numbers)
        assert weights == pytest.approx(
            gpt2cy.GPTConfig.preset(name).memory_plan()["weights"] / 2**20, abs=0.06
        )
        assert abs(grown - weights) <= 0.1 * weights + 4
        assert abs(peak - planned) <= 0.1 * planned + 4
        assert left < 8


def test_generate(run):
    out = run("generate.py")
    assert "seed 1, ended by length" in out
    samples = re.findall(r"^sample (\d): (.+)$", out, re.MULTILINE)
    assert [number for number, _ in samples] == ["0", "1", "2"] and len({text for _, text in samples}) == 3
    assert "the same without the cache: True" in out


def test_score(run):
    out = run("score.py")
    assert len(re.findall(r"bits, rank +\d+; likeliest '", out)) == len("To be, or not to be") - 1
    perplexity = float(re.search(r"perplexity ([\d.]+), [\d.]+ bits per byte", out)[1])
    assert 200 < perplexity < 320  # of 256 equally likely bytes
    assert "words: To (2 tokens), be, (4 tokens)" in out
    assert len(re.findall(r"^', .*': -[\d.]+, -[\d.]+ a token$", out, re.MULTILINE)) == 2


def test_examples_take_a_model(run, build, tmp_path):
    build(256, 32, 2, 2, 64, tie_weights=True).save_pretrained(tmp_path)
    assert "ended by" in run("generate.py", tmp_path, "It was")
    assert run("score.py", tmp_path, "It was").count("bits, rank") == 5
