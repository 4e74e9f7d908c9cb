# SPDX-License-Identifier: Apache-2.0
"""Who may know whom: the imports and cimports of every module, read from the source.

Each rule is a function from (module name, what it imports, source text) to a complaint or None, and each is
shown to be able to fail on a source that breaks it.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gpt2cy"

# The message module: it imports NumPy alone, and everything but csrc and reference may use it, kernels too.
CHECKS = "gpt2cy._checks"
# What the system has left: used by the core, and the one part of it that reads files.
CORE = (
    "gpt2cy.layers",
    "gpt2cy.model",
    "gpt2cy.transformer",
    "gpt2cy.parameters",
    "gpt2cy.cache",
    "gpt2cy.workspace",
    "gpt2cy.config",
    CHECKS,
)
# Packages that the model opens when a method is called.
DOORS = ("gpt2cy.weights", "gpt2cy.generation", "gpt2cy.inspection")
FILES = {"io", "json", "os", "pathlib", "pickle", "shutil", "tempfile"}
OPTIONAL = {
    "safetensors": ("gpt2cy.weights",),
    "gguf": ("gpt2cy.weights",),
    "huggingface_hub": ("gpt2cy.weights",),
    "tokenizers": ("gpt2cy.tokenizer.hf",),
    "tiktoken": ("gpt2cy.tokenizer.tiktoken",),
    "matplotlib": ("gpt2cy.inspection",),
    "tqdm": ("gpt2cy.weights", "gpt2cy.cli.progress", "gpt2cy.integrations.lm_eval"),
    "lm_eval": ("gpt2cy.integrations.lm_eval",),
    "torch": ("gpt2cy.verify",),
    "transformers": ("gpt2cy.verify",),
    "threadpoolctl": (),
}


def within(name, *packages):
    """Whether a module is one of the packages or lies below one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def ours(imports):
    """Our modules among them; the package itself is a part of every such import and says nothing."""
    return {item for item in imports if within(item, "gpt2cy") and item != "gpt2cy"}


# ---- what CI runs ----------------------------------------------------------------------------------------


def always_left_out(source):
    """What leaves a whole test to `make test-exhaustive`, which CI does not run."""
    left_out = r"^(?:@pytest\.mark\.exhaustive|@exhaustive|pytestmark.*exhaustive)"
    return re.findall(left_out, source, re.MULTILINE)


def test_every_exhaustive_test_has_a_quick_form():
    """It is one parameter of a test whose others CI runs, so the test cannot rot unseen."""
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name, source in sources.items() if always_left_out(source)] == []
    assert always_left_out("@pytest.mark.exhaustive\ndef test_x(): ...")


# ---- reading ---------------------------------------------------------------------------------------------


