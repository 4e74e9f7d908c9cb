# SPDX-License-Identifier: Apache-2.0
"""What is installed: its size, its instructions, its dependencies, and what it says about itself."""

import importlib.metadata
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import gpt2cy
from gpt2cy import _build_info
from gpt2cy.kernels import dispatch

ROOT = Path(__file__).parents[1]
INSTALLED = Path(gpt2cy.__file__).parent
LIBRARIES = sorted(INSTALLED.rglob("*.so"))
MOST_BYTES = 4_000_000
KINDS = {".py", ".pyi", ".so", ".typed"}  # neither C nor what Cython reads
SYSTEM = {"linux-vdso", "ld-linux-x86-64", "ld-linux-aarch64", "libc", "libm", "libpthread", "libgomp"}

installed = pytest.mark.skipif(INSTALLED.parent == ROOT, reason="the package is built in place")
on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="x86 instructions")

FORWARD = """
import hashlib, gpt2cy
from gpt2cy.kernels import dispatch
model = gpt2cy.GPT(gpt2cy.GPTConfig(61, 48, 4, 2, 80, tie_weights=True), seed=7)
print(dispatch.isa(), hashlib.sha256(model([[t % 61 for t in range(70)]] * 2).tobytes()).hexdigest())
"""


def needs(tool):
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=900, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---- instructions ----------------------------------------------------------------------------------------


def vector_sections(listing):
    """ELF section -> instructions with a VEX or EVEX prefix in a listing by `objdump -dw`.

    In 64-bit mode the first byte c4, c5 or 62 means just that: AVX, AVX2, FMA, BMI or AVX-512.
    """
    counts, section = {}, None
    for line in listing.splitlines():
        if line.startswith("Disassembly of section "):
            section = line.split()[-1].rstrip(":")
        elif re.match(r"\s*[0-9a-f]+:\t(?:c4|c5|62) ", line):
            counts[section] = counts.get(section, 0) + 1
    return counts


@needs("objdump")
@on_x86
def test_no_instruction_above_the_baseline_outside_its_section():
    found = {path.name: vector_sections(run("objdump", "-dw", path)) for path in LIBRARIES}
    table = found.pop(next(name for name in found if name.startswith("dispatch.")))
    assert {name: counts for name, counts in found.items() if counts} == {}
    assert set(table) == {".g2_avx2", ".g2_avx512"}
    assert min(table.values()) > 1000


def test_the_reader_of_listings_can_fail():
    listing = (
        "Disassembly of section .text:\n\n0000 <f>:\n   0:\tc5 f8 77             \tvzeroupper\n"
        "   3:\t62 f1 7c 48 28 c1    \tvmovaps %zmm1,%zmm0\n"
        "   9:\t0f 28 c1             \tmovaps %xmm1,%xmm0\n"
        "   c:\te8 c5 62 00 00       \tcall   62d6 <g>\n"
    )
    assert vector_sections(listing) == {".text": 2}


def test_every_instruction_set_imports_and_runs(python):
    answers = {isa: python(FORWARD, GPT2CY_ISA=isa).split() for isa in dispatch.available()}
    assert [isa for isa, (used, _) in answers.items() if used != isa] == []
    assert len({digest for isa, (_, digest) in answers.items() if dispatch.fused(isa)}) == 1


@pytest.mark.parametrize("name", ["avx1024", "sse2", "AVX2"])
def test_an_unknown_instruction_set_ends_the_import(python, name):
    failed = python("import gpt2cy", check=False, GPT2CY_ISA=name)
    assert failed.returncode == 1
    assert f"expected one of {', '.join(dispatch.available())} on this machine, got {name!r}" in failed.stderr


# ---- size, speed, dependencies ---------------------------------------------------------------------------


def test_size():
    parts = [path for path in INSTALLED.rglob("*") if path.suffix in (".so", ".py", ".pyi", ".typed")]
    assert len(LIBRARIES) > 10
    assert sum(path.stat().st_size for path in parts) < MOST_BYTES


@installed
def test_what_is_installed():
    files = [path for path in INSTALLED.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.suffix for path in files} == KINDS
    stubs = {path.stem for path in INSTALLED.rglob("*.pyi")}
    assert {path.name.split(".")[0] for path in LIBRARIES} - stubs == {"_cyutility"}


