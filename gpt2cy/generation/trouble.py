# SPDX-License-Identifier: Apache-2.0
"""Logits that are not finite: where in the model that began, so that one knows where to look."""

from __future__ import annotations


def began(model, ids) -> str:
    """Return the end of a message about the logits behind some ids, [T]; "" if those are finite after all."""
    try:
        model.next_logits(ids, check_finite=True)
    except FloatingPointError as error:
        return f"; it began with {error}"
    return ""
