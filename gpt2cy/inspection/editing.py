# SPDX-License-Identifier: Apache-2.0
"""Edits: what may happen to an activation on its way, and the block in which it does.

    model.edit({"h.*.mlp.out": scale(0.5), "h.3.attn.heads": zero(head=5)})
      Editing                  patterns become names, and every edit is checked against its names' shapes
        __enter__, __exit__    EDITS of this thread or task (layers/tap.pyx)
      in_force                 what a pass that begins shall do, by name, outer edits before inner ones

An edit sees one sequence at a time, so that it means the same in `forward`, in a ragged batch and in
`generate`. Positions are absolute: with a cache a pass brings only the new ones.
"""

from collections.abc import Mapping

import numpy as np

from gpt2cy import _checks
from gpt2cy.inspection import names as naming
from gpt2cy.inspection.names import Name
from gpt2cy.layers.tap import EDITS

ATTENTION = ("attn.scores", "attn.weights")


class Edit:
    """One change to an activation: an operation on some heads and some positions.

    Made by `zero`, `scale`, `add`, `replace`, `mean` and `apply`.
    """

    def __init__(self, kind, function, operand=None, head=None, positions=None):
        self.kind = kind
        self.function = function  # of the selected part [.., positions, ..], and of the operand's same part
        self.operand = operand  # a number, a vector over the last axis, or an array of the activation's shape
        self.heads = None if head is None else _indices("head", head)
        self.positions = positions if isinstance(positions, slice) else _indices("positions", positions)
        if isinstance(positions, slice):
            for bound, least in ((positions.start, 0), (positions.stop, 0), (positions.step, 1)):
                if bound is not None:
                    _checks.integer("positions", bound, least)

    def check(self, name: Name, block_size: int) -> None:
        """Raise unless the edit fits an activation."""
        if self.heads is not None:
            if "H" not in name.axes:
                raise ValueError(f"head: {name.text} {name.described} has no heads")
            _checks.integer("head", self.heads[-1], 0, name.sizes["H"] - 1)
        if self.positions is not None and not isinstance(self.positions, slice):
            _checks.integer("positions", self.positions[-1], 0, block_size - 1)
        if self.kind == "mean" and name.kind in ATTENTION:
            raise ValueError(f"mean: {name.text} is masked, so it has no mean over positions")
        if self.operand is not None and not self.fits(name):
            last = name.sizes.get(name.axes[-1])
            expected = [] if self.kind == "mean" else ["a number"]
            expected += [f"[{last}]", name.described] if last else [name.described]
            raise ValueError(
                f"{self.kind}: expected {' or '.join(expected)} for {name.text}, "
                f"got shape {list(self.operand.shape)}"
            )

    def fits(self, name):
        """Whether the operand has a shape for this activation."""
        shape = self.operand.shape
        if self.kind == "mean":  # any number of sequences in front
            shape = shape[max(0, len(shape) - len(name.axes)) :]
        elif len(shape) == 0:
            return True
        if len(shape) == 1:
            return name.sizes.get(name.axes[-1]) == shape[0]
        return len(shape) == len(name.axes) and all(
            name.sizes.get(axis, size) == size for axis, size in zip(name.axes, shape, strict=True)
        )

    def __call__(self, name: Name, array: np.ndarray, first: int) -> np.ndarray:
        """Change an array in place and return it: of one sequence, whose new positions begin at `first`."""
        whole = array if "H" in name.axes else array[None]  # [heads, positions, ...]
        at = self.selected(first, whole.shape[1])
        if len(at) == 0:
            return array
        heads = np.arange(len(whole)) if self.heads is None else np.asarray(self.heads)
        where = np.ix_(heads, at - first)
        part = whole[where]
        new = self.changed(name, part if "H" in name.axes else part[0], heads, at)
        whole[where] = new
        return array

    def changed(self, name, part, heads, at):
        """What a part becomes: these heads, at these absolute positions."""
        if self.operand is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # as in the model: check_finite finds it
                return self.function(part, self.operand_at(name, heads, at, part.shape[-1]))
        shape = part.shape  # a function may give its array another
        outside = EDITS.set(())  # a call of the model by the function is not edited, or it would never end
        try:
            new = self.function(part)
        finally:
            EDITS.reset(outside)
        return _checks.weight(f"{name.text}: what the edit returned", new, shape)

    def selected(self, first, n_new):
        """The absolute positions of this pass that the edit is for."""
        at = np.arange(first, first + n_new)
        if self.positions is None:
            return at
        if isinstance(self.positions, slice):
            return np.intersect1d(at, np.arange(first + n_new)[self.positions])
        return np.intersect1d(at, self.positions)

    def operand_at(self, name, heads, at, width):
        """The operand's part for these heads and positions; a number or a vector is for all of them."""
        operand = self.operand
        if operand.ndim <= 1:
            return operand
        whole = operand if "H" in name.axes else operand[..., None, :, :]
        if self.kind == "mean":
            axes = (*range(whole.ndim - 3), whole.ndim - 2)
            part = whole.mean(axis=axes, dtype=np.float64).astype(np.float32)[heads][:, None]
        else:
            held = whole.shape[1]
            if at[-1] >= held:
                raise ValueError(f"{self.kind}: holds positions 0 to {held - 1} of {name.text}, not {at[-1]}")
            if whole.shape[2] < width:
                raise ValueError(f"{self.kind}: holds {whole.shape[2]} keys of {name.text}, not {width}")
            part = whole[np.ix_(heads, at)][..., :width]
        return part if "H" in name.axes else part[0]


