# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings, of compiled modules too, and in the README run and print what they say."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import gpt2cy

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/inside.md", "docs/scoring.md", "docs/text.md", "docs/verify-and-plan.md")
NEEDED = dict.fromkeys(("docs/text.md", "gpt2cy.tokenizer.load"), ("tokenizers", "tiktoken"))  # libraries
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def skip_without(libraries):
    for library in libraries:
        pytest.importorskip(library)


def examples():
    """Yield every docstring that holds an example, once."""
    names = [module.name for module in pkgutil.walk_packages(gpt2cy.__path__, "gpt2cy.")]
    for name in ["gpt2cy", *(name for name in names if not name.endswith("__main__"))]:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:  # an integration whose program is not here
            assert name == f"gpt2cy.integrations.{error.name}"
            continue
        for test in doctest.DocTestFinder(exclude_empty=True).find(module):
            if test.examples and "__test__" not in test.name:  # Cython lists its own there again
                yield test


EXAMPLES = list(examples())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda test: test.name)
def test_docstring(example):
    skip_without(NEEDED.get(example.name, ()))
    assert doctest.DocTestRunner(optionflags=OPTIONS).run(example).failed == 0


def test_the_public_classes_and_functions_have_examples():
    undocumented = {"gpt2cy." + name for name in gpt2cy.__all__ if not name.startswith("__")}
    for test in EXAMPLES:
        undocumented.discard("gpt2cy." + test.name.split(".")[-1])
    assert undocumented == set()


METHODS = [
    method
    for owner in (getattr(gpt2cy, name) for name in gpt2cy.__all__)
    if isinstance(owner, type)
    for name, method in vars(owner).items()
    if callable(method) and (not name.startswith("_") or name == "__call__")
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__qualname__)
def test_public_methods_are_documented(method):
    """Each has an example, and says what it raises if it takes anything, or points at the one that does."""
    text = method.__doc__
    if not re.search(r"^\s*The same as `\w+`", text, re.MULTILINE):
        assert ">>>" in text
        takes = method.__name__ == "__call__" or len(inspect.signature(method).parameters) > 1
        assert not takes or re.search(r"Raises\n|errors are those of", text)


@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    """A page's Python runs from top to bottom in one namespace; a session shows what it says."""
    skip_without(NEEDED.get(page, ()))
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        if ">>>" in block:
            test = doctest.DocTestParser().get_doctest(block, names, page, page, 0)
            assert doctest.DocTestRunner(optionflags=OPTIONS).run(test, clear_globs=False).failed == 0
            names.update(test.globs)
        else:
            exec(compile(block, page, "exec"), names)
