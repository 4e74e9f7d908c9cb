# SPDX-License-Identifier: Apache-2.0
"""The choice of an instruction set, in process and by GPT2CY_ISA."""

import platform

import pytest

from gpt2cy.kernels import dispatch

REPORT = "from gpt2cy.kernels import dispatch; print(dispatch.isa())"


def test_ref_comes_first_and_the_best_last():
    available = dispatch.available()
    assert available[0] == "ref"
    assert dispatch.fused("ref")
    order = (
        ["ref", "base", "avx2", "avx512"] if platform.machine() in ("x86_64", "AMD64") else ["ref", "neon"]
    )
    assert available == [name for name in order if name in available]
    if "base" in available:
        assert not dispatch.fused("base")


def test_the_best_is_the_default(python):
    assert python(REPORT).split() == [dispatch.available()[-1]]
    assert python(REPORT, GPT2CY_ISA="").split() == [dispatch.available()[-1]]


def test_use(isa):
    dispatch.use(isa)
    assert dispatch.isa() == isa


def test_the_environment_forces_one(python, isa):
    assert python(REPORT, GPT2CY_ISA=isa).split() == [isa]


@pytest.mark.parametrize(
    "name", ["avx1024", "AVX2", " ref", "neon" if platform.machine() == "x86_64" else "avx2"]
)
def test_an_unknown_one_lists_those_there_are(python, name):
    message = f"isa: expected one of {', '.join(dispatch.available())} on this machine, got {name!r}"
    with pytest.raises(ValueError) as caught:
        dispatch.use(name)
    assert str(caught.value) == message
    failed = python("import gpt2cy", check=False, GPT2CY_ISA=name)
    assert failed.returncode == 1
    assert f"GPT2CY_ISA: {message}" in failed.stderr


@pytest.mark.parametrize("name", [None, 3, b"ref", "ré\0f"])
def test_names_are_text(name):
    for function in (dispatch.use, dispatch.fused):
        with pytest.raises((TypeError, ValueError)):
            function(name)


def test_what_the_build_says():
    assert dispatch.numerics_version() >= 1
    assert dispatch.compiler().split()[0] in ("GCC", "Clang")
    assert dispatch.build().split(",")[0] in ("optimised", "debug")
