# SPDX-License-Identifier: Apache-2.0
"""The examples run and say what they promise. (test_cli.py runs model_architecture.py.)"""

import re
import runpy
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_look_inside(capsys):
    runpy.run_path(str(EXAMPLES / "look_inside.py"))
    out = capsys.readouterr().out
    assert "743,040 parameters" in out
    assert "h.0.attn.c_attn.weight (128, 384)" in out
    assert "positions cached: [24]" in out
    assert "same bits without the cache: True" in out


def run(name, capsys, monkeypatch, *arguments):
    """Run an example as a program; what it printed."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_generate(capsys, monkeypatch):
    out = run("generate.py", capsys, monkeypatch)
    assert "seed 1, ended by length" in out
    samples = re.findall(r"^sample (\d): (.+)$", out, re.MULTILINE)
    assert [number for number, _ in samples] == ["0", "1", "2"] and len({text for _, text in samples}) == 3
    assert "the same without the cache: True" in out


def test_score(capsys, monkeypatch):
    out = run("score.py", capsys, monkeypatch)
    assert len(re.findall(r"bits, rank +\d+; likeliest '", out)) == len("To be, or not to be") - 1
    perplexity = float(re.search(r"perplexity ([\d.]+), [\d.]+ bits per byte", out)[1])
    assert 200 < perplexity < 320  # of 256 equally likely bytes
    assert "words: To (2 tokens), be, (4 tokens)" in out
    assert len(re.findall(r"^', .*': -[\d.]+, -[\d.]+ a token$", out, re.MULTILINE)) == 2


def test_examples_take_a_model(capsys, monkeypatch, build, tmp_path):
    build(256, 32, 2, 2, 64, tie_weights=True).save_pretrained(tmp_path)
    assert "ended by" in run("generate.py", capsys, monkeypatch, tmp_path, "It was")
    assert run("score.py", capsys, monkeypatch, tmp_path, "It was").count("bits, rank") == 5
