# SPDX-License-Identifier: Apache-2.0
"""``python -m gpt2cy`` is the ``gpt2cy`` command."""

import sys

from gpt2cy.cli import main

if __name__ == "__main__":
    sys.exit(main())
