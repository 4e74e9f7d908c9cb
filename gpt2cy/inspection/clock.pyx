# SPDX-License-Identifier: Apache-2.0
"""clocked: an observer that reads the clock at every point and nothing else, so fused steps stay together.

Reading it takes some 30 ns, seven times a block: the pass that is timed is the one that runs without a clock.  Where
each worker takes rows of its own through a block, the times are those of the thread that called; it waits for the
others in attn.heads, where they meet, and in mlp.c_proj, at the end.
"""
from gpt2cy.cache cimport KVCache
from gpt2cy.layers.tap cimport (
    EMBED,
    HEADS,
    HIDDEN,
    LN_1,
    LN_2,
    LN_F,
    POINTS,
    QKV,
    RESID,
    RESID_MID,
    Observer,
)
from gpt2cy.model cimport GPT

cdef extern from "host.h" nogil:
    double g2_now()

# The operation that ends at a point; the head ends with the call.
ENDS = {
    EMBED: "embed", LN_1: "ln_1", QKV: "attn.c_attn", HEADS: "attn.heads", RESID_MID: "attn.c_proj", LN_2: "ln_2",
    HIDDEN: "mlp.c_fc", RESID: "mlp.c_proj", LN_F: "ln_f",
}


ctypedef struct Tick:
    double at
    int point, layer

ctypedef struct Ticks:
    Tick *ticks
    Py_ssize_t count


cdef class Clock(Observer):
    """When the operations of one pass ended.

    Parameters
    ----------
    n_layers : int
    """

    cdef Ticks seen
    cdef bytearray memory   # of its ticks
    cdef bytes table        # tap.wanted

    def __init__(self, Py_ssize_t n_layers):
        self.memory = bytearray((len(ENDS) + 1) * n_layers * sizeof(Tick))   # a block may end twice
        self.seen.ticks = <Tick *><char *>self.memory
        self.table = bytes([point in ENDS for point in range(POINTS)]) * n_layers
        self.tap.wanted = <const unsigned char *><char *>self.table
        self.tap.visit = tick
        self.tap.who = &self.seen
        self.tap.fused = True

    cdef dict read(self, double begin, double end):
        """Seconds by operation, from the one before, the first from `begin`."""
        cdef Tick tick
        cdef Py_ssize_t i
        seconds = {}
        for i in range(self.seen.count):
            tick = self.seen.ticks[i]
            operation = ENDS[tick.point]
            name = operation if tick.point in (EMBED, LN_F) else f"h.{tick.layer}.{operation}"
            seconds[name] = seconds.get(name, 0.0) + tick.at - begin
            begin = tick.at
        seconds["lm_head"] = end - begin
        return seconds


cdef void tick(void *who, int point, int layer, float *data, Py_ssize_t n_rows, Py_ssize_t width) noexcept nogil:
    cdef Ticks *seen = <Ticks *>who
    seen.ticks[seen.count] = Tick(g2_now(), point, layer)
    seen.count += 1


def clocked(GPT model not None, tokens, cache=None, bint last_only=False):
    """Run once and say how long each operation took. Edits in force are not applied.

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
        Of each operation by its name (work.Work.name), from the end of the one before to its own: together they are
        the whole call. The first begins with the checks of arguments.
    logits : ndarray of float32
        What `forward` (`next_logits`) returns.

    Raises
    ------
    TypeError, ValueError, MemoryError, RuntimeError
        As `GPT.forward`.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection.clock import clocked
    >>> seconds, logits = clocked(gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0), [[1, 2, 3]])
    >>> list(seconds)[:3], logits.shape
    (['embed', 'h.0.ln_1', 'h.0.attn.c_attn'], (1, 3, 512))
    """
    cdef Clock clock = Clock(len(model.blocks))
    past = (<KVCache>cache).lengths if isinstance(cache, KVCache) else None
    cdef double begin = g2_now()
    logits = model.batch_logits(tokens, cache, last_only, clock)
    cdef double end = g2_now()
    if past is not None:
        cache.truncate(past)
    return clock.read(begin, end), logits
