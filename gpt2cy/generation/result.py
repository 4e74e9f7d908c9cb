# SPDX-License-Identifier: Apache-2.0
"""What came out, and why it ended."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Generated:
    """One continuation of one prompt.

    Attributes
    ----------
    tokens : ndarray of int64, [n]
        The new ids, an emitted stop id included.
    text : str or None
        Their text, without a stop id that ended it and up to a stop string; None from `GPT.generate`.
    finish_reason : str
        "stop_id": one of `stop_ids` came, `stop` says which. "stop_string": one of the strings `stop` came.
        "length": `max_new_tokens` are there. "context": the model has no position left.
    stop : int, str or None
        The id or string that ended it.
    prompt, sample : int
        Which prompt this continues, and which of its continuations it is; both from 0.
    seed : int
        The one used: `generate` with it gives the same again.
    logprobs : ndarray of float32 [n], or None
        Natural logarithms of the model's probabilities of the ids, before any setting changes them; where
        asked for.
    top_logprobs : list of list of (int, float), or None
        Of each position the likeliest ids with theirs, as many as were asked for.
    score : float or None
        Of a beam: its summed log-probability over its length to the power of `length_penalty`.
    """

    tokens: np.ndarray
    finish_reason: str
    stop: int | str | None
    prompt: int
    sample: int
    seed: int
    text: str | None = None
    logprobs: np.ndarray | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    score: float | None = None

    def __str__(self):
        return self.tokens.tolist().__repr__() if self.text is None else self.text

    def to_dict(self) -> dict:
        """Return the same as plain Python values, for JSON; what is None is left out.

        Examples
        --------
        >>> import gpt2cy
        >>> model = gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0)
        >>> result = model.generate([[1, 2]], max_new_tokens=3, seed=7, details=True)[0]
        >>> sorted(result.to_dict())
        ['finish_reason', 'prompt', 'sample', 'seed', 'tokens']
        """
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("tokens", "logprobs"):
            if values[name] is not None:
                values[name] = values[name].tolist()
        if self.top_logprobs is not None:
            values["top_logprobs"] = [[list(pair) for pair in top] for top in self.top_logprobs]
        return {name: value for name, value in values.items() if value is not None}
