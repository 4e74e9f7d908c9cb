# SPDX-License-Identifier: Apache-2.0
"""Studies of what matters for an answer: attribution of a logit, ablation of heads, activation patching."""

from dataclasses import dataclass

import numpy as np

from gpt2cy import _checks
from gpt2cy.inspection import editing, plots
from gpt2cy.inspection.studies import subject
from gpt2cy.inspection.studies.attention import HeadTable


class Measure:
    """A number for the next token's logits [V]: an answer's log probability, or its lead over a wrong one."""

    def __init__(self, model, answer, wrong=None):
        self.answer = subject.token_id(model, answer, "answer")
        self.wrong = None if wrong is None else subject.token_id(model, wrong, "wrong")

    @property
    def what(self) -> str:
        """What it is."""
        return "log probability" if self.wrong is None else "logit difference"

    def __call__(self, logits) -> float:
        logits = np.asarray(logits, np.float64)
        if self.wrong is not None:
            return float(logits[self.answer] - logits[self.wrong])
        highest = logits.max()
        return float(logits[self.answer] - highest - np.log(np.exp(logits - highest).sum()))


# ---- direct attribution -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Attribution:
    """The parts of one logit, or of the difference of two; `total` is their sum.

    embed: of the embedding; heads [L, H]; attn_bias [L]: of c_proj's bias; mlp [L]; constant: what does not
    depend on the text: ln_f's beta and the head's bias.
    """

    embed: float
    heads: np.ndarray
    attn_bias: np.ndarray
    mlp: np.ndarray
    constant: float

    @property
    def total(self) -> float:
        """The logit, but for rounding."""
        parts = self.heads.sum() + self.attn_bias.sum() + self.mlp.sum()
        return float(self.embed + parts + self.constant)

    @property
    def layers(self) -> dict[str, float]:
        """The same by layer, in the order of computation: "embed", "attn 0", "mlp 0", ..., "constant"."""
        parts = {"embed": self.embed}
        for i, (heads, bias, mlp) in enumerate(zip(self.heads, self.attn_bias, self.mlp, strict=True)):
            parts |= {f"attn {i}": float(heads.sum() + bias), f"mlp {i}": float(mlp)}
        return parts | {"constant": self.constant}

    @property
    def by_head(self) -> HeadTable:
        """Of each head."""
        return HeadTable(self.heads, "direct effect on the logit", signed=True)

    def plot(self, axes=None):
        """Draw the parts by layer as bars; `by_head.plot()` draws heads.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Where; None means a new figure.

        Returns
        -------
        matplotlib Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed: the extra `plot` brings it.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.inspection import studies
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> axes = studies.direct_attribution(model, [3, 1, 4], answer=7).plot()         # doctest: +SKIP
        """
        parts = self.layers
        return plots.bars(list(parts), list(parts.values()), axes, title="direct effect on the logit")


def direct_attribution(model, tokens, answer, wrong=None, *, position=None) -> Attribution:
    """How much each head and layer adds by itself to an answer's logit, or to its lead over a wrong answer.

    The residual stream is a sum, and final norm and head are linear once the norm's divisor is taken as it
    is, so the logit is a sum of the parts' shares. That is the direct effect alone: what a part does through
    later layers is in those layers' shares. A share of one logit also holds what raises all logits alike;
    with `wrong` that cancels.

    Parameters
    ----------
    model : GPT or LanguageModel
    tokens : array_like of int [T], or str with a LanguageModel
    answer, wrong : int or str
        The token whose logit it is, and one whose logit is taken off, if any.
    position : int, optional
        Where, from 0; the last by default.

    Returns
    -------
    Attribution
        `embed`, `heads` [L, H], `attn_bias` [L], `mlp` [L], `constant`; `total`, `layers`, `by_head`,
        `plot()`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import numpy as np, gpt2cy
    >>> from gpt2cy.inspection import studies
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> parts = studies.direct_attribution(model, [3, 1, 4], answer=7, wrong=8)
    >>> logits = model.next_logits([3, 1, 4])
    >>> parts.heads.shape, bool(np.isclose(parts.total, logits[7] - logits[8], atol=1e-5))
    ((3, 4), True)
    """
    gpt, ids, _ = subject.of(model, tokens)
    measure = Measure(model, answer, wrong)
    at = len(ids) - 1 if position is None else _checks.integer("position", position, 0, len(ids) - 1)
    layers, last = range(len(gpt.blocks)), f"resid.{len(gpt.blocks)}"
    names = ["embed", last, *(f"h.{i}.{kind}" for i in layers for kind in ("attn.heads", "mlp.out"))]
    seen = {name: array.astype(np.float64) for name, array in gpt.trace(ids[: at + 1], names).items()}
    weight, bias = _head(gpt, measure)
    row = seen[last][-1]
    gamma, beta = np.asarray(gpt.ln_f.gamma, np.float64), gpt.ln_f.beta
    direction = weight * gamma / np.sqrt(row.var() + gpt.ln_f.eps)
    direction -= direction.mean()  # the norm's own: what is the same in all columns has no effect

    def heads(layer):
        rows = np.asarray(gpt.blocks[layer].attn.c_proj.weight, np.float64)  # [H D, C]
        outputs = seen[f"h.{layer}.attn.heads"][:, -1]  # [H, D]
        return (outputs * (rows @ direction).reshape(outputs.shape)).sum(axis=-1)

    biases = [block.attn.c_proj.bias for block in gpt.blocks]
    return Attribution(
        embed=float(seen["embed"][-1] @ direction),
        heads=np.stack([heads(layer) for layer in layers]),
        attn_bias=np.array([0.0 if bias is None else float(bias @ direction) for bias in biases]),
        mlp=np.array([seen[f"h.{layer}.mlp.out"][-1] @ direction for layer in layers]),
        constant=bias + (0.0 if beta is None else float(beta @ weight)),
    )


