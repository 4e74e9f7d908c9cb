# SPDX-License-Identifier: Apache-2.0
"""What the tests of commands share: a model of bytes, the command in this process and in one of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpt2cy
from gpt2cy import cli

PACKAGE_PARENT = str(Path(gpt2cy.__file__).parents[1])


@pytest.fixture(scope="session")
def folder(build, tmp_path_factory):
    """A saved model that reads bytes; its texts differ with every prompt."""
    target = tmp_path_factory.mktemp("bytes") / "model"
    build(256, 32, 2, 2, 64, tie_weights=True).save_pretrained(target)
    return target


@pytest.fixture(scope="session")
def lm(folder):
    return gpt2cy.load(folder)


@pytest.fixture
def run(capsys):
    """Run the command: exit code, stdout, stderr."""

    def call(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def start():
    """Start Python in a process of its own, on the package that the tests imported."""

    def call(*arguments, stdin=None, **environment):
        environment = {**os.environ, "PYTHONPATH": PACKAGE_PARENT, "PYTHONIOENCODING": "utf-8", **environment}
        command = [sys.executable, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdin=stdin, stdout=pipe, stderr=pipe)

    return call


@pytest.fixture(scope="session")
def write_lines():
    """Write objects as JSON Lines."""

    def write(path, objects):
        path.write_text("".join(json.dumps(value) + "\n" for value in objects))
        return path

    return write


@pytest.fixture(scope="session")
def read_lines():
    """Read JSON Lines; each line must end."""

    def read(text):
        assert text == "" or text.endswith("\n")
        return [json.loads(line) for line in text.splitlines()]

    return read


@pytest.fixture(scope="session")
def assert_one_line():
    """Assert that an error is one line that holds some parts."""

    def check(command, err, *parts):
        assert err.startswith(f"gpt2cy {command}: error: ")
        assert err.count("\n") == 1 and err.endswith("\n")
        for part in parts:
            assert str(part) in err

    return check
