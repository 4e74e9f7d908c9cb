# SPDX-License-Identifier: Apache-2.0
"""The wheel, built by each compiler, with and without each option, for each Python: the same bits.

PYTHONS="python3.13 /opt/python3.14/bin/python3" names the interpreters; unless set, those on the path.
"""

import ast
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
GOLDEN = [f"{TESTS}/test_bits.py::test_golden_hash"]  # on each instruction set, with 1, 2 and 3 threads
QUICK = [*GOLDEN, TESTS / "test_model.py", "-m", "not slow"]
THREADS = [  # where the GIL is another one, or is waited for at other places
    *QUICK,
    f"{TESTS}/test_bits.py::test_python_threads_at_once",
    f"{TESTS}/test_concurrency.py::test_sub_interpreters_do_not_matter",
    f"{TESTS}/test_concurrency.py::test_an_interpreter_may_end_while_threads_compute",
]
SLOW_CODE = {"GPT2CY_OPTIMISE": "0"}
abi3_group = pytest.mark.xdist_group("abi3")  # one process builds that wheel, once

ABOUT = """
import sys, sysconfig, gpt2cy
gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
print(dict(gpt2cy.show_config(), has_gil=gil, uses_gil=getattr(sys, "_is_gil_enabled", lambda: True)()))
"""


def about(python):
    """(version, whether it is free-threaded), or None if `python` is not a Python that is supported."""
    code = "import sys, sysconfig; print(sys.version_info[:2], sysconfig.get_config_var('Py_GIL_DISABLED'))"
    try:
        said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    version, free = re.fullmatch(r"(\(.*\)) (.*)\n", said).groups()
    version = ast.literal_eval(version)
    return (version, free == "1") if version >= (3, 11) else None


def interpreters():
    asked = os.environ.get("PYTHONS", "").split()
    names = asked or [f"python3.{minor}{free}" for minor in range(11, 20) for free in ("", "t")]
    found = {name: about(name) for name in names}
    unusable = [name for name in asked if found[name] is None]
    if unusable:
        raise SystemExit(f"PYTHONS: expected Python 3.11 or newer, got {' '.join(unusable)}")
    return {name: about for name, about in found.items() if about}


PYTHONS = interpreters()
WITH_GIL = [name for name, (_, free) in PYTHONS.items() if not free]
FREE = [name for name, (_, free) in PYTHONS.items() if free]


def checked(environment, wheel, tests=QUICK):
    """Install the wheel, run the tests; what it says of itself."""
    environment.install(wheel)
    said = environment.run(ABOUT)
    print(said)
    assert " passed" in environment.pytest(*tests)
    return ast.literal_eval(said.splitlines()[-1])


# ---- compilers and options


@pytest.mark.parametrize(
    ("compiler", "options", "build"),
    [
        pytest.param("gcc", {}, "optimised", marks=pytest.mark.slow),
        pytest.param("gcc", SLOW_CODE, "NOT OPTIMISED: -O0", marks=pytest.mark.slow),
        pytest.param("gcc", SLOW_CODE | {"GPT2CY_OPENMP": "0"}, "NOT OPTIMISED: -O0, SERIAL: no OpenMP"),
        pytest.param("clang", {}, "optimised"),
        pytest.param("clang", SLOW_CODE, "NOT OPTIMISED: -O0", marks=pytest.mark.slow),
    ],
    ids=["gcc", "gcc-O0", "gcc-O0-serial", "clang", "clang-O0"],
)
def test_compiler(environment, compiler, options, build):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    environment = environment()
    wheel, said = environment.build(CC=compiler, **options)
    assert "isa_base.c" in said or platform.machine() != "x86_64"
    assert [line for line in said.splitlines() if "warning:" in line and "csrc/" in line] == []
    config = checked(environment, wheel)
    assert config["compiler"].startswith({"gcc": "GCC", "clang": "Clang"}[compiler])
    without_openmp = "NO OPENMP" in said  # this compiler has none
    assert config["build"] == build + without_openmp * ", SERIAL: no OpenMP"
    assert (config["openmp"] is None) == ("SERIAL" in config["build"])