def _indices(argument, value):
    """An index, or several, sorted; None for all."""
    if value is None:
        return None
    if isinstance(value, range) and value:  # however long: its ends say whether it fits
        value = value if value.step > 0 else value[::-1]
        _checks.integer(argument, value[0], 0)
        return value
    if isinstance(value, (list, tuple, range)) or (isinstance(value, np.ndarray) and value.ndim):
        found = [_checks.integer(argument, item, 0) for item in value]
        if not found:
            raise ValueError(f"{argument}: expected at least one, got none")
    else:
        found = [_checks.integer(argument, value, 0)]
    return np.unique(np.array(found))


def _operand(argument, value):
    """Float32 numbers of its own, whatever the caller does with theirs afterwards."""
    return _checks.numbers(argument, value).copy()


# ---- what a caller makes ---------------------------------------------------------------------------------

SELECTION = """head : int or list of int, optional
        Which heads, of an activation that has them ("h.i.attn.q", "k", "v", "scores", "weights", "heads").
    positions : int, list of int, range or slice, optional
        Which positions, counted from the sequence's beginning, also with a cache; those that a pass does not
        bring are left out. None are counted from the end.
"""


def _selects(function):
    function.__doc__ = function.__doc__.replace("SELECTION", SELECTION.rstrip())
    return function


@_selects
def zero(*, head=None, positions=None) -> Edit:
    """Set an activation to 0: zero ablation.

    Parameters
    ----------
    SELECTION

    Returns
    -------
    Edit
        For `GPT.edit`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import zero
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> with model.edit({"h.0.mlp.out": zero(positions=[1])}):
    ...     model.trace([3, 1, 4], "h.0.mlp.out")["h.0.mlp.out"].any(axis=-1).tolist()
    [True, False, True]
    """
    return Edit("zero", np.zeros_like, None, head, positions)


@_selects
def scale(factor, *, head=None, positions=None) -> Edit:
    """Multiply an activation.

    Parameters
    ----------
    factor : float or array_like
        A number, a vector over the last axis, or an array of the activation's whole shape, of which the
        selected heads and positions are used.
    SELECTION

    Returns
    -------
    Edit
        For `GPT.edit`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind; in `GPT.edit` if it does not fit the activation.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import scale
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> with model.edit({"ln_f": scale(0)}):
    ...     model([3, 1, 4]).any()
    np.False_
    """
    return Edit("scale", np.multiply, _operand("factor", factor), head, positions)


@_selects
def add(value, *, head=None, positions=None) -> Edit:
    """Add to an activation: steering.

    Parameters
    ----------
    value : float or array_like
        As `factor` of `scale`.
    SELECTION

    Returns
    -------
    Edit
        For `GPT.edit`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind; in `GPT.edit` if it does not fit the activation.

    Examples
    --------
    >>> import numpy as np, gpt2cy
    >>> from gpt2cy.inspection import add
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> direction = model.lm_head.weight[:, 7]
    >>> with model.edit({"h.1.resid": add(100 * direction)}):
    ...     int(model.next_logits([3, 1, 4]).argmax())
    7
    """
    return Edit("add", np.add, _operand("value", value), head, positions)


@_selects
def replace(value, *, head=None, positions=None) -> Edit:
    """Put something else in an activation's place: patching.

    Parameters
    ----------
    value : float or array_like
        As `factor` of `scale`: from a trace of another prompt, the array of one sequence under the same name.
    SELECTION

    Returns
    -------
    Edit
        For `GPT.edit`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind; in `GPT.edit` if it does not fit the activation; in a call if it
        has not the positions that are asked for.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import replace
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> other = model.trace([5, 9, 2], "h.2.resid")["h.2.resid"]
    >>> with model.edit({"h.2.resid": replace(other)}):
    ...     patched = model([3, 1, 4])
    >>> bool((patched == model([5, 9, 2])).all())
    True
    """
    return Edit("replace", _take_operand, _operand("value", value), head, positions)


