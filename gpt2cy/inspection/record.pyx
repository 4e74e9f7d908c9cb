# SPDX-License-Identifier: Apache-2.0
"""record: a tap that copies every named point out.

A tapped pass runs the fused steps apart and gives the same bits (tests/inspection/test_record.py).
"""
import numpy as np

from libc.string cimport memcpy

from gpt2cy.layers.tap cimport (
    ATTN,
    EMBED,
    HEADS,
    HIDDEN,
    LN_1,
    LN_2,
    LN_F,
    MLP_OUT,
    PRE,
    QKV,
    RESID,
    RESID_MID,
    Tap,
)
from gpt2cy.model cimport GPT

from gpt2cy import _checks

IN_BLOCK = {
    LN_1: "ln_1", QKV: "attn.qkv", HEADS: "attn.heads", ATTN: "attn.out", RESID_MID: "resid_mid", LN_2: "ln_2",
    PRE: "mlp.pre", HIDDEN: "mlp.hidden", MLP_OUT: "mlp.out", RESID: "resid",
}
OUTSIDE = {EMBED: "embed", LN_F: "ln_f"}


cdef class Recorder:
    """Copies by name; the first error, if any, waits until the pass is over."""

    cdef dict arrays
    cdef object error

    def __cinit__(self):
        self.arrays = {}


cdef void copy_out(void *who, int point, int layer, float *data, Py_ssize_t n_rows, Py_ssize_t width) noexcept nogil:
    cdef float[:, ::1] view
    with gil:
        recorder = <Recorder>who
        try:
            array = np.empty((n_rows, width), np.float32)
            view = array
            memcpy(&view[0, 0], data, n_rows * width * sizeof(float))
            name = OUTSIDE[point] if point in OUTSIDE else f"h.{layer}.{IN_BLOCK[point]}"
            recorder.arrays[name] = array
        except BaseException as error:
            recorder.error = error


def record(GPT model not None, tokens):
    """Run one sequence and keep what passes every named point.

    Parameters
    ----------
    model : GPT
    tokens : array_like of int, [T]

    Returns
    -------
    dict of str to ndarray of float32
        In the order of computation: "embed" [T, C]; for every block i "h.i.ln_1", "h.i.attn.qkv" [T, 3 C],
        "h.i.attn.heads", "h.i.attn.out", "h.i.resid_mid", "h.i.ln_2", "h.i.mlp.pre" [T, inner],
        "h.i.mlp.hidden" [T, inner], "h.i.mlp.out", "h.i.resid"; "ln_f"; "logits" [T, vocab_size], which equal
        ``model.forward(tokens)`` to the bit.

    Raises
    ------
    TypeError, ValueError
        As `GPT.forward`.

    Examples
    --------
    >>> import gpt2cy
    >>> from gpt2cy.inspection import record
    >>> seen = record(gpt2cy.GPT(gpt2cy.GPTConfig.preset("tiny"), seed=0), [1, 2, 3])
    >>> seen["h.0.mlp.hidden"].shape
    (3, 512)
    """
    cdef Recorder recorder = Recorder()
    cdef Tap tap
    cdef float[::1] flat
    ids, one = _checks.token_ids(tokens, model.wte.num_embeddings)
    if not one:
        raise ValueError(f"tokens: expected one sequence [T], got shape {list(ids.shape)}")
    _checks.length_fits("tokens", ids.shape[1], 0, model.wpe.num_embeddings)
    logits = np.empty((ids.shape[1], model.lm_head.out_features), np.float32)
    flat = logits.reshape(-1)
    tap.visit = copy_out
    tap.who = <void *>recorder
    model.arena.enter_read()
    try:
        model.run(ids.reshape(-1), [ids.shape[1]], None, -1, &flat[0], None, &tap)
    finally:
        model.arena.leave_read()
    if recorder.error is not None:
        raise recorder.error
    return recorder.arrays | {"logits": logits}
