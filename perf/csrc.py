# SPDX-License-Identifier: Apache-2.0
"""The C kernels compiled apart from the package, with the flags that setup.py gives them (build.toml)."""

import platform
import subprocess
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "gpt2cy/csrc"
SETTINGS = tomllib.loads((CSRC / "build.toml").read_text())
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())


def flags(machine=MACHINE):
    """What every C file of the package is compiled with, but for the optimisation."""
    return [*SETTINGS["flags"], *SETTINGS["baseline"].get(machine, [])]


def kernels(machine=MACHINE):
    """{source: flags of its own} of a machine."""
    return {**SETTINGS["everywhere"], **SETTINGS.get(machine, {})}


def build(program, folder, compiler="cc", machine=MACHINE, optimisation=("-O3",), compile_only=(), link=()):
    """Compile every kernel and a C program, link them into the folder, and return what was made.

    `compile_only` are flags of the compiler alone, as -Werror; `optimisation` also reaches the linker, which
    sanitizers need.
    """
    objects = []
    for source, own in {**{CSRC / name: own for name, own in kernels(machine).items()}, program: []}.items():
        objects.append(folder / f"{source.stem}.o")
        options = [*flags(machine), *compile_only, *own, *optimisation, f"-I{CSRC}"]
        subprocess.run([compiler, *options, "-c", source, "-o", objects[-1]], check=True)
    made = folder / program.stem
    libraries = ["-lm", "-pthread"]
    subprocess.run([compiler, *optimisation, *link, *objects, *libraries, "-o", made], check=True)
    return made


def assembler(text, like, compiler="cc"):
    """The assembler that C text becomes, compiled as the kernel source `like` is."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.c"
        source.write_text(text)
        options = [*flags(), *kernels()[like], "-O3", "-w", f"-I{CSRC}", "-S"]
        subprocess.run([compiler, *options, source, "-o", source.with_suffix(".s")], check=True)
        return source.with_suffix(".s").read_text()
