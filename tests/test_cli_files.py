# SPDX-License-Identifier: Apache-2.0
"""gpt2cy info and gpt2cy convert: what they print, on what, and their exit codes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpt2cy
from gpt2cy import cli

PACKAGE_PARENT = str(Path(gpt2cy.__file__).parents[1])
VOCAB = {"h": 0, "e": 1, "l": 2, "o": 3, "Ġ": 4, "he": 5, "ll": 6, "<|endoftext|>": 7}
CONFIG = gpt2cy.GPTConfig(11, 12, 2, 3, 16, tie_weights=True)


def add_tokenizer(folder, vocab=VOCAB):
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("h e\nl l\n", encoding="utf-8")


def change(folder, **fields):
    """Change fields of config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def overwrite(folder, value, at=-4):
    """Overwrite one float32 of the weights' file, by default the last."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[at or None : at + 4 or None] = np.float32(value).tobytes()
    path.write_bytes(data)


@pytest.fixture
def folder(build, tmp_path):
    """A saved model with a tokenizer beside it; its vocabulary is padded."""
    build(*(getattr(CONFIG, name) for name in ("vocab_size", "n_embd", "n_heads", "n_layers", "block_size")),
          tie_weights=True).save_pretrained(tmp_path / "model")  # fmt: skip
    add_tokenizer(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def run(capsys):
    """Run the command: exit code, stdout, stderr."""

    def call(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


def assert_one_line(name, err, *parts):
    assert err.startswith(f"gpt2cy {name}: error: ")
    assert err.count("\n") == 1 and err.endswith("\n")
    for part in parts:
        assert str(part) in err


# ---- info ------------------------------------------------------------------------------------------------


def test_info(folder, run):
    code, out, err = run("info", folder)
    assert (code, err) == (0, "")
    for part in (
        "safetensors, 1 file, ",
        "F32 (40 tensors)",
        "vocab_size=11, n_embd=12, n_heads=2, n_layers=3, block_size=16",
        "Head:         tied to wte",
        f"{CONFIG.n_params:,} (3 blocks of 1,884, wte 132, wpe 192, ln_f 24, lm_head 0)",
        "one sequence of 16 tokens",
        "byte-level BPE of vocab.json and merges.txt, 8 ids, eos_id=7",
        "note: ids from 8 to 10 have no token: a padded vocabulary",
    ):
        assert part in out
    assert "checked" not in out


def test_info_json(folder, run):
    code, out, err = run("info", folder, "--json", "--check")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["config"]["n_layers"] == 3 and found["checkpoint"]["dtypes"] == {"F32": 40}
    assert found["checkpoint"]["n_params"] == CONFIG.n_params == sum(found["parameters"].values())
    assert found["memory_plan"] == CONFIG.memory_plan()
    assert found["tokenizer"]["special_tokens"] == {"<|endoftext|>": 7}
    assert found["problems"] == [] and len(found["notes"]) == 1


def test_info_needs_no_library_of_tokenizers(folder, run, monkeypatch):
    for library in ("tokenizers", "tiktoken"):
        monkeypatch.setitem(sys.modules, library, None)
    assert "8 ids" in run("info", folder)[1]


@pytest.mark.parametrize(("vocab_size", "said"), [(256, "bytes (256 ids)"), (255, "none found")])
def test_info_without_a_tokenizer(tmp_path, run, vocab_size, said):
    gpt2cy.GPT(gpt2cy.GPTConfig(vocab_size, 12, 2, 1, 16, lm_head_bias=False)).save_pretrained(tmp_path)
    code, out, _ = run("info", tmp_path)
    assert code == 0
    assert f"Tokenizer:    {said}" in out and "Head:         of its own (untied)" in out


def test_info_notes_an_eos_outside_the_vocabulary(folder, run):
    change(folder, eos_token_id=11)
    code, out, _ = run("info", folder)
    assert code == 0
    assert "note: config.json: eos_token_id 11 is outside the vocabulary of 11: ignored" in out


def test_check_finds_nothing_wrong(folder, run):
    code, out, err = run("info", folder, "--check")
    assert (code, err) == (0, "")
    assert "checked: 40 tensors, all finite and of the right shape\n" in out


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_check_finds_numbers_that_are_not_finite(folder, run, value):
    overwrite(folder, value)
    assert run("info", folder)[0] == 0
    code, out, err = run("info", folder, "--check")
    assert code == 1 and "checked" not in out
    assert "not finite, the first at [" in err and err.startswith("gpt2cy info: PROBLEM: ")
    found = json.loads(run("info", folder, "--check", "--json")[1])
    assert len(found["problems"]) == 1
    assert err == f"gpt2cy info: PROBLEM: {found['problems'][0]}\n"


def test_check_names_the_tensor_and_the_place(tmp_path, run):
    model = gpt2cy.GPT(CONFIG, seed=0)
    weights = model.state_dict()
    spoilt = np.array(weights["h.1.mlp.c_fc.weight"])
    spoilt[5, 7] = spoilt[9, 1] = np.nan
    model.load_state_dict({**weights, "h.1.mlp.c_fc.weight": spoilt})
    model.save_pretrained(tmp_path)
    code, _, err = run("info", tmp_path, "--check")
    assert code == 1
    assert "h.1.mlp.c_fc.weight: 2 of 576 numbers are not finite, the first at [5, 7]\n" in err


def test_check_lists_what_does_not_fit(folder, run):
    """Shapes that disagree with the configuration: found, so 1; without --check it cannot be read, so 2."""
    change(folder, n_positions=17)
    code, out, err = run("info", folder)
    assert (code, out) == (2, "")
    assert_one_line("info", err, "wpe.weight", 16, 17)
    code, out, err = run("info", folder, "--check", "--json")
    assert code == 1
    assert "wpe.weight" in json.loads(out)["problems"][0] and "wpe.weight" in err


def test_a_tokenizer_that_does_not_fit(folder, run):
    add_tokenizer(folder, {**VOCAB, "x": 11})
    code, out, err = run("info", folder)
    assert code == 1 and "vocab_size=11" in out
    assert "PROBLEM: tokenizer: its vocabulary of 12 ids is larger than the model's of 11" in err


def test_a_tokenizer_that_is_damaged(folder, run):
    (folder / "vocab.json").write_text("{")
    code, _, err = run("info", folder)
    assert code == 1
    assert f"PROBLEM: tokenizer: {folder / 'vocab.json'}: expected JSON" in err


# ---- convert ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["safetensors", "llm.c", "gguf"])
def test_convert(folder, tmp_path, run, same_bits, form):
    if form == "gguf":
        pytest.importorskip("gguf")
    target = tmp_path / "target"
    code, out, err = run("convert", folder, target, "--format", form)
    assert (code, err) == (0, "")
    assert out.startswith(f"{target}: {form}, {CONFIG.n_params:,} parameters")
    ids = [[3, 1, 4, 1, 5, 9, 2, 6]]
    same_bits(gpt2cy.GPT.from_pretrained(folder)(ids), gpt2cy.GPT.from_pretrained(target)(ids))
    assert run("info", target, "--check")[0] == 0


def test_convert_takes_the_tokenizer_along(folder, tmp_path, run):
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    code, out, _ = run("convert", folder / "model.safetensors", tmp_path / "copy", "--json")
    files = ["vocab.json", "merges.txt", "tokenizer_config.json"]
    assert code == 0
    assert json.loads(out) == {
        "destination": str(tmp_path / "copy"),
        "format": "safetensors",
        "n_params": CONFIG.n_params,
        "tokenizer_files": files,
    }
    for name in files:
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()


def test_convert_onto_itself(folder, run):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run("convert", folder, folder)[0] == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_convert_what_a_format_cannot_express(tmp_path, run):
    source = tmp_path / "relu"
    config = gpt2cy.GPTConfig(11, 12, 2, 1, 16, tie_weights=True, activation="relu")
    gpt2cy.GPT(config).save_pretrained(source)
    code, out, err = run("convert", source, tmp_path / "x.bin", "--format", "llm.c")
    assert (code, out) == (2, "")
    assert_one_line("convert", err, "relu")
    assert not (tmp_path / "x.bin").exists()


# ---- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["info", "convert"])
@pytest.mark.parametrize("spoil", ["missing", "empty folder", "no model", "cut short", "text"])
def test_one_line_and_code_2(folder, tmp_path, run, command, spoil):
    path = folder / "model.safetensors"
    if spoil == "missing":
        folder = tmp_path / "nowhere"
    elif spoil == "empty folder":
        folder = tmp_path / "empty"
        folder.mkdir()
    elif spoil == "no model":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-9] if spoil == "cut short" else b"version https://git-lfs.x\n")
    target = [tmp_path / "x", "--format", "llm.c"] if command == "convert" else []
    code, out, err = run(command, folder, *target)
    assert (code, out) == (2, "")
    assert_one_line(command, err, folder)
    assert "Traceback" not in err and not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_written(folder, tmp_path, run):
    (tmp_path / "file").touch()
    code, _, err = run("convert", folder, tmp_path / "file" / "below")
    assert code == 2
    assert_one_line("convert", err, "file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info"], "the following arguments are required: SOURCE"),
        (["info", ""], "argument SOURCE: expected a path, got an empty text"),
        (["info", "x", "y"], "unrecognized arguments: y"),
        (["convert", "x"], "the following arguments are required: DEST"),
        (["convert", "x", ""], "argument DEST: expected a path"),
        (["convert", "x", "y", "--format", "onnx"], "invalid choice: 'onnx'"),
        (["convert", "x", "y", "--check"], "unrecognized arguments: --check"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    assert leaving.value.code == 2
    out, err = capsys.readouterr()
    assert message in err and out == ""


@pytest.mark.parametrize("command", ["info", "convert"])
def test_hub_options_are_handed_on(command, tmp_path, run, monkeypatch):
    seen = []

    def open_checkpoint(source, **options):
        seen.append((source, options))
        raise FileNotFoundError("seen\n enough")

    monkeypatch.setattr(cli.checkpoints, "open_checkpoint", open_checkpoint)
    monkeypatch.setattr(cli.checkpoints.info, "open_checkpoint", open_checkpoint)
    target = [tmp_path / "x"] if command == "convert" else []
    options = ["--revision", "v2", "--local-files-only", "--cache-dir", "there"]
    code, _, err = run(command, "someone/model", *target, *options)
    assert (code, err) == (2, f"gpt2cy {command}: error: seen enough\n")
    expected = {"revision": "v2", "local_files_only": True, "cache_dir": "there"}
    assert seen == [("someone/model", expected)]


def test_in_a_process(folder):
    """stdout is JSON and nothing else, also with a problem; no traceback on stderr."""
    overwrite(folder, np.nan)
    environment = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    command = [sys.executable, "-m", "gpt2cy", "info", "--json", "--check", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["problems"]) == 1 and "Traceback" not in done.stderr
    shutil.rmtree(folder)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert_one_line("info", done.stderr, folder)
