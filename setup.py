# SPDX-License-Identifier: Apache-2.0
"""Build: the Cython modules, and the C kernels once for each instruction set.

GPT2CY_DEBUG=1     bounds checks on, little optimisation; show_config() says so
GPT2CY_OPTIMISE=0  the compiler's optimisation level, else 3 (debug builds: 1); the bits are the same
GPT2CY_OPENMP=0    a serial build, as where the compiler has no OpenMP
GPT2CY_ABI3=1      one wheel for Python 3.11 and all later ones with a GIL: see docs/packaging.md
"""

import contextlib
import io
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
CSRC = Path("gpt2cy/csrc")
BUILD = Path("build")
DEBUG = os.environ.get("GPT2CY_DEBUG") == "1"
LEVEL = os.environ.get("GPT2CY_OPTIMISE", "1" if DEBUG else "3")
SERIAL = os.environ.get("GPT2CY_OPENMP") == "0"
ABI3 = os.environ.get("GPT2CY_ABI3") == "1"
STABLE_ABI = [("Py_LIMITED_API", "0x030B0000")] if ABI3 else []  # Python 3.11's, the first with buffers
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())

SETTINGS = tomllib.loads((ROOT / CSRC / "build.toml").read_text())
KERNELS = {**SETTINGS["everywhere"], **SETTINGS.get(MACHINE, {})}  # source -> flags: one object each
BASELINE = SETTINGS["baseline"].get(MACHINE, [])
CFLAGS = [*SETTINGS["flags"], *BASELINE, f"-O{LEVEL}", "-g0"]
LDFLAGS = ["-fno-fast-math"]  # CFLAGS with -ffast-math would link start-up code that changes the host's mode
LDFLAGS += ["-Wl,-s"] if sys.platform == "linux" else []
OPENMP = [(["-fopenmp"], ["-fopenmp"]), (["-Xclang", "-fopenmp"], ["-lomp"])]  # macOS has the second
WINDOWS = sys.platform == "win32"
if WINDOWS:  # clang-cl, since MSVC has no vector types, and Microsoft's linker
    CLANG_CL = shutil.which("clang-cl") or "clang-cl"
    LDFLAGS = []
    OPENMP = [(["-fopenmp"], [f"/LIBPATH:{Path(CLANG_CL).absolute().parents[1] / 'lib'}", "libomp.lib"])]

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "nonecheck": DEBUG,
    "cdivision": True,
    "binding": False,  # C methods, which check what they are called on: Cython's own would crash
    "embedsignature": True,
    "embedsignature.format": "clinic",  # for inspect.signature
    "freethreading_compatible": True,
}


def spelled(flags):
    """The flags as this compiler takes them: clang-cl wants Clang's own behind /clang:."""
    return [f"/clang:{flag}" for flag in flags] if WINDOWS else [*flags]


def extensions():
    """One extension a .pyx; memoryview support is shared by all of them."""
    headers = [str(path) for path in sorted(CSRC.glob("*.h")) if not path.name.endswith(".inc.h")]
    options = {
        "include_dirs": [str(CSRC)],
        "depends": headers,
        "define_macros": STABLE_ABI,
        "py_limited_api": ABI3,
    }
    modules = [
        Extension(".".join(path.with_suffix("").parts), [str(path)], **options)
        for path in sorted(Path("gpt2cy").rglob("*.pyx"))
    ]
    return [*modules, Extension("gpt2cy._cyutility", ["gpt2cy/_cyutility.c"], **options)]


