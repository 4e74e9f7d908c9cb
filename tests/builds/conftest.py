# SPDX-License-Identifier: Apache-2.0
"""Build wheels of this tree in any way, install them in fresh environments, run tests there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def clean(environment):
    """This process's environment without what would change a build or a run, and with `environment`."""
    kept = {name: value for name, value in os.environ.items() if not re.match("GPT2CY_|OMP_|PYTHON", name)}
    return kept | environment


def run(*command, check=True, **environment):
    """Run a command in no folder of ours; what it printed."""
    done = subprocess.run(
        [*map(str, command)],
        env=clean(environment),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
    )
    assert not check or done.returncode == 0, done.stdout
    return done.stdout


class Environment:
    """A virtual environment of its own in a folder, made by an interpreter."""

    def __init__(self, folder, interpreter=sys.executable):
        self.folder = folder
        run(interpreter, "-m", "venv", folder / "venv")
        self.python = folder / "venv/bin/python"

    def pip(self, *arguments, check=True, **environment):
        return run(self.python, "-m", "pip", *arguments, check=check, **environment)

    def build(self, tree=None, check=True, **environment):
        """The wheel of a fresh copy of the tree, or of another one, and what was said."""
        tree = tree or copy_of_the_tree(self.folder / "tree")
        wheels = self.folder / "wheels"
        said = self.pip("wheel", "-v", "--no-deps", "-w", wheels, tree, check=check, **environment)
        return next(wheels.glob("*.whl"), None), said

    def install(self, wheel, *others):
        self.pip("install", "-q", "--only-binary=numpy,hypothesis", f"{wheel}[test]", *others)

    def run(self, code, **environment):
        return run(self.python, "-c", code, **environment)

    def pytest(self, *arguments):
        """Run this tree's tests of the installed package."""
        options = ["-q", f"--rootdir={ROOT}", "-c", ROOT / "pyproject.toml"]
        return run(self.python, "-m", "pytest", *options, *arguments)


def copy_of_the_tree(target):
    target.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, target)
    shutil.copytree(ROOT / "gpt2cy", target / "gpt2cy", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return target


@pytest.fixture
def environment(tmp_path):
    """Make an Environment for an interpreter; called once in a test."""

    def make(interpreter=sys.executable):
        return Environment(tmp_path / "environment", interpreter)

    return make


@pytest.fixture(scope="session")
def abi3(tmp_path_factory):
    """The wheel that is published, one for every Python with a GIL: WHEEL names it, or it is built here."""
    if "WHEEL" in os.environ:
        return Path(os.environ["WHEEL"])
    return Environment(tmp_path_factory.mktemp("abi3")).build(GPT2CY_ABI3="1")[0]
