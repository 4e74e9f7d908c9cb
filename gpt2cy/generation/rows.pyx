# SPDX-License-Identifier: Apache-2.0
"""Statistics of the logits behind chosen tokens, in one ragged pass: the way from `scoring` into a model.

Whatever indexes memory is checked here, against the layers: a model's `config` may be a subclass's own.
"""
import numpy as np

from libc.stdint cimport int64_t, uint64_t

from gpt2cy.layers.head cimport Scores
from gpt2cy.model cimport GPT

from gpt2cy import _checks

cdef object INT64 = np.dtype(np.int64)


def score_rows(GPT model not None, list sequences not None, caches, list firsts not None, targets, limit, top):
    """Run sequences, and score each from a row of its own on.

    Parameters
    ----------
    model : GPT
    sequences : list of ndarray of int64, each [T_i]
        From 1 to block_size ids each.
    caches : list of KVCache, or None
        One single-slot cache a sequence, which it continues.
    firsts : list of int
        Of each sequence, the first row that is scored, from 0 to T_i; T_i scores none.
    targets : ndarray of int64, [n]
        For every scored row, the token that came next: ids below `limit`.
    limit, top : int
        As `gpt2cy.layers.head.Scores`: from 1 to the vocabulary's size, and from 0 to `limit`.

    Returns
    -------
    table : ndarray of `gpt2cy.kernels.logits.STATISTICS_DTYPE`, [n]
    top_ids : ndarray of int64, [n, top]
    top_logits : ndarray of float32, [n, top]

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range.
    """
    cdef list lengths = checked_lengths(sequences, model.wpe.num_embeddings)
    cdef bytes ids = checked_ids(sequences, sum(lengths), model.wte.num_embeddings)
    if caches is not None:
        if not isinstance(caches, list):
            raise TypeError(f"caches: expected a list of KVCache, got {type(caches).__name__}")
        caches = model.checked_caches(caches, len(lengths))
    limit = _checks.integer("limit", limit, 1, model.lm_head.out_features)
    top = _checks.integer("top", top, 0, limit)
    firsts = checked_firsts(firsts, lengths)
    targets = checked_targets(targets, sum(lengths) - sum(firsts), limit)
    cdef Scores scores = Scores(firsts, targets, limit, top)
    model.require_memory("sequences", lengths, caches, 1, None)
    model.call(ids, lengths, caches, "sequences", -1, None, None, None, scores)
    return scores.table, scores.top_ids, scores.top_logits


# A pass has up to a thousand short sequences, which scoring has checked one by one before: so these checks are
# compiled, and `_checks` is asked only where there is something to say.


cdef bint holds_int64(array) except -1:
    return isinstance(array, np.ndarray) and array.dtype == INT64 and array.ndim == 1


cdef refuse_kind(str name, array):
    given = type(array).__name__
    if isinstance(array, np.ndarray):
        given = f"one of {array.dtype} and shape {list(array.shape)}"
    raise TypeError(f"{name}: expected an array [T] of int64, got {given}")


cdef list checked_lengths(list sequences, Py_ssize_t most):
    """How many ids each has, from 1 to `most`."""
    cdef list lengths = []
    cdef Py_ssize_t i, n
    if not sequences:
        raise ValueError("sequences: expected at least one sequence, got none")
    for i, sequence in enumerate(sequences):
        if not holds_int64(sequence):
            refuse_kind(f"sequences[{i}]", sequence)
        n = len(sequence)
        if n < 1:
            raise ValueError(f"sequences[{i}]: expected at least one token, got none")
        if n > most:
            _checks.length_fits(f"sequences[{i}]", n, 0, most)
        lengths.append(n)
    return lengths


cdef bytes checked_ids(list sequences, Py_ssize_t n, Py_ssize_t vocab):
    """A private copy of all ids, one after the other: n of them, each of the vocabulary."""
    cdef bytes copy = np.concatenate(sequences).tobytes()
    cdef const int64_t *ids = <const int64_t *><const char *>copy
    cdef Py_ssize_t i
    if len(copy) != n * <Py_ssize_t>sizeof(int64_t):   # another thread may have put others there just now
        raise ValueError(f"sequences: expected {n} ids of int64, got {len(copy)} bytes")
    for i in range(n):
        if <uint64_t>ids[i] >= <uint64_t>vocab:
            _checks.token_sequences(sequences, vocab)   # says which it is
            raise ValueError(f"sequences: id {ids[i]} is outside the vocabulary of {vocab}")
    return copy


cdef list checked_firsts(list firsts, list lengths):
    """A private list of rows, each from 0 to its sequence's length."""
    firsts = list(firsts)
    if len(firsts) != len(lengths):
        raise ValueError(f"firsts: expected {len(lengths)}, one a sequence, got {len(firsts)}")
    for i, length in enumerate(lengths):
        first = firsts[i]
        if type(first) is not int or not 0 <= first <= length:
            firsts[i] = _checks.integer(f"firsts[{i}]", first, 0, length)
    return firsts


cdef checked_targets(targets, Py_ssize_t n, Py_ssize_t limit):
    """A private copy of n ids, each below the limit."""
    cdef const int64_t[::1] ids
    cdef Py_ssize_t i
    if not holds_int64(targets):
        refuse_kind("targets", targets)
    targets = np.array(targets, INT64, order="C")
    if len(targets) != n:
        raise ValueError(f"targets: expected {n}, one a scored row, got {len(targets)}")
    ids = targets
    for i in range(n):
        if <uint64_t>ids[i] >= <uint64_t>limit:
            raise ValueError(f"targets: id {ids[i]} at [{i}] is outside the limit of {limit}")
    return targets
