# SPDX-License-Identifier: Apache-2.0
"""The C kernels by themselves: csrc/kernels.c, built as setup.py builds them, and under sanitizers."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "perf"))
import csrc

ROOT, CSRC, SETTINGS = csrc.ROOT, csrc.CSRC, csrc.SETTINGS
exhaustive = [pytest.mark.slow, pytest.mark.exhaustive]
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compile a test program with every kernel of a machine, each of which is compiled once; return it."""
    strict = [*SETTINGS["warnings"], "-Werror"]

    @functools.cache
    def kernels(*way):
        return csrc.objects(tmp_path_factory.mktemp("kernels"), *way, strict)

    def build(compiler, optimisation, program="kernels", machine=csrc.MACHINE):
        source, folder = ROOT / "tests/csrc" / f"{program}.c", tmp_path_factory.mktemp(program)
        way = compiler, machine, optimisation
        emulated = [] if machine == csrc.MACHINE else ["-static"]
        return csrc.link(source, kernels(*way), folder, *way, [*strict, *emulated])

    return build


def passes(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" passed, 0 failed\n")
    return done.stdout


@pytest.mark.skipif(os.name != "posix", reason="guard pages by mmap")
@pytest.mark.parametrize(
    ("compiler", "optimisation"),
    [("cc", ("-O3",)), ("cc", ("-O0",)), ("cc", SANITIZED), ("clang", ("-O3",)), ("musl-gcc", ("-O3",))],
    ids=["as-built", "not-optimised", "sanitized", "clang", "musl"],
)
def test_kernels(build, compiler, optimisation):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    said = passes(build(compiler, optimisation))
    for kernel in (
        "gemm_tile",
        "gemm_epilogue",
        "rows",
        "attention",
        "logits",
        "layouts",
        "golden",
        "golden_logits",
    ):
        assert kernel in said


@pytest.mark.parametrize(
    ("source", "right", "wrong", "found"),
    [
        ("rows.inc.h", "(squares[i]) / (float)width", "(squares[i]) * (1.0f / (float)width)", "rows"),
        ("coefficients.h", "0x1.cc8decp-3f", "0x1.cc8deep-3f", "golden"),
        ("logits.inc.h", "+ NAMED(count_above)(x + target, n", "+ NAMED(count_above)(x, n", "logits"),
        ("order.h", "0x1.62e42fefa38p-1", "0x1.62e42fefa39p-1", "golden_logits"),
    ],
    ids=["one-table", "all-tables", "logits-of-one-table", "logits-of-all-tables"],
)
def test_the_program_can_fail(tmp_path, source, right, wrong, found):
    """A kernel that is wrong in the last bit is found, and so is a change that all tables share."""
    shutil.copytree(CSRC, tmp_path / "csrc")
    source = tmp_path / "csrc" / source
    text = source.read_text()
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong))
    objects = csrc.objects(tmp_path, optimisation=("-O0",), source=tmp_path / "csrc")
    program = csrc.link(ROOT / "tests/csrc/kernels.c", objects, tmp_path, optimisation=("-O0",))
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 1
    failed = {line.split()[1] for line in done.stdout.splitlines() if line.endswith("FAILED")}
    assert found in failed


@pytest.mark.parametrize("step", [4099, pytest.param(1, marks=exhaustive)])
def test_functions_of_every_float32(build, step):
    """exp, the GELUs, ReLU and softmax: bits of `ref`, and ulp from the truth; shared by two processes."""
    program = build("cc", ("-O3",), "functions")
    commands = [[program, str(first * step), str(2 * step)] for first in range(2)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for process in running:
        said = process.communicate()[0]
        assert process.returncode == 0, said
        assert said.endswith(" passed, 0 failed\n")
        for function in ("exp", "gelu_tanh", "gelu_erf", "relu", "softmax"):
            assert re.search(rf"^ref +{function} +ok", said, re.MULTILINE)


@pytest.mark.skipif(os.name != "posix", reason="pthreads")
@pytest.mark.parametrize(
    "optimisation", [("-O3",), ("-O1", "-g", "-fsanitize=thread")], ids=["as-built", "tsan"]
)
def test_no_two_threads_meet(build, optimisation):
    """The drivers' way of sharing work, under a race detector: it exits with 66 where it finds one."""
    passes(build("cc", optimisation, "threads"))


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="no cross compiler for aarch64")
@pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="no qemu-user")
@pytest.mark.parametrize("program", ["kernels", "threads"])
def test_on_aarch64(build, program):
    """NEON, cross-compiled and emulated: the bits of ref there, and the golden ones of x86."""
    said = passes("qemu-aarch64", build("aarch64-linux-gnu-gcc", ("-O3",), program, "aarch64"))
    assert "neon" in said
    if program == "kernels":
        assert "neon    golden         ok" in said
        assert "neon    golden_logits  ok" in said
