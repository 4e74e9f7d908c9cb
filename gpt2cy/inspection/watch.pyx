# SPDX-License-Identifier: Apache-2.0
"""Watch: the one observer of a pass, which edits, checks and copies what passes the named points.

    GPT.trace        trace                a Watch that copies what was asked for
    GPT.forward ...  for_pass             a Watch for the edits in force and for check_finite, if there are any
      tap.visit      visit -> Watch.see   at each point where something is wanted: of each sequence
                       edit                 edits, outer before inner: a copy to the function, its answer back
                       look_for             anything that is not finite
                       keep                 a copy into the array that the caller gets

The first error ends the pass where it is; the model raises it after its compiled part, before a cache is advanced.
"""
import math
from contextlib import suppress

import numpy as np

from gpt2cy.kernels cimport attention as kernel
from gpt2cy.kernels.gemm cimport matmul
from gpt2cy.kernels.table cimport G2_LINEAR, g2_epilogue, g2_sequence
from gpt2cy.layers.attention cimport Attention
from gpt2cy.layers.block cimport Block
from gpt2cy.layers.tap cimport (
    ATTN,
    EMBED,
    HEADS,
    HIDDEN,
    LN_1,
    LN_2,
    LN_F,
    LOGITS,
    MLP_OUT,
    POINTS,
    PRE,
    QKV,
    RESID,
    RESID_MID,
    Observer,
)
from gpt2cy.model cimport GPT

from gpt2cy import _checks
from gpt2cy.inspection import editing
from gpt2cy.inspection import names as naming
from gpt2cy.inspection.finite import NonFiniteError, first_of

# What is to be seen at each point; in a block the names begin with "h.i.".
AT = {
    EMBED: ("embed",), LN_1: ("ln_1",), QKV: ("attn.q", "attn.k", "attn.v"),
    HEADS: ("attn.scores", "attn.weights", "attn.heads", "attn.per_head"), ATTN: ("attn.out",),
    RESID_MID: ("resid_mid",), LN_2: ("ln_2",), PRE: ("mlp.pre",), HIDDEN: ("mlp.hidden",), MLP_OUT: ("mlp.out",),
    RESID: ("resid",), LN_F: ("ln_f",), LOGITS: ("logits",),
}
POINT_OF = {kind: point for point, kinds in AT.items() for kind in kinds}


