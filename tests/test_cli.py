# SPDX-License-Identifier: Apache-2.0
"""The gpt2cy command: what it prints, on what it prints it, and its exit codes."""

import functools
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpt2cy
from gpt2cy import cli, demo

EXAMPLES = Path(__file__).parents[1] / "examples"
PACKAGE_PARENT = str(Path(gpt2cy.__file__).parents[1])
FORWARD = """\
  Input: [1, 16]
  Output: [1, 16, 512] (logits over vocabulary)
"""


def run(*arguments, **environment):
    """Run Python on the package that the tests imported; output as bytes, for its encoding matters."""
    environment = {**os.environ, "PYTHONPATH": PACKAGE_PARENT, "PYTHONIOENCODING": "utf-8", **environment}
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True)


@pytest.fixture
def fast(monkeypatch):
    """Time each cell by three calls."""
    monkeypatch.setattr(demo, "milliseconds", functools.partial(demo.milliseconds, seconds=0))


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_demo_small(fast, capsys):
    assert cli.main(["demo", "--up-to", "small"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("GPT-2 class models on the CPU\n\ngpt2cy " + gpt2cy.__version__)
    assert "vocab_size=512, n_embd=128, n_heads=4, n_layers=3, block_size=128" in out
    assert "743,040 (0.74 M)" in out and "3,487,744 (3.49 M)" in out
    assert out.count("✓ Model created") == 2
    assert FORWARD in out and "✓ Forward pass successful" in out
    assert re.search(r"^  tiny +\S+ +8 +\S+ +25 +\S+\* +150$", out, re.MULTILINE)
    assert re.search(r"^  small +\S+ +15 +\S+ +50 +\S+ +300$", out, re.MULTILINE)
    assert "* tiny has 128 positions; here block_size=256" in out
    assert "another machine (M1 Pro, 8 fast cores, Rust, batch 1)" in out
    assert out.endswith("\nAll tests completed successfully!\n")
    assert not re.search(r"[^\n -~✓]", out)  # no colour, no control characters


@pytest.mark.slow
def test_whole_demo():
    done = run("-m", "gpt2cy", "demo")
    out = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    for count in ("743,040", "3,487,744", "11,139,584", "163,087,441 (163.09 M)"):
        assert f"Parameters: {count}" in out
    assert out.count("✓ Model created") == 4
    assert re.search(r"^  gpt2-small +\S+ +400 +\S+ +1500 +\S+ +8000$", out, re.MULTILINE)
    assert out.endswith("All tests completed successfully!\n")


@pytest.mark.parametrize("command", [["-m", "gpt2cy", "demo"], [EXAMPLES / "model_architecture.py"]])
def test_demo_in_a_process(command, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"Call me Ishmael. Some years ago")
    done = run(*command, "--up-to", "tiny", "--file", text)
    assert (done.returncode, done.stderr) == (0, b"")
    assert FORWARD in done.stdout.decode() and "Text: 'Call me Ishmael.'" in done.stdout.decode()


def test_console_script_is_main():
    """The installed command and `python -m gpt2cy` are one function."""
    script = Path(sys.executable).with_name("gpt2cy")
    if not script.exists():
        pytest.skip("gpt2cy is not installed with its command")
    installed = subprocess.run([script, "--version"], capture_output=True)
    assert installed.stdout == run("-m", "gpt2cy", "--version").stdout


def test_encoding_without_the_mark():
    done = run("-m", "gpt2cy", "demo", "--up-to", "tiny", "--text", "Ça va, été?", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"  [ok] Forward pass successful" in done.stdout


def test_short_text_is_used_whole(fast, capsys):
    assert cli.main(["demo", "--up-to", "tiny", "--text", "Hello"]) == 0
    out = capsys.readouterr().out
    assert "The text is shorter than 16 bytes: all of it is used." in out
    assert "Token ids: 72 101 108 108 111\n" in out
    assert "Output: [1, 5, 512] (logits over vocabulary)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", ""], "argument --text: expected at least one character"),
        (["--file", "{folder}/missing"], "missing': No such file or directory"),
        (["--file", "{folder}"], "argument --file: cannot read"),
        (["--file", "{folder}/empty"], "empty' is empty"),
        (["--text", "a", "--file", "{folder}/full"], "not allowed with argument"),
        (["--up-to", "huge"], "invalid choice: 'huge'"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, capsys):
    (tmp_path / "empty").touch()
    (tmp_path / "full").write_text("text")
    with pytest.raises(SystemExit) as leaving:
        cli.main(["demo", *(argument.format(folder=tmp_path) for argument in arguments)])
    assert leaving.value.code == 2
    out, err = capsys.readouterr()
    assert message in err and out == ""


def test_no_command_shows_help(capsys):
    assert cli.main([]) == 2
    assert "demo" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["show-config", "--help"]])
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as leaving:
        cli.main(arguments)
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith("usage: gpt2cy")


def test_version():
    assert run("-m", "gpt2cy", "--version").stdout.decode().strip() == f"gpt2cy {gpt2cy.__version__}"


def test_show_config(capsys):
    assert cli.main(["show-config"]) == 0
    shown = capsys.readouterr().out
    gpt2cy.show_config()
    assert shown == capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "parameter_formula",
            lambda config: 1,
            "743,040 parameters, 743,040 in its arrays, 1 by the formula",
        ),
        ("_TOLERANCE", 0.0, "differ from the float64 reference by"),
    ],
)
def test_failed_check(name, value, message, fast, capsys, monkeypatch):
    monkeypatch.setattr(demo, name, value)
    assert cli.main(["demo", "--up-to", "tiny"]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("gpt2cy demo: FAILED: tiny: ") and message in err
    assert "successfully!" not in out


@pytest.mark.parametrize("spoil", ["shape", "nan", "batch"])
def test_wrong_logits_fail(spoil, fast, capsys, monkeypatch):
    class Spoiled(gpt2cy.GPT):
        def __call__(self, tokens):
            logits = super().__call__(tokens)
            if spoil == "shape":
                return logits[:, :-1]
            logits[:, 3, 5] = {"nan": float("nan"), "batch": logits[:, 3, 5] + 1e-6 * len(tokens)}[spoil]
            return logits

    monkeypatch.setattr(demo, "GPT", Spoiled)
    assert cli.main(["demo", "--up-to", "tiny"]) == 1
    expected = {"shape": "logits of shape [1, 15, 512]", "nan": "not finite", "batch": "changes the bits"}
    assert expected[spoil] in capsys.readouterr().err


def test_out_of_memory(capsys, monkeypatch):
    def refuse(config, seed):
        raise MemoryError("config: too large")

    monkeypatch.setattr(demo, "GPT", refuse)
    assert cli.main(["demo"]) == 1
    assert "FAILED: config: too large (a smaller --up-to needs less memory)" in capsys.readouterr().err


def test_reader_that_goes_away():
    """`gpt2cy show-config | true` ends without a traceback."""
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    command = [sys.executable, "-m", "gpt2cy", "show-config"]
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_on_a_terminal(environment, coloured, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    demo.Page(stream).done("right")
    assert stream.getvalue() == ("  \x1b[32m✓\x1b[0m right\n" if coloured else "  ✓ right\n")


def test_import_does_not_reach_the_command_line():
    names = "{'argparse', 'gpt2cy.cli', 'gpt2cy.demo'}"
    code = (
        f"import sys, numpy; had = set(sys.modules); import gpt2cy; print({names} & (set(sys.modules) - had))"
    )
    assert run("-c", code).stdout.decode().strip() == "set()"
