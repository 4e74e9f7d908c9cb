# SPDX-License-Identifier: Apache-2.0
"""Counts of instructions: no kernel needs more than it did."""

import pytest
from running import HAS_COMPILER


@pytest.mark.skipif(not HAS_COMPILER, reason="no C compiler")
def test_instructions_of_a_function(script):
    rows = script("rows")
    for isa in script("bench").isas():
        gelu, exp = rows.instructions(isa, "v_gelu_tanh"), rows.instructions(isa, "v_exp")
        assert gelu[1] == 1 and exp[1] == 0
        assert 10 < exp[0] < gelu[0] < 100


def test_no_kernel_needs_more_instructions(script, capsys):
    instructions = script("instructions")
    code = instructions.main([])
    said = capsys.readouterr()
    if code == 2:
        pytest.skip(said.err.strip())
    assert code == 0, said.err + said.out


def test_compare_instructions(script):
    compare = script("instructions").compare
    recorded = {"avx2": {"exp": 1000, "softmax": 1000}}
    lines, worse = compare(recorded, {"avx2": {"exp": 1020, "softmax": 1021, "new": 5}}, 0.02)
    assert [line[-1] for line in lines] == ["+2.0 %", "+2.1 %", "+0.0 %"]
    assert worse == ["avx2 softmax: 1021 instructions, 1000 were recorded"]
    assert compare(recorded, {"avx2": {"exp": 1099}}, 0.10)[1] == []
