# SPDX-License-Identifier: Apache-2.0
"""Looking into a running model, and changing what goes on there.

    GPT.trace, GPT.edit, check_finite     the model's doors
      watch       the observer of a pass (layers/tap.pxd): edits, checks, copies
      names       which activations there are, and which a pattern means
      editing     zero, scale, add, replace, mean, apply, and the block in which they hold
      finite      where numbers stop being finite
"""

from gpt2cy.inspection.editing import Edit, add, apply, mean, replace, scale, zero
from gpt2cy.inspection.finite import NonFinite, NonFiniteError, first_nonfinite

__all__ = [
    "Edit",
    "NonFinite",
    "NonFiniteError",
    "add",
    "apply",
    "first_nonfinite",
    "mean",
    "replace",
    "scale",
    "zero",
]
