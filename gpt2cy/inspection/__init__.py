# SPDX-License-Identifier: Apache-2.0
"""Looking into a running model, and changing what goes on there.

GPT.trace, GPT.edit, check_finite     the model's doors
  watch       the observer of a pass (layers/tap.pxd): edits, checks, copies
  names       which activations there are, and which a pattern means
  editing     zero, scale, add, replace, mean, apply, and the block in which they hold
  finite      where numbers stop being finite
GPT.profile
  profiling   time, flops and bytes of every operation: tables, bars
    clock     an observer that only reads the clock
    work      what has to be done
    machine   what this machine can do
studies       ready-made questions; plots draws their answers
look          report: a text's numbers as a page for a browser
"""

from gpt2cy.inspection.editing import Edit, add, apply, mean, replace, scale, zero
from gpt2cy.inspection.finite import NonFinite, NonFiniteError, first_nonfinite
from gpt2cy.inspection.profiling import Profile, profile
from gpt2cy.inspection.report import Report, look

__all__ = [
    "Edit",
    "NonFinite",
    "NonFiniteError",
    "Profile",
    "Report",
    "add",
    "apply",
    "first_nonfinite",
    "look",
    "mean",
    "profile",
    "replace",
    "scale",
    "zero",
]
