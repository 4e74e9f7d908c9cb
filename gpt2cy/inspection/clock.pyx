# SPDX-License-Identifier: Apache-2.0
"""clocked: a tap that reads the clock at every point and nothing else, so fused steps stay together.

Reading it takes some 30 ns, seven times a block: the pass that is timed is the one that runs without a clock.
"""
import numpy as np

from gpt2cy.cache cimport KVCache
from gpt2cy.layers.tap cimport EMBED, HEADS, HIDDEN, LN_1, LN_2, LN_F, QKV, RESID, RESID_MID, Tap
from gpt2cy.model cimport GPT

from gpt2cy import _checks

cdef extern from "host.h" nogil:
    double g2_now()

# The operation that ends at a point; the head ends with the pass.
ENDS = {
    EMBED: "embed", LN_1: "ln_1", QKV: "attn.c_attn", HEADS: "attn.heads", RESID_MID: "attn.c_proj", LN_2: "ln_2",
    HIDDEN: "mlp.c_fc", RESID: "mlp.c_proj", LN_F: "ln_f",
}

ctypedef struct Ticks:
    double *at
    int *point
    int *layer
    Py_ssize_t count, room


cdef void tick(void *who, int point, int layer, float *data, Py_ssize_t n_rows, Py_ssize_t width) noexcept nogil:
    cdef Ticks *ticks = <Ticks *>who
    if ticks.count < ticks.room:
        ticks.at[ticks.count] = g2_now()
        ticks.point[ticks.count] = point
        ticks.layer[ticks.count] = layer
        ticks.count += 1


def clocked(GPT model not None, tokens, cache=None, bint last_only=False):
    """Run once and say how long each operation took.

    Parameters
    ----------
    model : GPT
    tokens : array_like of int, [T] or [B, T]
    cache : KVCache, optional
        With B slots: what comes before. It is left as it was.
    last_only : bool
        As `GPT.next_logits` instead of `GPT.forward`.

    Returns
    -------
    seconds : dict of str to float
        Of each operation by its name (work.Work.name), from the end of the one before to its own; the first begins
        with the call's allocation of memory.
    logits : ndarray of float32
        What `forward` (`next_logits`) returns for tokens [B, T].

    Raises
    ------
    TypeError, ValueError, MemoryError, RuntimeError
        As `GPT.forward`.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection.clock import clocked
    >>> seconds, logits = clocked(gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0), [1, 2, 3])
    >>> list(seconds)[:3], logits.shape
    (['embed', 'h.0.ln_1', 'h.0.attn.c_attn'], (1, 3, 512))
    """
    cdef Ticks ticks
    cdef Tap tap
    cdef double[::1] times
    cdef float[::1] flat
    cdef int[::1] points, layers
    cdef double begin, end
    ids, _ = _checks.token_ids(tokens, model.wte.num_embeddings)
    cdef Py_ssize_t batch = ids.shape[0], length = ids.shape[1]
    _checks.length_fits("tokens", length, 0, model.wpe.num_embeddings)
    if cache is not None:
        model.check_cache(cache, "cache")
        if (<KVCache>cache).batch_size != batch:
            raise ValueError(f"cache: expected a batch_size of {batch}, got {(<KVCache>cache).batch_size}")
    caches = None if cache is None else [cache]
    lengths = [length] * batch
    model.require_memory("tokens", lengths, caches, batch if last_only else batch * length)
    most = len(ENDS) * len(model.blocks) + 2
    times, points, layers = np.empty(most), np.empty(most, np.intc), np.empty(most, np.intc)
    ticks.at, ticks.point, ticks.layer = &times[0], &points[0], &layers[0]
    ticks.count = 0
    ticks.room = times.shape[0]
    tap.visit = tick
    tap.who = &ticks
    tap.fused = True
    model.arena.enter_read()
    try:
        slots = None if caches is None else model.enter_caches(caches, lengths, False)
        try:
            begin = g2_now()
            logits = np.empty((batch, 1 if last_only else length, model.lm_head.out_features), np.float32)
            flat = logits.reshape(-1)
            model.run(ids.reshape(-1), lengths, slots, last_only, &flat[0], None, &tap)
            end = g2_now()
        finally:
            if slots is not None:
                (<KVCache>cache).leave()
    finally:
        model.arena.leave_read()
    seconds = {}
    for i in range(ticks.count):
        operation = ENDS[ticks.point[i]]
        name = operation if operation in ("embed", "ln_f") else f"h.{ticks.layer[i]}.{operation}"
        seconds[name] = ticks.at[i] - begin
        begin = ticks.at[i]
    seconds["lm_head"] = end - begin
    return seconds, logits[:, 0] if last_only else logits