def cythonized(modules, force):
    """name -> C sources; any "performance hint" of Cython's ends the build, but for a debug build's own."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            compiled = cythonize(
                modules,
                compiler_directives=DIRECTIVES,
                build_dir=str(BUILD / "cython"),
                force=force,
                shared_utility_qualified_name="gpt2cy._cyutility",
            )
    finally:
        sys.stderr.write(said.getvalue())
    lines = [] if DEBUG else said.getvalue().splitlines()  # bounds checks are hinted at
    hints = [line for line in lines if "performance hint" in line]
    if hints:
        for module in compiled:  # or the next build would find nothing to compile and pass
            Path(module.sources[0]).unlink(missing_ok=True)
        sys.exit("Cython gives performance hints:\n" + "\n".join(hints))
    return {module.name: module.sources for module in compiled}


class BuildExtensions(build_ext):
    """Adds OpenMP where it works, and the kernels' objects to the one module that holds the table.

    As many files are compiled at once as there are processors for it, unless -j says otherwise.
    """

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            allowed = getattr(os, "sched_getaffinity", lambda process: range(os.cpu_count() or 1))(0)
            self.parallel = len(allowed)

    def build_extensions(self):
        stamp = BUILD / "settings.txt"  # of the last build here: after others, nothing of it may be kept
        if WINDOWS:
            self.compiler.initialize()
            self.compiler.cc = CLANG_CL
            tools = self.compiler.cc, sys.version
        else:
            tools = self.compiler.compiler_so, self.compiler.linker_so, sys.version
        settings = repr((DIRECTIVES, CFLAGS, LDFLAGS, KERNELS, SERIAL, ABI3, tools))
        if not stamp.exists() or stamp.read_text() != settings:
            stamp.unlink(missing_ok=True)
            self.force = True
        sources = cythonized(self.extensions, self.force)
        openmp = self.openmp_flags()
        macros = [("GPT2CY_BUILD", f'"{self.description(openmp)}"')]
        for module in self.extensions:
            module.sources = sources[module.name]
            module.extra_compile_args = spelled([*CFLAGS, *openmp[0]])
            module.extra_link_args = [*LDFLAGS, *openmp[1]]
            if module.name == "gpt2cy.kernels.dispatch":
                module.define_macros = [*STABLE_ABI, *macros]
                module.depends = [str(path) for path in sorted(CSRC.iterdir())]
                module.extra_objects = self.kernel_objects()
        super().build_extensions()
        stamp.write_text(settings)

    def kernel_objects(self):
        def compiled(source):
            return self.compiler.compile(
                [str(CSRC / source)],
                output_dir=self.build_temp,
                include_dirs=[str(CSRC)],
                extra_preargs=spelled([*CFLAGS, *SETTINGS["warnings"], *KERNELS[source]]),
            )

        with ThreadPoolExecutor(self.parallel or 1) as pool:
            return [made for objects in pool.map(compiled, KERNELS) for made in objects]

    def openmp_flags(self):
        """(compile, link) flags of the first spelling whose program compiles, links and runs."""
        if SERIAL:
            return [], []
        for compile_flags, link_flags in OPENMP:
            with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):
                source = Path(folder) / "probe.c"
                source.write_text(
                    "#include <omp.h>\nint main(void) { int n = 0;\n"
                    "#pragma omp parallel reduction(+:n)\nn += 1;\nreturn n < 1; }\n"
                )
                with open(os.devnull, "w") as quiet, contextlib.redirect_stderr(quiet):
                    objects = self.compiler.compile(
                        [str(source)], output_dir=folder, extra_preargs=spelled(compile_flags)
                    )
                    self.compiler.link_executable(
                        objects, "probe", output_dir=folder, extra_postargs=link_flags
                    )
                subprocess.run([str(Path(folder) / "probe")], check=True, timeout=60)
                return compile_flags, link_flags
        self.warn("NO OPENMP: this compiler cannot build an OpenMP program; gpt2cy will use one thread")
        return [], []

    def description(self, openmp):
        kind = "debug, bounds checks on" if DEBUG else "optimised"
        if not DEBUG and LEVEL not in ("2", "3"):
            kind = f"NOT OPTIMISED: -O{LEVEL}"
        return kind if openmp[0] else kind + ", SERIAL: no OpenMP"


if LEVEL not in ("0", "1", "2", "3"):
    sys.exit(f"GPT2CY_OPTIMISE: expected 0, 1, 2 or 3, got {LEVEL!r}")
if ABI3 and sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit("GPT2CY_ABI3=1: a free-threaded Python has no stable ABI; build without it")
os.chdir(ROOT)
setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExtensions},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {},
)
