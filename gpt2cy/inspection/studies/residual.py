# SPDX-License-Identifier: Apache-2.0
"""Studies of the residual stream: what it says after each block, how it grows, what is near an embedding."""

from dataclasses import dataclass

import numpy as np

from gpt2cy import _checks
from gpt2cy.inspection import plots
from gpt2cy.inspection.studies import subject
from gpt2cy.layers.functional import softmax


@dataclass(frozen=True, eq=False)
class LogitLens:
    """What `logit_lens` found; row 0 is the embedding, row i what block i - 1 has left."""

    top_ids: np.ndarray
    top_probabilities: np.ndarray
    answers: np.ndarray
    probabilities: np.ndarray
    ranks: np.ndarray
    labels: list[str]
    top_labels: list

    def plot(self, axes=None):
        """Draw the likeliest token at each layer and position, coloured by its probability.

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
        >>> axes = studies.logit_lens(model, [3, 1, 4]).plot()         # doctest: +SKIP
        """
        best = self.top_probabilities[:, :, 0]
        rows = ["embed", *(f"after {i}" for i in range(len(best) - 1))]
        axes = plots.heat(
            best, axes, rows=rows, columns=plots.shown(self.labels), title="logit lens",
            xlabel="after token", ylabel="block", bar="probability",
        )  # fmt: skip
        for layer, position in np.ndindex(best.shape) if best.shape[1] <= plots.MOST_LABELS else ():
            text = plots.shown(self.top_labels[layer][position])[0]
            dark = best[layer, position] < best.min() + 0.5 * (best.max() - best.min())
            colour = "white" if dark else "black"
            axes.text(position, layer, text[:8], ha="center", va="center", fontsize=6, color=colour)
        return axes


def logit_lens(model, tokens, *, answer=None, top=5) -> LogitLens:
    """What the model would say if it stopped after each block: residual stream through final norm and head.

    An early layer's reading is no belief of the model: nothing trains the layers before the last to be read
    so. What one sees is when the answer begins to lead, and that it mostly does so step by step.

    Parameters
    ----------
    model : GPT or LanguageModel
    tokens : array_like of int [T], or str with a LanguageModel
    answer : int or str, or array_like of int [T], optional
        The token whose rank and probability to tell, one for all positions or one each. By default the one
        that follows in `tokens`, and after the last what the model itself finds likeliest.
    top : int
        How many of the likeliest tokens.

    Returns
    -------
    LogitLens
        Of L + 1 layers, the embedding being the first: `top_ids` and `top_probabilities` [L + 1, T, top],
        `answers` [T], their `probabilities` and `ranks` [L + 1, T], 0 being the likeliest; `plot()`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    MemoryError
        If one layer's logits [T, V] do not fit the memory that is left.

    Notes
    -----
    nostalgebraist, "interpreting GPT: the logit lens" (2020). Edits in force are seen, but those of ln_f and
    logits.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import studies
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> lens = studies.logit_lens(model, [3, 1, 4], answer=7)
    >>> lens.top_ids.shape, lens.ranks.shape
    ((4, 3, 5), (4, 3))
    """
    gpt, ids, labels = subject.of(model, tokens)
    vocab = gpt.lm_head.out_features
    top = _checks.integer("top", top, 1, vocab)
    stream = gpt.trace(ids, "resid.*")
    answers = _answers(model, gpt, ids, answer, stream)
    at = np.arange(len(ids))
    found: list[tuple] = []
    for rows in stream.values():
        shares = softmax(gpt.lm_head(gpt.ln_f(rows)))  # [T, V]
        likeliest = np.argsort(-shares, axis=-1, kind="stable")[:, :top]
        own = shares[at, answers]
        rank = (shares > own[:, None]).sum(axis=-1)
        found.append((likeliest, np.take_along_axis(shares, likeliest, axis=-1), own, rank))
    top_ids, top_shares, probabilities, ranks = (np.stack(part) for part in zip(*found, strict=True))
    tokenizer = subject.split(model)[1]
    names = [[subject.labels_of(tokenizer, row) for row in layer] for layer in top_ids]
    return LogitLens(top_ids, top_shares, answers, probabilities, ranks, labels, names)


def _answers(model, gpt, ids, answer, stream):
    if answer is None:
        last = gpt.lm_head(gpt.ln_f(list(stream.values())[-1][-1:]))
        return np.append(ids[1:], last.argmax())
    if isinstance(answer, (list, tuple, np.ndarray)):
        answers, one = _checks.token_ids(answer, gpt.wte.num_embeddings, "answer")
        if not one or answers.shape != (1, len(ids)):
            raise ValueError(f"answer: expected an id, or one for each of {len(ids)} tokens")
        return answers[0]
    return np.full(len(ids), subject.token_id(model, answer, "answer"))


