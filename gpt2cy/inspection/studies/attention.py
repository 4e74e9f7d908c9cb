# SPDX-License-Identifier: Apache-2.0
"""Studies of attention: where heads look, how widely and how far, and whether they continue a repetition."""

from dataclasses import dataclass

import numpy as np

from gpt2cy import _checks
from gpt2cy.inspection import plots
from gpt2cy.inspection.studies import subject


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """Weights [layers, heads, T, T] of `attention_maps`, their layers and heads, and the tokens' labels."""

    weights: np.ndarray
    layers: list[int]
    heads: list[int]
    labels: list[str]

    def plot(self, axes=None):
        """Draw them: one head with its tokens, the heads of one layer side by side, or all as thumbnails.

        Parameters
        ----------
        axes : matplotlib Axes, or as many as there are maps, optional
            Where; None means a new figure.

        Returns
        -------
        matplotlib Axes, or ndarray of them [layers, heads]

        Raises
        ------
        ImportError
            If matplotlib is not installed: the extra `plot` brings it.
        ValueError
            If there are fewer Axes than maps.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.inspection import studies
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> axes = studies.attention_maps(model, [3, 1, 4], layers=0).plot()         # doctest: +SKIP
        """
        names = [f"layer {layer}, head {head}" for layer in self.layers for head in self.heads]
        maps = self.weights.reshape(-1, *self.weights.shape[2:])
        labels = plots.shown(self.labels)
        if len(maps) == 1:
            return plots.heat(
                maps[0], axes, rows=labels, columns=labels, title=names[0],
                ylabel="from", xlabel="to", bar="weight",
            )  # fmt: skip
        thumbnails = len(self.layers) > 1
        columns, size = (len(self.heads), 1.1) if thumbnails else (4, 2.4)
        found = plots.panels(len(maps), axes, columns, size)
        for panel, name, weights in zip(found, names, maps, strict=True):
            named = None if thumbnails else labels
            plots.heat(weights, panel, rows=named, columns=named)
            panel.set_title(name, fontsize=6 if thumbnails else 9)
            if thumbnails:
                panel.set_axis_off()
        return found.reshape(len(self.layers), len(self.heads))


def attention_maps(model, tokens, *, layers=None, heads=None) -> AttentionMaps:
    """Where heads look: how much each position takes of each position's value.

    Row t of a map adds up to 1 and is 0 after t. Weight on a position means that its value is taken, not
    that what comes of it matters: values may be small, and later layers may undo them. Ablation and patching
    say what matters.

    Parameters
    ----------
    model : GPT or LanguageModel
    tokens : array_like of int [T], or str with a LanguageModel
    layers, heads : int or list of int, optional
        Which; all by default.

    Returns
    -------
    AttentionMaps
        `weights` [layers, heads, T, T], row = from, column = to; `plot()`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    MemoryError
        If the maps do not fit the memory that is left.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import studies
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> maps = studies.attention_maps(model, [3, 1, 4], layers=[0, 2], heads=1)
    >>> maps.weights.shape
    (2, 1, 3, 3)
    """
    gpt, ids, labels = subject.of(model, tokens)
    layers = _numbers("layers", layers, len(gpt.blocks))
    heads = _numbers("heads", heads, gpt.blocks[0].attn.n_heads)
    names = [f"h.{layer}.attn.weights" for layer in layers]
    seen = gpt.trace(ids, names)
    return AttentionMaps(np.stack([seen[name][heads] for name in names]), layers, heads, labels)


def _numbers(name, value, count):
    """A list of numbers below `count`, in the order given."""
    if value is None:
        return list(range(count))
    several = isinstance(value, (list, tuple, range)) or (isinstance(value, np.ndarray) and value.ndim)
    found = [_checks.integer(name, item, 0, count - 1) for item in (value if several else [value])]
    if not found:
        raise ValueError(f"{name}: expected at least one, got none")
    return found