cdef class Watch(Observer):
    """Of one pass.

    Parameters
    ----------
    model : GPT
    edits : dict of str to list of Edit
    check : bool
        Whether everything has to be finite.
    asked : dict of str to Name
        What to copy.
    """

    cdef GPT model
    cdef dict names, edits, results
    cdef set asked
    cdef bint check, whole    # whole: the pass goes to its end, whatever has been seen
    cdef object batch         # axes in front of a result: (), (B,), or None for a list of arrays
    cdef bytes table          # tap.wanted
    cdef Py_ssize_t left      # copies to be made

    def __init__(self, GPT model not None, dict edits, bint check=False, dict asked=None):
        self.model = model
        self.names = naming.of(model)
        self.edits = edits
        self.check = check
        self.asked = {name.text for name in asked.values()} if asked else set()
        self.results = {}
        self.batch = None
        self.whole = True
        wanted = np.zeros((len(model.blocks), POINTS), np.uint8)
        for text in {*edits, *self.asked, *(self.names if check else ())}:
            name = self.names[text]
            wanted[name.layer, POINT_OF[name.kind]] = 1
        if not check and "logits" not in edits:
            wanted[0, <int>LOGITS] = 0   # the pass itself returns them
        self.table = wanted.tobytes()
        self.tap.wanted = <const unsigned char *><char *>self.table
        self.tap.who = <void *>self
        self.tap.visit = visit

    cdef size_t prepare(self, list lengths, list past):
        """Before the pass: bytes of the copies, and of what the largest edit of one sequence works on."""
        copied = self.asked - {"logits"}
        self.left = len(copied) * len(lengths)
        n_all = [before + length for before, length in zip(past, lengths)]
        if self.batch is not None:
            n_all = [max(n_all)] * len(lengths)

        def numbers(text):
            return [math.prod(self.names[text].shape(*counts)) for counts in zip(lengths, n_all)]
        kept = sum([sum(numbers(text)) for text in copied])
        # An edit has a copy, its selected part and the answer; for attention there are scores, old and new weights.
        edited = [max(numbers(text)) * (6 if self.names[text].kind in editing.ATTENTION else 3) for text in self.edits]
        return (kept + max(edited, default=0)) * sizeof(float)

    cdef int see(self, int point, int layer, float *data, Py_ssize_t n_rows, Py_ssize_t width) except -1:
        """All sequences at one point."""
        cdef Py_ssize_t i
        cdef const g2_sequence *s
        if point == LOGITS:
            self.show(point, layer, self.tap.sequence, data, n_rows, width)
            return 0
        for i in range(self.tap.batch.n_sequences):
            s = self.tap.batch.sequences + i
            self.show(point, layer, i, data + s.row * width, s.n_rows, width)
        if self.left == 0 and not self.whole:
            self.tap.over = True
        return 0

    cdef int show(self, int point, int layer, Py_ssize_t i, float *data, Py_ssize_t n, Py_ssize_t width) except -1:
        """One sequence at one point: rows data[n, width]."""
        rows = np.asarray(<float[:n, :width]>data)
        if point == HEADS:
            self.attention(layer, i, rows)
        elif point == QKV:
            for kind, part in zip(AT[QKV], np.split(rows, 3, axis=1)):
                self.pass_by(self.names[f"h.{layer}.{kind}"], i, self.by_head(part))
        else:
            kind, = AT[point]
            self.pass_by(self.names[kind if point in (EMBED, LN_F, LOGITS) else f"h.{layer}.{kind}"], i, rows)
        return 0

    cdef by_head(self, rows):
        """[T, C] as [H, T, D], the same memory."""
        return rows.reshape(len(rows), self.attention_of(0).n_heads, -1).swapaxes(0, 1)

    cdef Attention attention_of(self, int layer):
        return (<Block>self.model.blocks[layer]).attn

    cdef int pass_by(self, name, Py_ssize_t i, array) except -1:
        """Edit, check, copy."""
        cdef Py_ssize_t first = self.tap.batch.sequences[i].position
        self.edit(name, i, array)
        if self.check:
            found = first_of(name, array, i, first)
            if found is not None:
                raise NonFiniteError(found)
        if name.text in self.asked and name.kind != "logits":
            self.place(name, i, array.shape)[...] = array
        return 0

    cdef int edit(self, name, Py_ssize_t i, array) except -1:
        """Edit an array in place; whoever edits has a copy, which may outlive the pass."""
        cdef Py_ssize_t first = self.tap.batch.sequences[i].position
        if name.text not in self.edits:
            return 0
        changed = array.copy()
        for edit in self.edits[name.text]:
            try:
                changed = edit(name, changed, first)
            except BaseException as error:
                with suppress(Exception):   # an exception may refuse to be written on
                    error.add_note(f"gpt2cy: in an edit of {name.text}, sequence {i}, positions from {first}")
                raise
        array[...] = changed
        return 0

    cdef place(self, name, Py_ssize_t i, tuple shape):
        """Where the copy for one sequence goes."""
        self.left -= 1
        if self.batch is None:
            array = np.empty(shape, np.float32)
            self.results.setdefault(name.text, []).append(array)
            return array
        if name.text not in self.results:
            self.results[name.text] = np.empty((*self.batch, *shape), np.float32)
        return self.results[name.text][i] if self.batch else self.results[name.text]

    # ---- attention, in the steps that its kernel takes at once -----------------------------------------

    cdef int attention(self, int layer, Py_ssize_t i, rows) except -1:
        """Scores, weights, heads and what they add, of one sequence; `rows` are its heads' outputs [T, C]."""
        scores, weights, heads, per_head = [self.names[f"h.{layer}.{kind}"] for kind in AT[HEADS]]
        texts = {scores.text, weights.text}
        if texts & self.edits.keys() or texts & self.asked:
            self.look_into(layer, i, scores, weights)
        self.pass_by(heads, i, self.by_head(rows))
        if per_head.text in self.asked:
            self.contributions(layer, rows, self.place(per_head, i, per_head.shape(len(rows), 0)))
        return 0

    cdef int look_into(self, int layer, Py_ssize_t i, scored, weighted) except -1:
        """Scores and weights; where edits change weights, the heads are made anew from them."""
        cdef const g2_sequence *s = self.tap.batch.sequences + i
        cdef Py_ssize_t n_keys = self.keys(i)
        cdef bint edited = scored.text in self.edits or weighted.text in self.edits
        shape = scored.shape(s.n_rows, n_keys)
        scores = self.place(scored, i, shape) if scored.text in self.asked else None
        weights = self.place(weighted, i, shape) if weighted.text in self.asked else None
        if scores is None:
            scores = np.empty(shape, np.float32) if edited or weights is None else weights
        self.score(layer, i, scores)
        if edited:
            # The mask is no part of what can be edited: later keys stay out whatever an edit says.
            masked = np.arange(n_keys) > s.position + np.arange(s.n_rows)[:, None]
            plain = scores.copy()
            self.weigh(i, plain)
            self.edit(scored, i, scores)
            scores[:, masked] = -np.inf
            weights = np.empty(shape, np.float32) if weights is None else weights
            weights[...] = scores
            self.weigh(i, weights)
            self.edit(weighted, i, weights)
            weights[:, masked] = 0
            self.mix(layer, i, weights, (weights.view(np.uint32) != plain.view(np.uint32)).any(axis=-1))
        elif weights is not None:
            if weights is not scores:
                weights[...] = scores
            self.weigh(i, weights)
        return 0

    cdef Py_ssize_t keys(self, Py_ssize_t i) noexcept:
        """S of one sequence: of a batch that becomes one array, that of the longest."""
        cdef const g2_sequence *s
        cdef Py_ssize_t j, most = 0
        for j in range(self.tap.batch.n_sequences):
            s = self.tap.batch.sequences + j
            if j == i or self.batch is not None:
                most = max(most, <Py_ssize_t>(s.position + s.n_rows))
        return most

    cdef int score(self, int layer, Py_ssize_t i, float[:, :, ::1] scores) except -1:
        cdef Attention attn = self.attention_of(layer)
        with nogil:
            kernel.scores(self.tap.team, self.tap.batch.sequences + i, self.tap.buffers.wide, attn.n_heads,
                          attn.head_dim, layer, attn.scale, &scores[0, 0, 0], scores.shape[2])
        return 0

    cdef int weigh(self, Py_ssize_t i, float[:, :, ::1] rows) except -1:
        with nogil:
            kernel.weigh(self.tap.team, self.tap.batch.sequences + i, rows.shape[0], &rows[0, 0, 0], rows.shape[2])
        return 0

    cdef int mix(self, int layer, Py_ssize_t i, const float[:, :, ::1] weights, changed) except -1:
        cdef const unsigned char[:, ::1] marks = changed.view(np.uint8)
        cdef Attention attn = self.attention_of(layer)
        with nogil:
            kernel.mix(self.tap.team, self.tap.batch.sequences + i, attn.n_heads, attn.head_dim, layer,
                       &weights[0, 0, 0], &marks[0, 0], self.tap.buffers.narrow, weights.shape[2])
        return 0

    cdef int contributions(self, int layer, rows, float[:, :, ::1] out) except -1:
        """out[H, T, C]: each head's rows through its part of c_proj, the other heads' rows being 0; no bias."""
        cdef Attention attn = self.attention_of(layer)
        cdef Py_ssize_t head, width = out.shape[2], n = out.shape[1]
        cdef g2_epilogue e = g2_epilogue(NULL, G2_LINEAR, NULL, width, NULL, width, NULL)
        cdef float[:, ::1] alone
        for head in range(attn.n_heads):
            columns = slice(head * attn.head_dim, (head + 1) * attn.head_dim)
            padded = np.zeros_like(rows)
            padded[:, columns] = rows[:, columns]
            alone = padded
            e.out = &out[head, 0, 0]
            with nogil:
                matmul(self.tap.team, &alone[0, 0], width, n, &attn.c_proj.matrix.layout, &e,
                       self.tap.buffers.scratch)
        return 0


cdef void visit(void *who, int point, int layer, float *data, Py_ssize_t n_rows, Py_ssize_t width) noexcept nogil:
    with gil:
        watch = <Watch>who
        try:
            watch.see(point, layer, data, n_rows, width)
        except BaseException as error:
            watch.error = error
            watch.tap.over = True


def for_pass(GPT model not None, bint check_finite):
    """The observer that a pass of `model` has by itself, or None."""
    edits = editing.in_force(model)
    return Watch(model, edits, check_finite) if edits or check_finite else None


def trace(GPT model not None, tokens, patterns, cache):
    """`GPT.trace`."""
    cdef Watch watch
    asked = naming.select(naming.of(model), patterns, "names")
    watch = Watch(model, editing.in_force(model), False, asked)
    watch.logits = "logits" in asked
    watch.whole = watch.logits or cache is not None
    if _checks.ragged(tokens):
        logits = model.ragged_logits("tokens", tokens, cache, watch)
    else:
        ids = _checks.token_array("tokens", tokens)
        watch.batch = () if ids.ndim == 1 else (len(ids),)
        logits = model.batch_logits(ids, cache, False, watch)
    if watch.logits:
        watch.results["logits"] = logits
    return {text: watch.results[name.text] for text, name in asked.items()}