def _take_operand(part, operand):
    return np.broadcast_to(operand, part.shape)


@_selects
def mean(of=None, *, head=None, positions=None) -> Edit:
    """Put the mean over positions in the place of an activation: mean ablation.

    Parameters
    ----------
    of : array_like, optional
        What the mean is of: the activation under the same name from other traces, with any axes in front,
        such as [B, T, C]. Without it, of the selected positions of the very pass: with a cache those are the
        new ones, so that a single one stays as it is.
    SELECTION

    Returns
    -------
    Edit
        For `GPT.edit`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind; in `GPT.edit` if it does not fit the activation.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import mean
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> usual = model.trace([[5, 9, 2], [1, 2, 3]], "h.0.attn.heads")["h.0.attn.heads"]
    >>> with model.edit({"h.0.attn.heads": mean(usual, head=1)}):
    ...     heads = model.trace([3, 1, 4], "h.0.attn.heads")["h.0.attn.heads"]
    >>> bool((heads[1, 0] == heads[1, 2]).all())
    True
    """
    if of is None:
        return Edit("mean", _mean_of_itself, None, head, positions)
    return Edit("mean", _take_operand, _operand("of", of), head, positions)


def _mean_of_itself(part):
    return np.broadcast_to(part.mean(axis=-2, keepdims=True, dtype=np.float64), part.shape)


@_selects
def apply(function, *, head=None, positions=None) -> Edit:
    """Any function of an activation.

    Parameters
    ----------
    function : callable
        It takes the selected heads and positions as a float32 array of its own, with all the activation's
        axes, and returns floats of the same shape. Calls of the model inside it are not edited.
    SELECTION

    Returns
    -------
    Edit
        For `GPT.edit`, which takes a bare function as well.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind; in a call if the function returns something else.

    Examples
    --------
    >>> import numpy as np, gpt2cy
    >>> from gpt2cy.inspection import apply
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> def look_at_the_first(weights):
    ...     return np.eye(1, weights.shape[-1], dtype=np.float32) + 0 * weights
    >>> with model.edit({"h.0.attn.weights": apply(look_at_the_first, head=3)}):
    ...     model.trace([3, 1, 4], "h.0.attn.weights")["h.0.attn.weights"][3].tolist()
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    if not callable(function):
        raise TypeError(f"function: expected something to call, got {type(function).__name__}")
    return Edit("apply", function, None, head, positions)


# ---- the block -------------------------------------------------------------------------------------------


class Editing:
    """The ``with`` block of `GPT.edit`; it can be entered again, and from several threads."""

    def __init__(self, model, edits):
        if not isinstance(edits, Mapping):
            raise TypeError(f"edits: expected a mapping of names to edits, got {type(edits).__name__}")
        self.model = model
        self.by_name = {}
        names = naming.of(model)
        editable = {text: name for text, name in names.items() if name.kind != "attn.per_head"}
        for pattern, value in edits.items():
            for name in self.matched(names, editable, pattern):
                for edit in _listed(pattern, value):
                    edit.check(name, model.wpe.num_embeddings)
                    self.by_name.setdefault(name.text, []).append(edit)

    @staticmethod
    def matched(names, editable, pattern):
        if isinstance(pattern, str) and pattern in names and pattern not in editable:
            raise ValueError(f"edits: {pattern} is made of attn.heads when it is asked for: edit those")
        found = naming.select(editable, pattern, "edits").values()
        return {name.text: name for name in found}.values()  # an alias is no second one

    def __enter__(self):
        EDITS.set((*EDITS.get(), self))
        return self.model

    def __exit__(self, *_):
        stack = list(EDITS.get())
        for i in reversed(range(len(stack))):
            if stack[i] is self:
                del stack[i]
                break
        EDITS.set(tuple(stack))


def _listed(pattern, value):
    """The edits that a value of the mapping means."""
    values = value if isinstance(value, (list, tuple)) else [value]
    edits = []
    for item in values:
        if not isinstance(item, Edit):
            if not callable(item):
                raise TypeError(
                    f"edits: expected an edit, a function or a list of them for {pattern!r}, "
                    f"got {type(item).__name__}"
                )
            item = apply(item)
        edits.append(item)
    return edits


def in_force(model) -> dict[str, list[Edit]]:
    """Return the edits of a model that hold here and now, by name."""
    found: dict[str, list[Edit]] = {}
    for editing in EDITS.get():
        if editing.model is model:
            for name, edits in editing.by_name.items():
                found.setdefault(name, []).extend(edits)
    return found
