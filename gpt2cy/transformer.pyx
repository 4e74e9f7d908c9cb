# SPDX-License-Identifier: Apache-2.0
"""Transformer: the layers of a GPT, and the way through them.

    ids [n]  ->  wte + wpe: x [n, C]  ->  block 0 .. L-1, in place  ->  ln_f  ->  lm_head: logits [n, V]

n counts the rows of all sequences, one after the other; nothing is padded, and attention alone looks at where
a sequence begins.  `run` is the one way through, from checked ids to logits; what is above it in this file checks
arguments and takes caches and memory for it.  `GPT` (model.pyx) is what a user sees of it.

Between two passes of a large model its weights have been through all caches, and whatever Python does at the door
comes from memory: checking ids takes 2 microseconds in a loop of its own, and 60 there.  So what a call on arrays of
int64 does is compiled, and asks Python's functions only where there is something to say (`plain_ids`,
`require_memory`).
"""
import numpy as np

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t
from libc.string cimport memmove

from gpt2cy.cache cimport KVCache
from gpt2cy.kernels cimport rows as kernel
from gpt2cy.kernels.memory cimport Result, new_result, spare_result
from gpt2cy.kernels.packed cimport PackedMatrix
from gpt2cy.kernels.table cimport G2_LINEAR
from gpt2cy.kernels.threads cimport Team
from gpt2cy.layers.block cimport Block
from gpt2cy.layers.tap cimport EMBED, LN_F, LOGITS, Tap, apart, show
from gpt2cy.workspace cimport (
    batch_nbytes, begin_call, blocks_for, gather_last, keep_last, residual_nbytes, shape_nbytes
)

from gpt2cy import _checks
from gpt2cy.config import LESS_WEIGHTS as _LESS_WEIGHTS
from gpt2cy.config import exact
from gpt2cy.kernels import host

cdef enum:
    KEPT_FROM = 32 << 20   # bytes of logits whose memory is kept; that of smaller ones glibc, at least, keeps by itself
    PLAIN_MOST = 1 << 16   # ids that are copied before their memory is asked for
    NO_LOGITS = 0          # of a ragged call: of no row,
    LAST_LOGITS = 1        # ... of the last one of each sequence,
    ALL_LOGITS = 2         # ... or of all

cdef Py_ssize_t MOST_LOGITS = <Py_ssize_t>1 << 60   # whose bytes can be counted
cdef object ndarray = np.ndarray, empty = np.empty
cdef object INT64 = np.dtype(np.int64), FLOAT32 = np.dtype(np.float32)


cdef bytes plain_ids(tokens, Py_ssize_t vocab, Py_ssize_t most, Py_ssize_t *batch, Py_ssize_t *length, bint *flat):
    """A private copy of int64 ids [T] or [B, T], or None if they are of another kind or there is an error to name.

    What `_checks.token_ids` does for everything else.
    """
    cdef tuple shape
    cdef bytes ids
    cdef const int64_t *data
    cdef Py_ssize_t n, i
    if type(tokens) is not ndarray or tokens.dtype is not INT64:
        return None
    shape = tokens.shape
    if not 1 <= len(shape) <= 2:
        return None
    flat[0] = len(shape) == 1
    batch[0] = 1 if flat[0] else shape[0]
    length[0] = shape[len(shape) - 1]
    if length[0] > most or batch[0] * length[0] > PLAIN_MOST:   # as NumPy sees to, the product does not overflow
        return None
    ids = tokens.tobytes()
    n = len(ids) // <Py_ssize_t>sizeof(int64_t)
    if n == 0 or n != batch[0] * length[0]:   # the latter if another thread gave it another shape just now
        return None
    data = <const int64_t *><const char *>ids
    for i in range(n):
        if <uint64_t>data[i] >= <uint64_t>vocab:
            return None
    return ids


