# SPDX-License-Identifier: Apache-2.0
"""The modules of perf/, which is a folder of scripts, not a package."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from running import PERF


@pytest.fixture(scope="module")
def script():
    """Import a module of perf/."""
    sys.path.insert(0, str(PERF))
    try:
        yield import_module
    finally:
        sys.path.remove(str(PERF))


@pytest.fixture(scope="module")
def harness(script):
    return script("harness")