def _head(gpt, measure):
    """The head's column of the answer, less that of the wrong one, and the same of its bias."""
    columns, bias = gpt.lm_head.weight, gpt.lm_head.bias
    weight = columns[:, measure.answer].astype(np.float64)
    constant = 0.0 if bias is None else float(bias[measure.answer])
    if measure.wrong is not None:
        weight -= columns[:, measure.wrong]
        constant -= 0.0 if bias is None else float(bias[measure.wrong])
    return weight, constant


# ---- ablation ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ablation:
    """The measure with each head ablated, `values` [L, H], and without ablation, `baseline`."""

    values: np.ndarray
    baseline: float
    what: str

    @property
    def effects(self) -> HeadTable:
        """How much the measure changes: below 0 where the head was of use."""
        return HeadTable(self.values - self.baseline, f"change of {self.what}", signed=True)

    def plot(self, axes=None):
        """Draw the effects, layer by head.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Where; None means a new figure.

        Returns
        -------
        matplotlib Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed: the extra `plot` brings it.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.inspection import studies
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> axes = studies.head_ablation(model, [3, 1, 4], answer=7).plot()         # doctest: +SKIP
        """
        return self.effects.plot(axes)


def head_ablation(model, tokens, answer, wrong=None, *, by="zero", usual=None) -> Ablation:
    """How an answer fares when one head at a time is taken out.

    A head is taken out at every position: its output becomes 0, or what it is on average, which disturbs the
    layers after it less. Others may do its work instead, so a head without effect is not a head without
    function.

    Parameters
    ----------
    model : GPT or LanguageModel
    tokens : array_like of int [T], or str with a LanguageModel
    answer, wrong : int or str
        What is measured: the logit of `answer` less that of `wrong`, or without `wrong` the natural
        logarithm of the answer's probability.
    by : {"zero", "mean"}
        What stands in the head's place.
    usual : array_like of int, [T'] or [B, T'], or a list of such [T'_i] of different lengths, optional
        Texts that the mean is of; by default `tokens` themselves.

    Returns
    -------
    Ablation
        `values` [L, H], `baseline`, `effects`, `plot()`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import studies
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> studies.head_ablation(model, [3, 1, 4], answer=7, wrong=8).values.shape
    (3, 4)
    """
    gpt, ids, _ = subject.of(model, tokens)
    measure = Measure(model, answer, wrong)
    by = _checks.choice("by", by, ("zero", "mean"))
    if usual is None:
        usual = ids
    elif by == "zero":
        raise ValueError(f"usual: expected None with by='zero', got {type(usual).__name__}")
    means = _means(gpt, usual) if by == "mean" else {}

    def without(layer, head):
        name = f"h.{layer}.attn.heads"
        edit = editing.mean(means[name], head=head) if by == "mean" else editing.zero(head=head)
        with gpt.edit({name: edit}):
            return measure(gpt.next_logits(ids))

    heads = range(gpt.blocks[0].attn.n_heads)
    values = np.array([[without(layer, head) for head in heads] for layer in range(len(gpt.blocks))])
    return Ablation(values, measure(gpt.next_logits(ids)), measure.what)


def _means(gpt, usual):
    """{name: what the mean is of} of every block's heads."""
    if _checks.ragged(usual):
        seen = gpt.trace(_checks.token_sequences(usual, gpt.wte.num_embeddings, "usual"), "h.*.attn.heads")
        return {name: np.concatenate(arrays, axis=1) for name, arrays in seen.items()}  # [H, sum of T', D]
    ids, _ = _checks.token_ids(usual, gpt.wte.num_embeddings, "usual")
    return gpt.trace(ids, "h.*.attn.heads")