def python_imports(source, package):
    """Yield the dotted name of everything a Python source imports; `from a import b` gives a and a.b."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


FROM = re.compile(r"^\s*from\s+([\w.]+)\s+c?import\s+(\([^)]*\)|[^\n#]*)", re.MULTILINE)
PLAIN = re.compile(r"^\s*c?import\s+([^\n#]+)", re.MULTILINE)


def cython_imports(source):
    """Yield the same of a .pyx or .pxd; cimports count as imports."""
    for base, names in FROM.findall(source):
        yield base
        for name in re.sub(r"#.*", "", names).strip("()").split(","):
            if name.strip():
                yield f"{base}.{name.split()[0]}"
    for names in PLAIN.findall(source):
        yield from (name.split()[0] for name in names.split(","))


def modules():
    """Yield (module name, imports, source) of every Python and Cython file of the package."""
    for path in sorted(PACKAGE.rglob("*.p*")):
        if path.suffix in (".py", ".pyx", ".pxd"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            package = name.removesuffix(".__init__") if path.stem == "__init__" else name.rpartition(".")[0]
            source = path.read_text()
            found = python_imports(source, package) if path.suffix == ".py" else cython_imports(source)
            yield name.removesuffix(".__init__"), set(found), source


MODULES = list(modules())


# ---- the rules -------------------------------------------------------------------------------------------


def kernels_know_nothing_above(name, imports, source):
    """Kernels import kernels and the message module."""
    if within(name, "gpt2cy.kernels"):
        return {item for item in ours(imports) if not within(item, "gpt2cy.kernels", CHECKS)}


def checks_know_nothing(name, imports, source):
    if name == CHECKS:
        return ours(imports)


def the_core_knows_no_tools(name, imports, source):
    """Layers and model import the core and the kernels: no files, tokenizers, sampling or tracing.

    The model has doors: methods that import a package above it, by a line inside them, when they are called.
    """
    if name == "gpt2cy.model":
        doors = set(cython_imports("\n".join(re.findall(r"^ +from .*", source, re.MULTILINE))))
        outside = set(cython_imports("\n".join(re.findall(r"^from .*", source, re.MULTILINE))))
        imports = imports - ({item for item in doors if within(item, *DOORS)} - outside)
    if within(name, *CORE):
        return {item for item in ours(imports) if not within(item, "gpt2cy.kernels", *CORE)} | imports & FILES


def generation_knows_no_files(name, imports, source):
    """A model and a tokenizer are given to it: no files, no tools but the pictures of scores."""
    if within(name, "gpt2cy.generation"):
        known = ("gpt2cy.generation", "gpt2cy.kernels", "gpt2cy.inspection.scores", *CORE)
        return {item for item in ours(imports) if not within(item, *known)} | imports & FILES


def inference_knows_no_training(name, imports, source):
    if not within(name, "gpt2cy.training"):
        return {item for item in imports if within(item, "gpt2cy.training")}


def programs_are_on_top(name, imports, source):
    """Nothing imports the command or the doors of other programs, but what starts the command."""
    if not within(name, "gpt2cy.cli", "gpt2cy.integrations") and name != "gpt2cy.__main__":
        return {item for item in imports if within(item, "gpt2cy.cli", "gpt2cy.integrations")}


def reference_stands_alone(name, imports, source):
    if within(name, "gpt2cy.reference"):
        return {item for item in imports if not within(item, "numpy", "math", "gpt2cy.reference")}


def optional_libraries_stay_in_their_adapters(name, imports, source):
    return {
        item
        for item in imports
        for library, homes in OPTIONAL.items()
        if within(item, library) and not within(name, *homes)
    }


def only_kernels_and_blocks_are_parallel(name, imports, source):
    allowed = "kernels.gemm", "kernels.attention", "kernels.rows", "kernels.logits", "layers.block"
    if name.removeprefix("gpt2cy.") not in allowed:
        return {item for item in imports if within(item, "cython.parallel", "openmp")}


def only_dispatch_links_the_table(name, imports, source):
    if name != "gpt2cy.kernels.dispatch":
        return set(re.findall(r"\bg2_tables|\bg2_supported", source))


def no_numpy_c_interface(name, imports, source):
    return set(re.findall(r"^\s*(?:cimport\s+numpy|from\s+numpy\S*\s+cimport)", source, re.MULTILINE))


def a_parallel_body_is_one_call(name, imports, source):
    """So it takes no GIL, raises nothing, and Cython infers no reduction."""
    lines = source.splitlines()
    found = set()
    for number, line in enumerate(lines):
        if re.match(r"\s*for \w+ in prange\(", line):
            body, after = (*lines[number + 1 :], "", "")[:2]
            one_call = re.fullmatch(r"(\s+)[\w.]+\(.*\)", body)
            if not one_call or after.startswith(one_call[1]):
                found.add(line.strip())
    return found


RULES = {
    kernels_know_nothing_above: [
        ("gpt2cy.kernels.gemm", "from gpt2cy.layers.linear cimport Linear"),
        ("gpt2cy.kernels.gemm", "from gpt2cy import model"),
        ("gpt2cy.kernels.threads", "import gpt2cy.config"),
    ],
    checks_know_nothing: [("gpt2cy._checks", "from gpt2cy import config")],
    the_core_knows_no_tools: [
        ("gpt2cy.layers.linear", "from gpt2cy.weights import readers"),
        ("gpt2cy.model", "from gpt2cy.inspection.trace cimport Trace"),
        ("gpt2cy.model", "from gpt2cy import generation, config"),
        ("gpt2cy.model", "import json"),
        ("gpt2cy.model", "from gpt2cy import weights"),
        ("gpt2cy.model", "from gpt2cy.generation import generate"),
        ("gpt2cy.model", "from gpt2cy.weights import writers"),
        ("gpt2cy.model", "from gpt2cy.generation import scoring"),
        ("gpt2cy.model", "def save():\n    from gpt2cy.training import adamw"),
        ("gpt2cy.layers.tap", "def look():\n    from gpt2cy.inspection import watch"),
        ("gpt2cy.layers.linear", "def save():\n    from gpt2cy.weights import writers"),
    ],
    generation_knows_no_files: [
        ("gpt2cy.generation.text", "from gpt2cy.tokenizer import ByteTokenizer"),
        ("gpt2cy.generation.text", "def f():\n    from gpt2cy import weights"),
        ("gpt2cy.generation.result", "import json"),
        ("gpt2cy.generation.scored_text", "def f():\n    from gpt2cy.inspection import record"),
    ],
    inference_knows_no_training: [("gpt2cy.generation.sampling", "from gpt2cy.training import adamw")],
    programs_are_on_top: [
        ("gpt2cy.generation.text", "from gpt2cy.cli.rows import batches"),
        ("gpt2cy.model", "def f():\n    from gpt2cy.integrations import lm_eval"),
    ],
    reference_stands_alone: [
        ("gpt2cy.reference.model", "from gpt2cy import GPTConfig"),
        ("gpt2cy.reference.layers", "import scipy.special"),
    ],
    optional_libraries_stay_in_their_adapters: [
        ("gpt2cy.model", "import torch"),
        ("gpt2cy.generation.generate", "from tokenizers import Tokenizer"),
        ("gpt2cy.tokenizer.hf", "def f():\n    import matplotlib.pyplot as plt"),
        ("gpt2cy.tokenizer.hf", "import tiktoken"),
        ("gpt2cy.cli.score", "import lm_eval"),
    ],
    only_kernels_and_blocks_are_parallel: [
        ("gpt2cy.layers.attention", "from cython.parallel cimport prange"),
        ("gpt2cy.kernels.raw", "cimport openmp"),
    ],
    only_dispatch_links_the_table: [
        ("gpt2cy.kernels.rows", 'cdef extern from "table.h":\n    void *g2_tables()')
    ],
    no_numpy_c_interface: [
        ("gpt2cy.model", "cimport numpy as cnp"),
        ("gpt2cy.model", "from numpy cimport ndarray"),
    ],
    a_parallel_body_is_one_call: [
        ("gpt2cy.kernels.rows", "    for i in prange(n):\n        total += f(i)\n"),
        ("gpt2cy.kernels.rows", "    for i in prange(n):\n        f(i)\n        g(i)\n"),
    ],
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule):
    broken = {name: found for name, imports, source in MODULES if (found := rule(name, imports, source))}
    assert broken == {}


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [(rule, *sample) for rule, samples in RULES.items() for sample in samples],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_rule_can_fail(rule, name, source):
    assert rule(name, set(cython_imports(source)), source)
    if "cimport" not in source and "cdef" not in source and "prange" not in source:
        assert rule(name, set(python_imports(source, name.rpartition(".")[0])), source)


def test_everything_is_read():
    names = {name for name, _, _ in MODULES}
    assert {"gpt2cy", "gpt2cy.model", "gpt2cy.kernels.gemm", "gpt2cy.reference.layers"} <= names


def test_readers_see_every_form():
    plain = "import a, b.c as d\nfrom e.f import g as h, i\nfrom j import (\n    k,\n    l,\n)\n"
    expected = {"a", "b.c", "e.f", "e.f.g", "e.f.i", "j", "j.k", "j.l"}
    assert set(python_imports(plain, "p.q")) == set(cython_imports(plain)) == expected
    assert set(python_imports("from . import a\nfrom .b import c\nfrom ..d import e", "p.q")) == {
        "p.q", "p.q.a", "p.q.b", "p.q.b.c", "p.d", "p.d.e",
    }  # fmt: skip
    cython = "cimport a\nfrom b cimport (\n    c,  # why\n    d,\n)\nfrom e.f cimport g as h\n"
    assert set(cython_imports(cython)) == {"a", "b", "b.c", "b.d", "e.f", "e.f.g"}


# ---- C ---------------------------------------------------------------------------------------------------

# host.h is for the Cython side: memory, and OpenMP's view of the threads.  No kernel includes it.
HOST = {"host.h"}
FORBIDDEN = re.compile(
    r"Python\.h|\bPy_\w+|#\s*pragma\s+omp|\bomp_\w+|omp\.h|\b(?:m|c|re)alloc\s*\(|\bfree\s*\(|host\.h"
)


def forbidden_in_c(source):
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.DOTALL)
    return set(FORBIDDEN.findall(code))


def test_kernels_in_c_know_neither_python_nor_openmp_nor_the_heap():
    sources = [path for path in (PACKAGE / "csrc").iterdir() if path.name not in HOST]
    assert len(sources) > 10
    assert {path.name: found for path in sources if (found := forbidden_in_c(path.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    ["#include <Python.h>", "#pragma omp parallel", "calloc(8)", "free (p)", '#include "host.h"', "omp_f()"],
)
def test_the_reader_of_c_can_fail(source):
    assert forbidden_in_c(source)
    assert not forbidden_in_c(f"/* {source} */")


# ---- import ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_import_starts_no_thread(python):
    count = "len(os.listdir('/proc/self/task'))"
    out = python(f"import os, numpy; before = {count}; import gpt2cy; print({count} - before)")
    assert out.split() == ["0"]


def test_import_loads_no_optional_library(python):
    out = python("import sys, gpt2cy; print(*sys.modules)").split()
    assert set(OPTIONAL) & set(out) == set()
