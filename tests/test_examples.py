# SPDX-License-Identifier: Apache-2.0
"""The examples run and say what they promise. (test_cli.py runs model_architecture.py.)"""

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_look_inside(capsys):
    runpy.run_path(str(EXAMPLES / "look_inside.py"))
    out = capsys.readouterr().out
    assert "743,040 parameters" in out
    assert "h.0.attn.c_attn.weight (128, 384)" in out
    assert "positions cached: [24]" in out
    assert "same bits without the cache: True" in out