# ---- patching ---------------------------------------------------------------------------------------------

PLACES = ("resid_pre", "attn.out", "mlp.out", "heads")


@dataclass(frozen=True, eq=False)
class Patching:
    """The measure with each part of the clean run put into the corrupted one, and in the two runs themselves.

    values: [L, T] by layer and position, or [L, H] by layer and head.
    """

    values: np.ndarray
    clean: float
    corrupted: float
    place: str
    what: str
    labels: list[str]

    @property
    def recovered(self) -> np.ndarray:
        """Of the difference between the runs, the part that a patch restores: 0 none, 1 all.

        Where the runs measure the same there is nothing to restore: NaN, or infinite.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self.values - self.corrupted) / (self.clean - self.corrupted)

    def plot(self, axes=None):
        """Draw what is recovered, layer by position or head.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            Where; None means a new figure.

        Returns
        -------
        matplotlib Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed: the extra `plot` brings it.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.inspection import studies
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> axes = studies.patching(model, [3, 1, 4], [3, 2, 4], answer=7).plot()         # doctest: +SKIP
        """
        layers, columns = self.values.shape
        labels = range(columns) if self.place == "heads" else plots.shown(self.labels)
        return plots.heat(
            self.recovered, axes, rows=range(layers), columns=labels, ylabel="layer", signed=True,
            xlabel="head" if self.place == "heads" else "position", title=f"patching {self.place}",
            bar=f"{self.what} recovered",
        )  # fmt: skip


def patching(model, clean, corrupted, answer, wrong=None, *, place="resid_pre") -> Patching:
    """Where the difference between two prompts is carried: parts of the clean run put into the corrupted one.

    The prompts are of one length and differ in what the answer hangs on. A part that restores the clean
    answer carries what the corrupted run lacks; one that does not may carry it together with others.

    Parameters
    ----------
    model : GPT or LanguageModel
    clean, corrupted : array_like of int [T], or str with a LanguageModel
    answer, wrong : int or str
        As in `head_ablation`.
    place : {"resid_pre", "attn.out", "mlp.out", "heads"}
        What is patched, one at a time: the residual stream before each block, what attention or the MLP
        adds, each at every position; or every head's output at all positions.

    Returns
    -------
    Patching
        `values` [L, T], or [L, H] for "heads", `clean`, `corrupted`, `recovered`; `plot()`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range, or the prompts are not of one length.

    Notes
    -----
    Meng et al., "Locating and Editing Factual Associations in GPT" (2022); Wang et al., "Interpretability in
    the Wild" (2022). A patch leaves the positions before it as they are, so those are computed once and kept
    in a cache.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import studies
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> found = studies.patching(model, [3, 1, 4], [3, 2, 4], answer=7, wrong=8)
    >>> abs(found.recovered[0]).round(3).tolist()         # all of it enters with the second token
    [0.0, 1.0, 0.0]
    """
    gpt, ids, labels = subject.of(model, clean, "clean")
    _, other, _ = subject.of(model, corrupted, "corrupted")
    if len(ids) != len(other):
        raise ValueError(f"corrupted: expected {len(ids)} tokens, as many as clean has, got {len(other)}")
    measure = Measure(model, answer, wrong)
    place = _checks.choice("place", place, PLACES)
    names = [_name(place, layer) for layer in range(len(gpt.blocks))]
    seen = gpt.trace(ids, names)
    sweep = _by_head if place == "heads" else _by_position
    values = sweep(gpt, other, names, seen, measure)
    ends = measure(gpt.next_logits(ids)), measure(gpt.next_logits(other))
    return Patching(values, *ends, place, measure.what, labels)


def _name(place, layer):
    if place == "resid_pre":
        return f"resid.{layer}"
    return f"h.{layer}.attn.heads" if place == "heads" else f"h.{layer}.{place}"


def _by_head(gpt, ids, names, seen, measure):
    values = np.empty((len(names), gpt.blocks[0].attn.n_heads))
    for layer, head in np.ndindex(values.shape):
        with gpt.edit({names[layer]: editing.replace(seen[names[layer]], head=head)}):
            values[layer, head] = measure(gpt.next_logits(ids))
    return values


def _by_position(gpt, ids, names, seen, measure):
    values = np.empty((len(names), len(ids)))
    cache = gpt.new_cache()  # of the corrupted tokens before the position
    for position in range(len(ids)):
        for layer, name in enumerate(names):
            with gpt.edit({name: editing.replace(seen[name], positions=position)}):
                values[layer, position] = measure(gpt.next_logits(ids[position:], cache.copy()))
        gpt.next_logits(ids[position : position + 1], cache)
    return values
