# SPDX-License-Identifier: Apache-2.0
"""Statistics of the logits behind chosen tokens, in one ragged pass: the way from `scoring` into a model."""
import numpy as np

from gpt2cy.layers.head cimport Scores
from gpt2cy.model cimport GPT


def score_rows(GPT model not None, list sequences not None, caches, list firsts not None, targets,
               Py_ssize_t limit, Py_ssize_t top):
    """Run sequences, and score each from a row of its own on.

    Parameters
    ----------
    model : GPT
    sequences : list of ndarray of int64, each [T_i]
        Checked by the caller, and nobody else's.
    caches : list of KVCache, or None
        One single-slot cache a sequence, which it continues.
    firsts : list of int
        Of each sequence, the first row that is scored; its length if none is.
    targets : ndarray of int64, [n]
        For every scored row, the token that came next.
    limit, top : int
        As `gpt2cy.layers.head.Scores`.

    Returns
    -------
    table : ndarray of `gpt2cy.kernels.logits.STATISTICS_DTYPE`, [n]
    top_ids : ndarray of int64, [n, top]
    top_logits : ndarray of float32, [n, top]
    """
    cdef Scores scores = Scores(firsts, targets, limit, top)
    lengths = [len(sequence) for sequence in sequences]
    model.require_memory("sequences", lengths, caches, 1, None)
    model.call(np.concatenate(sequences).tobytes(), lengths, caches, "sequences", -1, None, None, None, scores)
    return scores.table, scores.top_ids, scores.top_logits
