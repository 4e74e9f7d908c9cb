# SPDX-License-Identifier: Apache-2.0
"""The C kernels compiled apart from the package, with the flags that setup.py gives them (build.toml)."""

import os
import platform
import subprocess
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
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


def objects(folder, compiler="cc", machine=MACHINE, optimisation=("-O3",), more=(), source=CSRC):
    """Compile every kernel of a machine, several at once; return the objects, which lie in the folder.

    `more` are flags of any kind; `source` is where the kernels are.
    """

    def compiled(name, own):
        made = folder / f"{Path(name).stem}.o"
        options = [*flags(machine), *own, *optimisation, *more]
        subprocess.run([compiler, *options, "-c", source / name, "-o", made], check=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compiled, *zip(*kernels(machine).items(), strict=True)))


def link(program, kernels, folder, compiler="cc", machine=MACHINE, optimisation=("-O3",), more=()):
    """Compile a C program, link it with the kernels' objects, and return what was made in the folder."""
    made = folder / program.stem
    options = [*flags(machine), *optimisation, *more, f"-I{CSRC}"]
    subprocess.run([compiler, *options, program, *kernels, "-lm", "-pthread", "-o", made], check=True)
    return made


def assembler(text, like, compiler="cc"):
    """The assembler that C text becomes, compiled as the kernel source `like` is."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.c"
        source.write_text(text)
        options = [*flags(), *kernels()[like], "-O3", "-w", f"-I{CSRC}", "-S"]
        subprocess.run([compiler, *options, source, "-o", source.with_suffix(".s")], check=True)
        return source.with_suffix(".s").read_text()
