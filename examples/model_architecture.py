# SPDX-License-Identifier: Apache-2.0
"""Models of four sizes: built, run on text, checked and timed.

    python examples/model_architecture.py --text "Call me Ishmael."

The same as ``gpt2cy demo``; the steps are in ``gpt2cy/demo.py``, written to be read.
"""

import sys

from gpt2cy.cli import main

sys.exit(main(["demo", *sys.argv[1:]]))
