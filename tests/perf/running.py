# SPDX-License-Identifier: Apache-2.0
"""Run a script of perf/, and look at the figures that it writes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gpt2cy

PERF = Path(__file__).parents[2] / "perf"
HAS_COMPILER = shutil.which(os.environ.get("CC", "cc").split()[0]) is not None


def run(name, *arguments, python_path=()):
    """Run a script of perf/ with the package that is being tested."""
    path = os.pathsep.join([str(Path(gpt2cy.__file__).parents[1]), *map(str, python_path)])
    return subprocess.run(
        [sys.executable, PERF / f"{name}.py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def forward(*arguments, python_path=()):
    return run("forward", *arguments, python_path=python_path)


def check_figures(figures):
    assert 0 < figures["low"] <= figures["q1"] <= figures["median"] <= figures["q3"] <= figures["high"]