@pytest.mark.slow
def test_a_performance_hint_ends_the_build(environment, tmp_path):
    tree = tmp_path / "tree"
    package = tree / "gpt2cy"
    package.mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copy(ROOT / "gpt2cy/_version.py", package)
    shutil.copytree(ROOT / "gpt2cy/csrc", package / "csrc")
    (package / "__init__.py").touch()
    (package / "hinted.pyx").write_text(
        "cdef void callee() except * nogil:\n    pass\n\ndef caller():\n    with nogil:\n        callee()\n"
    )
    environment = environment()
    for _ in range(2):  # also the second time, when the C is there already
        wheel, said = environment.build(tree, check=False)
        assert wheel is None
        assert "Cython gives performance hints" in said


# ---- interpreters


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_python(environment, python):
    """Its own build; a free-threaded Python stays so, and tests run in many threads at once."""
    environment = environment(python)
    wheel, _ = environment.build()
    config = checked(environment, wheel, THREADS)
    assert config["uses_gil"] == config["has_gil"] == (python in WITH_GIL)
    if python in FREE:
        environment.pip("install", "-q", "pytest-run-parallel>=0.4")
        many = ["test_model.py", "test_bits.py", "test_cache.py", "test_concurrency.py"]
        alone = "not copies_cost_only and not cache_in_use"  # they measure the process's memory, and time
        chosen = [*[TESTS / name for name in many], "-m", "not slow", "-k", alone]
        print(environment.pytest("--parallel-threads=4", *chosen))


@abi3_group
def test_stable_abi(environment, abi3):
    """The wheel that is published, on the Python that built it; see docs/packaging.md for what is checked."""
    assert re.fullmatch(r"gpt2cy-[0-9.]+-cp311-abi3-\w+\.whl", abi3.name)
    names = zipfile.ZipFile(abi3).namelist()
    libraries = [name for name in names if name.endswith(".so")]
    assert len(libraries) > 10
    assert {name.partition(".")[2] for name in libraries} == {"abi3.so"}
    checked(environment(), abi3, THREADS)


@abi3_group
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
@pytest.mark.parametrize("module", ["gemm", "rows", "attention"])
def test_no_loop_takes_the_gil(abi3, tmp_path, module):
    """Cython would take it before each parallel loop in this ABI; see kernels/table.pxd."""
    zipfile.ZipFile(abi3).extractall(tmp_path)
    said = subprocess.check_output(
        ["nm", "-D", "-u", tmp_path / f"gpt2cy/kernels/{module}.abi3.so"], text=True
    )
    wanted = {line.split()[-1] for line in said.splitlines()}
    assert "GOMP_parallel" in {name.partition("@")[0] for name in wanted}
    assert [
        name for name in wanted if re.match("PyGILState|PyEval_(Save|Restore)Thread|PyThreadState_", name)
    ] == []


@pytest.mark.slow
@abi3_group
@pytest.mark.parametrize("python", WITH_GIL)
def test_stable_abi_everywhere(environment, abi3, python):
    checked(environment(python), abi3, THREADS)


@pytest.mark.slow
@pytest.mark.parametrize("python", FREE)
def test_no_stable_abi_without_a_gil(environment, python):
    wheel, said = environment(python).build(check=False, GPT2CY_ABI3="1")
    assert wheel is None
    assert "GPT2CY_ABI3=1: a free-threaded Python has no stable ABI" in said


@pytest.mark.slow
@abi3_group
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="NumPy 1 has no wheels for this Python")
def test_old_numpy(environment, abi3):
    environment = environment()
    environment.install(abi3, "numpy==1.26.4")
    assert environment.run("import numpy; print(numpy.__version__)") == "1.26.4\n"
    assert " passed" in environment.pytest(*GOLDEN)
