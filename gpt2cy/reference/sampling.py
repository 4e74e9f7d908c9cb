# SPDX-License-Identifier: Apache-2.0
"""From logits to the probabilities that a token is drawn by: one filter after the other."""

import numpy as np

from .functions import softmax


def token_probabilities(logits, temperature=1.0, top_k=None, top_p=None, min_p=None, typical_p=None):
    """Probability of each id to be drawn, after temperature and filters.

    The filters act in the order of the arguments, each on what the ones before it have left. Equal logits
    count in the order of their ids.

    Parameters
    ----------
    logits : array, shape [V]
        ``-inf`` is allowed for some.
    temperature : float
        Divides them; more than 0.
    top_k : int, optional
        How many of the largest are left.
    top_p : float, optional
        Of ids in the order of probability those are left that have less than this before them.
    min_p : float, optional
        Ids less likely than this times the likeliest go.
    typical_p : float, optional
        As `top_p`, in the order of the distance between an id's surprise, -ln p, and the mean surprise.

    Returns
    -------
    float64 array, shape [V]

    Notes
    -----
    Fan et al., arXiv:1805.04833 (top_k); Holtzman et al., arXiv:1904.09751 (top_p); Nguyen et al.,
    arXiv:2407.01082 (min_p); Meister et al., arXiv:2202.00666 (typical_p).

    Examples
    --------
    >>> token_probabilities(np.log([4.0, 1.0, 2.0, 1.0]), top_k=3).round(3)
    array([0.571, 0.143, 0.286, 0.   ])
    >>> token_probabilities(np.log([4.0, 1.0, 2.0, 1.0]), top_p=0.6).round(3)
    array([0.667, 0.   , 0.333, 0.   ])
    """
    p = softmax(np.asarray(logits, np.float64) / temperature)  # [V]
    order = np.argsort(-np.asarray(logits), kind="stable")  # [V]
    if top_k:
        p = _only(order[:top_k], p)
    if top_p is not None and top_p < 1:
        p = _only(_first_to_reach(order, p, top_p), p)
    if min_p is not None:
        p = _only(np.flatnonzero(p >= min_p * p.max()), p)
    if typical_p is not None and typical_p < 1:
        surprise = -np.log(p, where=p > 0, out=np.full_like(p, -np.inf))
        mean = (p[p > 0] * surprise[p > 0]).sum()
        order = np.argsort(np.abs(surprise - mean), kind="stable")
        p = _only(_first_to_reach(order, p, typical_p), p)
    return p


def _only(ids, p):
    """The probabilities if only these ids are left."""
    left = np.zeros_like(p)
    left[ids] = p[ids]
    return left / left.sum()


def _first_to_reach(order, p, share):
    """Ids of the order that have less than `share` before them; the first in any case."""
    before = np.concatenate([[-1.0], np.cumsum(p[order])[:-1]])  # [V]
    return order[before < share]