cdef bint holds_floats(const Py_buffer *view, Py_ssize_t n, Py_ssize_t width) noexcept:
    """Whether memory that calls itself an array takes n rows: a subclass may say anything of its dtype and shape, and
    another thread may have changed them since they were checked."""
    return (view.format != NULL and view.format[0] == b"f" and view.format[1] == 0 and
            n <= view.len // <Py_ssize_t>sizeof(float) // width)


cdef class Transformer:
    """The layers, their memory, and every step of a call. Parameters and attributes are those of `GPT`."""

    def __cinit__(self, config, *, seed=None, init_std=0.02, bint _blank=False):
        cdef Block block
        cdef Linear head
        config = exact(config)
        seed = _checks.seed(seed)
        if not 0 <= _checks.real("init_std", init_std) <= 1e30:
            raise ValueError(f"init_std: expected a number from 0 to 1e30, got {init_std}")
        cdef float std = init_std
        cdef Py_ssize_t width = config.n_embd, vocab = config.vocab_size
        cdef size_t nbytes = config.memory_plan(1, 1)["weights"]
        cdef PackedMatrix matrix
        self.config = config
        self.scratch = Spare()
        self.results = Spare()
        host.require_memory("config", {"weights": nbytes}, _LESS_WEIGHTS)
        try:
            self.arena = Arena(nbytes)
        except MemoryError:
            raise MemoryError(f"config: {nbytes:,} bytes of weights cannot be allocated: "
                              f"reduce {_LESS_WEIGHTS}") from None
        matrix = PackedMatrix(width, vocab, self.arena)
        self.wte = Embedding(vocab, width, _arena=self.arena, _matrix=matrix if config.tie_weights else None)
        self.wpe = Embedding(config.block_size, width, _arena=self.arena)
        self.blocks = tuple([Block(config, i, _arena=self.arena) for i in range(config.n_layers)])
        self.ln_f = LayerNorm(width, config.layer_norm_eps, bias=config.bias, _arena=self.arena)
        self.lm_head = Linear(width, vocab, config.has_lm_head_bias, _arena=self.arena, _matrix=matrix)
        self.parameters = Parameters(config.parameter_shapes(), self.layers_by_name(), config.tie_weights, self.arena)
        if _blank:   # every weight is about to be set, and touching them all takes as long as reading them
            return
        rng = np.random.default_rng(seed)
        self.wte.draw(rng, std)
        self.wpe.draw(rng, std)
        for block in self.blocks:
            block.draw(rng, std)
        if not config.tie_weights:
            head = self.lm_head
            head.draw(rng, std)

    cdef dict layers_by_name(self):
        layers = {"wte": self.wte, "wpe": self.wpe, "ln_f": self.ln_f, "lm_head": self.lm_head}
        for i, block in enumerate(self.blocks):
            layers |= {
                f"h.{i}.ln_1": block.ln_1, f"h.{i}.attn.c_attn": block.attn.c_attn,
                f"h.{i}.attn.c_proj": block.attn.c_proj, f"h.{i}.ln_2": block.ln_2,
                f"h.{i}.mlp.c_fc": block.mlp.c_fc, f"h.{i}.mlp.c_proj": block.mlp.c_proj,
            }
        return layers

    # ---- a call's arguments ------------------------------------------------------------------

    cdef batch_logits(self, tokens, cache, bint last_only, Observer observer, out=None):
        """Forward and next_logits: [T] or [B, T] ids to their logits, or None where the observer wants none."""
        cdef bint wanted = out is None and (observer is None or observer.logits), kept, flat = False
        cdef Py_ssize_t vocab = self.lm_head.out_features, batch = 0, length = 0, n_out
        cdef Result memory = None
        cdef list lengths, caches = None
        cdef tuple shape
        cdef size_t nbytes
        cdef bytes ids = plain_ids(tokens, self.wte.num_embeddings, self.wpe.num_embeddings, &batch, &length, &flat)
        if ids is None:
            array = _checks.token_array("tokens", tokens)
            flat = array.ndim == 1
            length = array.shape[array.ndim - 1]
            batch = array.size // length
        if length > self.wpe.num_embeddings:
            _checks.length_fits("tokens", length, 0, self.wpe.num_embeddings)
        if cache is not None:
            self.check_cache(cache, "cache")
            if (<KVCache>cache).batch_size != batch:
                raise ValueError(f"cache: expected one slot a row, so a batch_size of {batch}, got "
                                 f"{(<KVCache>cache).batch_size}")
            caches = [cache]
        n_out = batch if last_only else batch * length
        if last_only:
            shape = (vocab,)
        else:
            shape = (length, vocab)
        if not flat:
            shape = (batch, *shape)
        if out is not None:
            _checks.output("out", out, shape)
            _checks.apart("out", out, "tokens", tokens)
        nbytes = <size_t>n_out * <size_t>vocab * sizeof(float)
        kept = wanted and KEPT_FROM <= nbytes <= self.arena.nbytes and n_out < MOST_LOGITS // vocab
        if kept:
            memory = spare_result(self.results, nbytes)
        if not wanted or memory is not None:
            n_out = 0
        if caches is None and batch * length > PLAIN_MOST:
            self.require_shape("tokens", batch, batch * length, batch * blocks_for(length), n_out)
        lengths = [length] * batch
        self.require_memory("tokens", lengths, caches, n_out, observer)
        if ids is None:
            ids = self.copied("tokens", array)
        if kept and memory is None:
            memory = new_result(self.results, nbytes)
        if memory is not None:
            out = memory.array(shape)
        elif wanted:
            out = self.new_array(shape)
        self.call(ids, lengths, caches, None, batch if last_only else -1, out, None, observer)
        return out

    cdef ragged_logits(self, str name, sequences, caches, Observer observer):
        """forward_many of the argument `name`; None where the observer wants no logits."""
        cdef bint wanted = observer is None or observer.logits
        ids, lengths, caches = self.ragged(name, sequences, caches, ALL_LOGITS if wanted else NO_LOGITS)
        self.require_memory(name, lengths, caches, sum(lengths) * wanted, observer)
        ids = self.copied(name, ids)
        outs = [self.new_array((length, self.lm_head.out_features)) for length in lengths] if wanted else None
        self.call(ids, lengths, caches, name, -1, None, outs, observer)
        return outs

    cdef next_ragged_logits(self, sequences, caches, out):
        """next_logits_many: of the first len(out) of the sequences, where `out` is given."""
        cdef Py_ssize_t vocab = self.lm_head.out_features, n_out
        ids, lengths, caches = self.ragged("sequences", sequences, caches, LAST_LOGITS if out is None else NO_LOGITS)
        if out is None:
            n_out = len(lengths)
            self.require_memory("sequences", lengths, caches, n_out, None)
        else:
            _checks.output("out", out, (len(lengths), vocab), fewer=True)
            _checks.apart("out", out, "sequences", sequences)
            n_out = len(out)
            if n_out > len(lengths):   # a subclass may say one thing now and another then
                raise ValueError(f"out: expected at most {len(lengths)} rows, got {n_out}")
            self.require_memory("sequences", lengths, caches, 0, None)
        ids = self.copied("sequences", ids)
        if out is None:
            out = self.new_array((n_out, vocab))
        self.call(ids, lengths, caches, "sequences", n_out, out, None)
        return out

    cdef tuple ragged(self, str name, sequences, caches, int logits):
        """What `copied` makes the ids of all sequences of, their lengths, and a list of as many caches or None."""
        cdef Py_ssize_t batch = 0, length = 0, times = 1
        cdef bint flat = False
        ids = plain_ids(sequences, self.wte.num_embeddings, self.wpe.num_embeddings, &batch, &length, &flat)
        if ids is not None and not flat:
            lengths, times = [length], batch
        elif isinstance(sequences, np.ndarray) and sequences.ndim == 2 and sequences.size:   # at once
            ids = _checks.token_array(name, sequences)
            times, length = ids.shape
            lengths = [length]
        else:
            ids = _checks.sequence_arrays(name, sequences)
            lengths = [len(array) for array in ids]
        longest = max(lengths)
        if longest > self.wpe.num_embeddings:
            _checks.length_fits(f"{name}[{lengths.index(longest)}]", longest, 0, self.wpe.num_embeddings)
        batch = times * len(lengths)
        if caches is None:
            self.require_sequences(name, lengths, times, logits)
            return ids, lengths * times, None
        return ids, lengths * times, self.checked_caches(caches, batch)

    cdef bytes copied(self, str name, ids):
        """A private copy of ids, checked: of an array, or of a list of arrays one after the other."""
        if isinstance(ids, bytes):   # it is one already
            return ids
        if isinstance(ids, list):
            return np.concatenate(_checks.sequence_copies(name, ids, self.wte.num_embeddings)).tobytes()
        return _checks.token_copy(name, ids, self.wte.num_embeddings).tobytes()

    cdef list checked_caches(self, caches, Py_ssize_t n):
        """A list of n different caches of this model, of one slot each; how full they are is seen when taken."""
        if not isinstance(caches, (list, tuple)):
            raise TypeError(f"caches: expected a list of KVCache, got {type(caches).__name__}")
        caches = list(caches)
        if len(caches) != n:
            raise ValueError(f"caches: expected {n}, one a sequence, got {len(caches)}")
        for i, cache in enumerate(caches):
            self.check_cache(cache, f"caches[{i}]")
            if (<KVCache>cache).batch_size != 1:
                raise ValueError(f"caches[{i}]: expected a cache of one slot, got {(<KVCache>cache).batch_size}")
        if len({id(cache) for cache in caches}) < n:
            raise ValueError("caches: the same cache is given twice")
        return caches

    cdef int check_cache(self, cache, str name) except -1:
        cdef KVCache given
        if not isinstance(cache, KVCache):
            raise TypeError(f"{name}: expected a KVCache, got {type(cache).__name__}")
        given = cache
        cdef Py_ssize_t layers = len(self.blocks), heads = (<Block>self.blocks[0]).attn.n_heads
        if given.n_layers != layers or given.n_heads != heads or given.n_embd != self.wte.n_embd:
            _checks.cache_sizes(name, given, layers, heads, self.wte.n_embd)
        return 0

    cdef int require_memory(self, str name, list lengths, list caches, Py_ssize_t n_out, Observer observer) except -1:
        """MemoryError before anything is allocated for a call that cannot fit."""
        cdef Py_ssize_t width = self.wte.n_embd, vocab = self.wte.num_embeddings
        cdef Py_ssize_t inner = (<Block>self.blocks[0]).mlp.c_fc.out_features
        cdef KVCache cache
        cdef Py_ssize_t i = 0, slot
        cdef size_t cached = 0, workspace, most = host.ALWAYS_FITS
        cdef list past = [0] * len(lengths)
        cdef Team team
        cdef size_t logits = <size_t>n_out * <size_t>vocab * sizeof(float)
        team.n_threads = 1
        if caches is not None:
            for number, item in enumerate(caches):
                cache = item
                # Another call's would move the tables of its blocks.
                cache.enter("cache" if name == "tokens" else f"caches[{number}]")
                for slot in range(cache.batch_size):
                    cached += cache.wanted(slot, lengths[i])
                    past[i] = cache.slots[slot].length
                    i += 1
                cache.leave()
        workspace = batch_nbytes(&team, lengths, width, inner, caches is None)
        if observer is None:
            observer = self.observed()   # as the pass will have it
        if observer is None and max(logits, workspace, cached) <= most and logits + workspace + cached <= most:
            return 0
        plan = {"logits": logits, "workspace": workspace}
        if caches is not None:
            plan["cache"] = cached
        if observer is not None:
            plan["activations"] = observer.prepare(lengths, past)
        return self.require_plan(name, plan)

    cdef int require_sequences(self, str name, list lengths, Py_ssize_t times, int logits) except -1:
        """The same of sequences of these lengths without caches, each so many times."""
        cdef Py_ssize_t batch = times * len(lengths), n = times * sum(lengths)
        if n <= PLAIN_MOST:
            return 0
        return self.require_shape(name, batch, n, times * sum([blocks_for(length) for length in lengths]),
                                  n if logits == ALL_LOGITS else batch if logits == LAST_LOGITS else 0)

    cdef int require_shape(self, str name, Py_ssize_t batch, Py_ssize_t n, Py_ssize_t blocks,
                           Py_ssize_t n_out) except -1:
        """The same of n ids in so many sequences without caches, too many perhaps for a list of their lengths.

        What is observed is not counted.
        """
        cdef Py_ssize_t inner = (<Block>self.blocks[0]).mlp.c_fc.out_features, vocab = self.wte.num_embeddings
        cdef Team team
        team.n_threads = 1
        if n_out >= MOST_LOGITS // vocab:
            raise MemoryError(f"{name}: logits of {n_out:,} tokens do not fit this machine's addresses")
        return self.require_plan(name, {
            "logits": <size_t>n_out * <size_t>vocab * sizeof(float),
            "workspace": shape_nbytes(&team, batch, n, blocks, self.wte.n_embd, inner, True)})

    cdef int require_plan(self, str name, dict plan) except -1:
        """MemoryError, with what can be reduced, if these bytes by purpose do not fit what is left."""
        reduce = "batch or length, or use next_logits where the last position is enough"
        if plan.get("activations", 0) > plan["logits"]:
            reduce = "batch or length, or what is traced or edited"
        try:
            host.require_memory(name, plan, reduce)
        except MemoryError:
            if not self.results.drop():
                raise
            host.require_memory(name, plan, reduce)
        return 0

    cdef new_array(self, tuple shape):
        """A new float32 array for a result."""
        try:
            return empty(shape, FLOAT32)
        except MemoryError:
            if not self.results.drop():
                raise
            return empty(shape, FLOAT32)

    # ---- the pass -----------------------------------------------------------------------------

    cdef Observer observed(self, bint check_finite=False):
        """Who sees the pass that begins: nobody, unless a subclass says so."""
        return None

    cdef int call(self, bytes ids, list lengths, list caches, str many, Py_ssize_t last_rows, out, list outs,
                  Observer observer=None, Scores scores=None) except -1:
        """Enter the guards, run, commit what the caches have read.

        ids: int64, checked, nobody else's; many: the argument that holds the sequences, where each has a cache of its
        own; out: an array that takes the logits, or None.
        """
        cdef Py_ssize_t n_out = last_rows if last_rows >= 0 else sum(lengths)
        cdef const int64_t *read = <const int64_t *><const char *>ids
        cdef Py_buffer view
        cdef KVCache cache
        cdef list slots = None
        cdef Py_ssize_t i, row = 0
        view.buf = NULL
        if out is not None:
            PyObject_GetBuffer(out, &view, PyBUF_WRITABLE | PyBUF_FORMAT)
        try:
            if out is not None and not holds_floats(&view, n_out, self.lm_head.out_features):
                raise ValueError(f"out: expected float32 numbers of {n_out} rows of logits, got {view.len} bytes of "
                                 f"format {view.format.decode()!r}")
            self.arena.enter_read()
            try:
                if caches is not None:
                    try:
                        slots = self.enter_caches(caches, lengths, many)
                    except MemoryError:
                        if not self.results.drop():
                            raise
                        slots = self.enter_caches(caches, lengths, many)
                try:
                    self.run(read, lengths, slots, last_rows, <float *>view.buf, outs, observer, scores)
                    if slots is not None:
                        for i in range(len(slots)):
                            cache, slot = slots[i]
                            cache.advance(slot, lengths[i], read + row)
                            row += <Py_ssize_t>lengths[i]
                finally:
                    if slots is not None:
                        for item in caches:
                            (<KVCache>item).leave()
            finally:
                self.arena.leave_read()
        finally:
            if out is not None:
                PyBuffer_Release(&view)
        return 0

    cdef list enter_caches(self, list caches, list lengths, str many):
        """Take the caches for this call, with room for `lengths` new positions: [(cache, slot)]."""
        cdef KVCache cache
        cdef Py_ssize_t i
        slots = []
        entered = []
        for item in caches:
            cache = item
            slots += [(cache, i) for i in range(cache.batch_size)]
        try:
            for i, item in enumerate(caches):
                cache = item
                cache.enter(f"caches[{i}]" if many else "cache")
                entered.append(cache)
            for i in range(len(slots)):
                cache, slot = slots[i]
                past = cache.slots[<Py_ssize_t>slot].length
                if past + lengths[i] > self.wpe.num_embeddings:
                    label = f"{many}[{i}]" if many else "tokens"
                    _checks.length_fits(label, lengths[i], past, self.wpe.num_embeddings)
                if past + lengths[i] > cache.capacity:
                    label = f"caches[{i}]" if many else "cache"
                    raise ValueError(f"{label}: slot {slot} holds {past} of {cache.capacity} positions, "
                                     f"{lengths[i]} more do not fit")
            for i in range(len(slots)):
                cache, slot = slots[i]
                cache.reserve(slot, lengths[i])
        except BaseException:
            for item in entered:
                (<KVCache>item).leave()
            raise
        return slots

    cdef int run(self, const int64_t *ids, list lengths, list slots, Py_ssize_t last_rows, float *out, list outs,
                 Observer observer, Scores scores) except -1:
        """The one way through: checked ids in; logits to `out`, or, where it is NULL, to the arrays `outs`.

        ids: rows of all sequences; lengths: rows of each; slots: a (cache, slot) for each, entered and
        reserved, or None; last_rows: logits of the last row of so many of the sequences, the first ones, or, if
        negative, of all rows of all; observer: who sees it, or None for whoever the edits in force want to; scores:
        statistics in place of logits, of the rows that it names.  An observed pass goes through every row in every
        block.
        """
        cdef Py_ssize_t n = sum(lengths), n_seq = len(lengths), width = self.wte.n_embd, i, j, row
        cdef Py_ssize_t inner = (<Block>self.blocks[0]).mlp.c_fc.out_features
        cdef bint last_only = last_rows >= 0
        cdef Py_ssize_t n_out = last_rows if last_only else n
        cdef size_t nbytes
        cdef Workspace w = begin_call()
        cdef int64_t *positions
        cdef float **rows = NULL
        cdef float[:, ::1] view
        cdef KVCache cache
        cdef Block block, last = self.blocks[len(self.blocks) - 1]
        cdef Tap *tap = NULL
        if observer is None:
            observer = self.observed()
        nbytes = batch_nbytes(&w.team, lengths, width, inner, slots is None)
        if scores is not None:
            nbytes = max(nbytes, residual_nbytes(n_seq, n, width) + scores.nbytes(&w.team, width))
        nbytes += n * (sizeof(int64_t) + sizeof(float *)) + 128
        try:
            w.obtain(nbytes, self.scratch)
        except MemoryError:
            if not self.results.drop():
                raise
            w.obtain(nbytes, self.scratch)
        w.lay_out(lengths, width, inner)
        if slots is None:
            w.own_blocks(width)
        else:
            for i in range(n_seq):
                cache, j = slots[i]
                cache.describe(j, w.batch.sequences + i)
        w.divide(width, inner)
        positions = <int64_t *>w.take(n * sizeof(int64_t))
        for i in range(n_seq):
            for j in range(w.batch.sequences[i].n_rows):
                positions[w.batch.sequences[i].row + j] = w.batch.sequences[i].position + j
        if outs is not None:
            rows = <float **>w.take(n_out * sizeof(float *))
            row = 0
            for array in outs:
                view = array
                for j in range(view.shape[0]):
                    rows[row] = &view[j, 0]
                    row += 1
        if observer is not None:
            tap = &observer.tap
            tap.team, tap.batch, tap.buffers = &w.team, &w.batch, &w.buffers
        with nogil:
            kernel.embed(&w.team, &self.wte.table, ids, &self.wpe.table, positions, w.buffers.x, n, width)
            show(tap, EMBED, 0, w.buffers.x, n, width)
        for block in self.blocks:
            PyErr_CheckSignals()
            if tap != NULL and tap.over:
                break
            w.batch.last_only = last_only and not apart(tap) and block is last
            with nogil:
                block.run(&w.team, &w.batch, &w.buffers, tap)
        if scores is not None and not (tap != NULL and tap.over):
            return self.score(w, lengths, scores, observer)
        if apart(tap):
            return self.end_observed(w, n_out, out, rows, observer)
        if n_out == 0:   # into the caches only
            return 0
        with nogil:
            self.ln_f.run(&w.team, w.buffers.x, n_out, w.buffers.narrow)
            show(tap, LN_F, 0, w.buffers.narrow, n_out, width)
            self.lm_head.run(&w.team, w.buffers.narrow, n_out, G2_LINEAR, NULL, out, rows, w.buffers.scratch)
        return 0

    cdef int end_observed(self, Workspace w, Py_ssize_t n_out, float *out, float **rows, Observer observer) except -1:
        """Final norm and head of an observed pass, as far as they are wanted; then what an observer raised."""
        cdef Tap *tap = &observer.tap
        cdef Py_ssize_t n = w.batch.n_rows, width = self.wte.n_embd, vocab = self.lm_head.out_features, row = 0, i
        cdef float *logits
        with nogil:
            if not tap.over and n_out > 0:
                self.ln_f.run(&w.team, w.buffers.x, n, w.buffers.narrow)
                show(tap, LN_F, 0, w.buffers.narrow, n, width)
            if not tap.over and n_out > 0 and (out != NULL or rows != NULL):
                if n_out < n:
                    keep_last(&w.batch)
                    gather_last(&w.batch, &w.buffers, width)
                self.lm_head.run(&w.team, w.buffers.narrow, n_out, G2_LINEAR, NULL, out, rows, w.buffers.scratch)
                for i in range(w.batch.n_sequences):
                    if row == n_out:
                        break
                    tap.sequence = i
                    n = w.batch.sequences[i].n_rows
                    logits = out + row * vocab if out != NULL else rows[row]
                    show(tap, LOGITS, 0, logits, n, vocab)
                    row += n
        if observer.error is not None:
            raise observer.error
        return 0

    cdef int score(self, Workspace w, list lengths, Scores scores, Observer observer) except -1:
        """What follows the blocks where logits are not wanted: rows to be scored close up, and the fused head."""
        cdef Py_ssize_t width = self.wte.n_embd, row = 0, done = 0, first, n, i
        cdef Tap *tap = &observer.tap if observer is not None else NULL
        with nogil:
            self.ln_f.run(&w.team, w.buffers.x, w.batch.n_rows, w.buffers.narrow)
            show(tap, LN_F, 0, w.buffers.narrow, w.batch.n_rows, width)
        if observer is not None and observer.error is not None:
            raise observer.error
        for i in range(len(lengths)):
            first = scores.firsts[i]
            n = lengths[i]
            if n > first:
                memmove(w.buffers.narrow + done * width, w.buffers.narrow + (row + first) * width,
                        (n - first) * width * sizeof(float))
            w.batch.sequences[i].row = done
            w.batch.sequences[i].position += first
            w.batch.sequences[i].n_rows = n - first
            done += n - first
            row += n
        w.give_back(w.buffers.wide)
        return scores.run(w, self.lm_head, w.buffers.narrow, observer)
