# SPDX-License-Identifier: Apache-2.0
"""Logits that are not finite: where in the model that began, so that one knows where to look."""

from __future__ import annotations

from collections.abc import Iterable


def began(model, ids) -> str:
    """Return the end of a message about the logits behind some ids, [T]; "" if those are finite after all."""
    try:
        model.next_logits(ids, check_finite=True)
    except FloatingPointError as error:
        return f"; it began with {error}"
    return ""


def located(model, message: str, contexts: Iterable) -> FloatingPointError:
    """Return an error that ends with where it began, in the first of some id sequences in which it did."""
    places = (began(model, ids) for ids in contexts)
    return FloatingPointError(message + next(filter(None, places), ""))