@pytest.mark.alone
def test_import_time(python):
    """At most 20 ms more than NumPy's own; the best of several, since neighbours may be busy."""
    clock = "time.perf_counter()"
    code = f"import time, numpy; start = {clock}; import gpt2cy; print(1e3 * ({clock} - start))"
    times = [float(python(code)) for _ in range(15)]
    assert min(times) <= 20.0, times


@needs("ldd")
@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name.split(".")[0])
def test_links_only_system_libraries(path):
    names = {line.split()[0].split("/")[-1].split(".so")[0] for line in run("ldd", path).splitlines()}
    assert names <= SYSTEM


def test_no_numpy_c_interface():
    assert [path.name for path in LIBRARIES if b"_ARRAY_API" in path.read_bytes()] == []


# ---- what it says of itself ------------------------------------------------------------------------------


@installed
def test_metadata():
    metadata = importlib.metadata.metadata("gpt2cy")
    assert metadata["Version"] == gpt2cy.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    required = [line for line in metadata.get_all("Requires-Dist") if "extra" not in line]
    assert {re.split(r"[<>=!]", line)[0] for line in required} == {"numpy", "safetensors"}


def test_show_config(capsys):
    config = gpt2cy.show_config()
    printed = capsys.readouterr().out
    assert {
        "isa", "available_isas", "num_threads", "openmp", "compiler", "build", "numerics_version", "version",
    } <= set(config)  # fmt: skip
    assert config["version"] == gpt2cy.__version__
    assert config["isa"] in config["available_isas"] == dispatch.available()
    for key, value in config.items():
        assert key == "version" or re.search(rf"^ *{key} ", printed, re.MULTILINE)
        assert isinstance(value, list) or str(value) in printed
    assert ("***" in printed) == (config["openmp"] is None or "debug" in config["build"])


@pytest.mark.parametrize(
    ("build", "openmp", "loud"),
    [
        ("optimised", 201511, []),
        ("debug, bounds checks on", 201511, ["DEBUG BUILD"]),
        ("optimised, SERIAL: no OpenMP", 0, ["SERIAL BUILD"]),
        ("debug, bounds checks on, SERIAL: no OpenMP", 0, ["DEBUG BUILD", "SERIAL BUILD"]),
        ("NOT OPTIMISED: -O0, SERIAL: no OpenMP", 0, ["SLOW BUILD", "SERIAL BUILD"]),
    ],
)
def test_a_slow_build_says_so_loudly(monkeypatch, capsys, build, openmp, loud):
    monkeypatch.setattr(_build_info.dispatch, "build", lambda: build)
    monkeypatch.setattr(_build_info.threads, "openmp_version", lambda: openmp)
    config = gpt2cy.show_config()
    assert (config["build"], config["openmp"]) == (build, openmp or None)
    assert re.findall(r"\*\*\* (\w+ BUILD)", capsys.readouterr().out) == loud


# ---- the source tree -------------------------------------------------------------------------------------

SOURCE_KINDS = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h", ".sh"}
FOLDERS = ("gpt2cy", "tests", "perf", "examples", "docs", ".ci")


def sources():
    yield from (ROOT / name for name in ("setup.py", "Makefile", ".ci/run"))
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in SOURCE_KINDS)


def test_every_source_file_names_its_licence():
    def head(path):
        with open(path) as file:
            first = file.readline()
            return file.readline() if first.startswith("#!") else first

    paths = list(sources())
    assert len(paths) > 50
    ours = [path for path in paths if not head(path).startswith("/* Generated by Cython")]
    assert [str(path) for path in ours if "SPDX-License-Identifier: Apache-2.0" not in head(path)] == []


HEADERS = [path for path in sorted((ROOT / "gpt2cy" / "csrc").glob("*.h")) if ".inc" not in path.suffixes]


@needs("cc")
@pytest.mark.parametrize("flags", [[], ["-fopenmp"]], ids=["serial", "openmp"])
@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_headers_give_no_warning(tmp_path, header, flags):
    """The kernels are compiled with the same warnings on; see test_wheel."""
    source = tmp_path / "header.c"
    source.write_text(f'#define G2_VL 4\n#include "{header}"\nint main(void) {{ return 0; }}\n')
    run("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *flags, source)