@dataclass(frozen=True, eq=False)
class HeadTable:
    """One number for each head, [L, H], and what it is."""

    values: np.ndarray
    what: str
    signed: bool = False

    def top(self, k: int = 5) -> list[tuple[int, int, float]]:
        """Return the k largest as (layer, head, value).

        Parameters
        ----------
        k : int

        Raises
        ------
        TypeError, ValueError
            If k is not an integer from 1.

        Examples
        --------
        >>> import numpy as np
        >>> from gpt2cy.inspection.studies import HeadTable
        >>> HeadTable(np.array([[0.1, 0.7], [0.5, 0.0]]), "score").top(2)
        [(0, 1, 0.7), (1, 0, 0.5)]
        """
        order = np.argsort(-self.values, axis=None, kind="stable")[: _checks.integer("k", k, 1)]
        places = [divmod(int(i), self.values.shape[1]) for i in order]
        return [(layer, head, float(self.values[layer, head])) for layer, head in places]

    def plot(self, axes=None):
        """Draw a heat map, layer by head.

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
        >>> import numpy as np
        >>> from gpt2cy.inspection.studies import HeadTable
        >>> axes = HeadTable(np.zeros((2, 3)), "score").plot()         # doctest: +SKIP
        """
        layers, heads = self.values.shape
        return plots.heat(
            self.values, axes, rows=range(layers), columns=range(heads), ylabel="layer", xlabel="head",
            title=self.what, signed=self.signed, bar=self.what,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class AttentionSpread:
    """Of every query: entropy [L, H, T] in bits, and distance [L, H, T] in positions."""

    entropy: np.ndarray
    distance: np.ndarray

    @property
    def mean_entropy(self) -> HeadTable:
        """Over queries."""
        return HeadTable(self.entropy.mean(axis=-1), "attention entropy (bits)")

    @property
    def mean_distance(self) -> HeadTable:
        """Over queries."""
        return HeadTable(self.distance.mean(axis=-1), "attention distance (positions)")

    def plot(self, axes=None):
        """Draw mean entropy and mean distance, layer by head.

        Parameters
        ----------
        axes : two matplotlib Axes, optional
            Where; None means a new figure.

        Returns
        -------
        ndarray of two matplotlib Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed: the extra `plot` brings it.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.inspection import studies
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> axes = studies.attention_spread(model, [3, 1, 4]).plot()         # doctest: +SKIP
        """
        found = plots.panels(2, axes, size=4.0)
        self.mean_entropy.plot(found[0])
        self.mean_distance.plot(found[1])
        return found


def attention_spread(model, tokens) -> AttentionSpread:
    """How widely and how far heads look.

    Entropy is 0 bits where all weight is on one position and log2(n) where it is spread evenly over n.
    Distance is the mean number of positions back, by weight: 0 is itself, 1 the token before.

    Parameters
    ----------
    model : GPT or LanguageModel
    tokens : array_like of int [T], or str with a LanguageModel

    Returns
    -------
    AttentionSpread
        `entropy` and `distance`, each [L, H, T]; their means over positions; `plot()`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import studies
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> spread = studies.attention_spread(model, [3, 1, 4])
    >>> spread.entropy[0, 0].round(1).tolist(), spread.distance[0, 0].round(1).tolist()
    ([0.0, 1.0, 1.6], [0.0, 0.5, 1.0])
    """
    gpt, ids, _ = subject.of(model, tokens)
    positions = np.arange(len(ids), dtype=np.float64)

    def spread(weights):
        logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
        entropy = -(weights * logs).sum(axis=-1, dtype=np.float64)
        distance = positions * weights.sum(axis=-1, dtype=np.float64) - weights @ positions
        return np.maximum(entropy, 0), np.maximum(distance, 0)  # a little less than 0 by rounding is 0

    found = subject.reduced(gpt, ids, "attn.weights", spread)[:, 0]  # [L, 2, H, T]
    return AttentionSpread(found[:, 0], found[:, 1])


@dataclass(frozen=True, eq=False)
class HeadPatterns:
    """How much of their weight heads put on three places, each a `HeadTable`."""

    induction: HeadTable
    previous: HeadTable
    duplicate: HeadTable

    def plot(self, axes=None):
        """Draw the three tables side by side.

        Parameters
        ----------
        axes : three matplotlib Axes, optional
            Where; None means a new figure.

        Returns
        -------
        ndarray of three matplotlib Axes

        Raises
        ------
        ImportError
            If matplotlib is not installed: the extra `plot` brings it.

        Examples
        --------
        >>> import gpt2cy
        >>> from gpt2cy.inspection import studies
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> axes = studies.induction_scores(model, length=20).plot()         # doctest: +SKIP
        """
        found = plots.panels(3, axes, size=4.0)
        for panel, table in zip(found, (self.induction, self.previous, self.duplicate), strict=True):
            table.plot(panel)
        return found


def induction_scores(model, *, length=50, batch=4, first=None, seed=0) -> HeadPatterns:
    """Which heads continue what was there before: on random tokens that come twice.

    A sequence is `length` random tokens, no two alike, and the same once more, so that nothing but the
    repetition can be known. Of the queries in the second half, the scores are the mean weights on

    - the token after the one like the query: an induction head, which finds what came next before. 1 is all;
    - the token before the query: a previous-token head, on which induction heads of later layers build;
    - the token like the query: a duplicate-token head.

    A head that looks everywhere alike scores about 1 / (1.5 length).

    Parameters
    ----------
    model : GPT or LanguageModel
    length : int
        Of the random part, from 2; no more than there are tokens, and twice that has to fit the model.
    batch : int
        How many sequences the mean is of.
    first : int, optional
        A token to begin each sequence with, such as GPT-2's 50256: heads without a match tend to rest on the
        first.
    seed : int
        Of the random tokens.

    Returns
    -------
    HeadPatterns
        `induction`, `previous`, `duplicate`: tables with `values` [L, H], `top(k)` and `plot()`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.

    Notes
    -----
    Olsson et al., "In-context Learning and Induction Heads" (2022).

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import studies
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> studies.induction_scores(model, length=20).induction.values.shape
    (3, 4)
    """
    gpt, _ = subject.split(model)
    batch = _checks.integer("batch", batch, 1)
    first = None if first is None else subject.token_id(model, first, "first")
    begin, vocab = int(first is not None), gpt.wte.num_embeddings
    length = _checks.integer("length", length, 2, vocab - begin)
    _checks.length_fits("length", 2 * length + begin, 0, gpt.wpe.num_embeddings)
    subject.require_memory("batch", gpt, batch, 2 * length + begin)
    ids = repeated(np.random.default_rng(_checks.seed(seed)), vocab, batch, length, first)
    queries = np.arange(length, 2 * length) + begin
    places = {"induction": queries - length + 1, "previous": queries - 1, "duplicate": queries - length}

    def look(weights):
        return [weights[:, queries, keys].mean(axis=-1, dtype=np.float64) for keys in places.values()]

    means = subject.reduced(gpt, ids, "attn.weights", look).mean(axis=1)  # [L, 3, H]
    return HeadPatterns(*(HeadTable(means[:, i], f"{what} score") for i, what in enumerate(places)))


def repeated(rng, vocab, batch, length, first):
    """Ids [batch, 2 length] or one more: random ones, no two alike, twice, behind `first` if there is one."""
    others = np.arange(vocab) if first is None else np.delete(np.arange(vocab), first)
    random = np.stack([rng.choice(others, length, replace=False) for _ in range(batch)])
    start = np.full((batch, int(first is not None)), 0 if first is None else first)
    return np.hstack([start, random, random])
