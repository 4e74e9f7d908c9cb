# SPDX-License-Identifier: Apache-2.0
"""Where numbers stop being finite: what `check_finite` of a pass raises, and the same as an answer."""

from typing import NamedTuple

import numpy as np

from gpt2cy import _checks
from gpt2cy.model import GPT


class NonFinite(NamedTuple):
    """The first activation, in the order of computation, that is not finite, and its first such position."""

    name: str
    position: int
    sequence: int
    value: float

    def __str__(self):
        return f"{self.name}: {self.value} at position {self.position} of sequence {self.sequence}"


class NonFiniteError(FloatingPointError):
    """Raised by `check_finite`; `where` is a `NonFinite`."""

    def __init__(self, where: NonFinite):
        super().__init__(f"{where}; all activations before it are finite")
        self.where = where

    def __reduce__(self):
        return type(self), (self.where,)


def first_of(name, array, sequence, first):
    """Return the NonFinite of one activation of one sequence whose positions begin at `first`, or None."""
    finite = np.isfinite(array)
    if finite.all():
        return None
    rows = np.moveaxis(finite, name.position_axis, 0)
    at = int(rows.reshape(len(rows), -1).all(axis=1).argmin())
    value = np.take(array, at, axis=name.position_axis)[~rows[at]][0]
    return NonFinite(name.text, first + at, sequence, float(value))


def first_nonfinite(model, tokens) -> NonFinite | None:
    """Find where a forward pass stops being finite.

    Parameters
    ----------
    model : GPT
    tokens : array_like of int, [T] or [B, T], or a list of such [T_i] of different lengths

    Returns
    -------
    NonFinite or None
        Name of the first activation (`GPT.trace_names`) with an Inf or a NaN, its first such position, the
        number of the sequence, and the value; None if all is finite. The sequences before it are finite up to
        and with this activation.

    Raises
    ------
    TypeError, ValueError
        As `GPT.forward`.

    Examples
    --------
    >>> import numpy as np, gpt2cy
    >>> from gpt2cy.inspection import first_nonfinite
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> print(first_nonfinite(model, [3, 1, 4]))
    None
    >>> rows = model.wpe.weight.copy()
    >>> rows[2] = np.inf
    >>> model.wpe.weight = rows
    >>> print(first_nonfinite(model, [3, 1, 4]))
    embed: inf at position 2 of sequence 0
    """
    if not isinstance(model, GPT):
        raise TypeError(f"model: expected a GPT, got {type(model).__name__}")
    try:
        if _checks.ragged(tokens):
            model.forward_many(tokens, check_finite=True)
        else:
            model.forward(tokens, check_finite=True)
    except NonFiniteError as error:
        return error.where
    return None
