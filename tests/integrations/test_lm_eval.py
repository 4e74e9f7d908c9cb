# SPDX-License-Identifier: Apache-2.0
"""The harness where it is not installed; with it, tests/peers/test_lm_eval.py."""


def test_what_to_install(python):
    code = """
import sys; sys.modules["lm_eval"] = None
try:
    import gpt2cy.integrations.lm_eval
except ImportError as error:
    print(error)
"""
    assert python(code).startswith("the evaluation harness is needed: pip install 'gpt2cy[lm-eval,text]' (")