@dataclass(frozen=True, eq=False)
class ResidualNorms:
    """Euclidean norms: of the stream [L + 1, T], and of what each block's attention and MLP add [L, T]."""

    stream: np.ndarray
    attention: np.ndarray
    mlp: np.ndarray

    def plot(self, axes=None):
        """Draw the means over positions, the first left out: it is often far from all others.

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
        >>> axes = studies.residual_norms(model, [3, 1, 4]).plot()         # doctest: +SKIP
        """
        kept = slice(1 if self.stream.shape[1] > 1 else 0, None)
        lines = {"residual stream": self.stream, "attention adds": self.attention, "MLP adds": self.mlp}
        means = {label: norms[:, kept].mean(axis=1) for label, norms in lines.items()}
        for label in list(means)[1:]:  # what block i adds makes row i + 1
            means[label] = np.append(np.nan, means[label])
        columns = ["embed", *(f"after {i}" for i in range(len(self.mlp)))]
        return plots.curves(means, axes, title="the residual stream grows", ylabel="norm", columns=columns)


def residual_norms(model, tokens) -> ResidualNorms:
    """How the residual stream grows, and how much attention and MLP of each block add to it.

    A stream that grows makes what early blocks have written count less and less, since the norms before each
    layer divide by its size.

    Parameters
    ----------
    model : GPT or LanguageModel
    tokens : array_like of int [T], or str with a LanguageModel

    Returns
    -------
    ResidualNorms
        `stream` [L + 1, T], `attention` and `mlp` [L, T]; `plot()`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import studies
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> norms = studies.residual_norms(model, [3, 1, 4])
    >>> norms.stream.shape, norms.mlp.shape
    ((4, 3), (3, 3))
    """
    gpt, ids, _ = subject.of(model, tokens)

    def norms(pattern):
        seen = gpt.trace(ids, pattern).values()
        return np.stack([np.linalg.norm(rows.astype(np.float64), axis=-1) for rows in seen])

    return ResidualNorms(norms("resid.*"), norms("h.*.attn.out"), norms("h.*.mlp.out"))


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Tokens whose embeddings point the same way: `ids` [k], their cosine `similarities` [k], labels."""

    ids: np.ndarray
    similarities: np.ndarray
    labels: list[str]

    def plot(self, axes=None):
        """Draw the similarities as bars.

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
        >>> axes = studies.embedding_neighbours(model, 7).plot()         # doctest: +SKIP
        """
        labels = plots.shown(self.labels)
        return plots.bars(labels, self.similarities, axes, title="neighbours", xlabel="cosine")


def embedding_neighbours(model, token, *, k=10) -> Neighbours:
    """Which tokens' embeddings point in the same direction as one token's, or as any vector.

    Near are, in a trained model, spellings of the same word, then words of the same kind. The length of an
    embedding is left out: it has more to do with how often a token is seen.

    Parameters
    ----------
    model : GPT or LanguageModel
    token : int, str with a LanguageModel, or array_like of float [C]
        A token, which is not its own neighbour, or a direction.
    k : int
        How many; no more than there are.

    Returns
    -------
    Neighbours
        `ids`, `similarities`, `labels`, each of k; `plot()`.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range, or the vector is 0.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import studies
    >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
    >>> near = studies.embedding_neighbours(model, 7, k=3)
    >>> near.ids.shape, bool(near.similarities[0] < 1)
    ((3,), True)
    """
    gpt, tokenizer = subject.split(model)
    k = _checks.integer("k", k, 1)
    if isinstance(token, (list, tuple, np.ndarray)) and np.ndim(token):
        own = None
        vector = _checks.weight("token", token, (gpt.wte.n_embd,)).astype(np.float64)
    else:
        own = subject.token_id(model, token, "token")
        vector = gpt.wte([own])[0].astype(np.float64)
    length = np.linalg.norm(vector)
    if not 0 < length < np.inf:
        raise ValueError(f"token: expected a direction, got a vector of norm {length}")
    table = gpt.wte.weight  # [V, C]
    with np.errstate(invalid="ignore"):
        similarities = table @ (vector / length) / np.linalg.norm(table, axis=1)
    similarities = np.where(np.isfinite(similarities), similarities, -np.inf)  # rows of 0 point nowhere
    if own is not None:
        similarities[own] = -np.inf
    order = np.argsort(-similarities, kind="stable")[: min(k, int(np.isfinite(similarities).sum()))]
    return Neighbours(order, similarities[order], subject.labels_of(tokenizer, order))
