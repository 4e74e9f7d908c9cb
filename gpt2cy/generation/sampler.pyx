# SPDX-License-Identifier: Apache-2.0
"""From logits to ids: a `Sampler` for each row, and `choose` for all rows of a step.

    choose(samplers, logits)
      Sampler.allowed          the caller's `constrain`: the only Python code of a step, so before all else
      Sampler.choice           settings and history as the kernel wants them
      kernels.logits.choose    rows in parallel: penalties, selection, draw
    Sampler.accept(token)      by the caller, when it has taken the id

A row's draw depends on (seed, row, sample, step) and on that row's logits.
"""
import numpy as np

from libc.stdint cimport UINT64_MAX, uint8_t

from gpt2cy.kernels cimport logits as kernel
from gpt2cy.kernels.memory cimport Arena, rounded
from gpt2cy.kernels.threads cimport Team, join_team, leave_team

from gpt2cy import _checks
from gpt2cy.generation import sampling

cdef extern from "philox.h" nogil:
    double g2_uniform(uint64_t seed, uint32_t row, uint32_t sample, uint64_t step)
    void g2_philox(uint32_t *counter, const uint32_t *key)

cdef list spare = []   # an arena, kept from one step to the next: fresh pages cost more than the draw


def philox(counter, key):
    """Four 32-bit words of Philox4x32-10, for a counter of four and a key of two.

    Examples
    --------
    >>> from gpt2cy.generation.sampler import philox
    >>> [hex(word) for word in philox([0, 0, 0, 0], [0, 0])]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    cdef uint32_t[4] words = [counter[0], counter[1], counter[2], counter[3]]
    cdef uint32_t[2] keys = [key[0], key[1]]
    g2_philox(words, keys)
    return [words[0], words[1], words[2], words[3]]


def uniform(seed, row, sample, step):
    """The random number in [0, 1) by which a row draws its token of this step: a multiple of 2**-53.

    Parameters
    ----------
    seed : int
        From -2**63 to 2**64 - 1, of which the last 64 bits count.
    row, sample : int
        From 0 to 2**32 - 1.
    step : int
        Tokens that the row has drawn before.

    Examples
    --------
    >>> from gpt2cy.generation.sampler import uniform
    >>> uniform(0, 0, 0, 0) == (0x6627e8d5 >> 5 << 26 | 0xe169c58d >> 6) / 2**53
    True
    """
    seed = _checks.integer("seed", seed, *sampling.SEEDS)
    return g2_uniform(seed & <object>UINT64_MAX, _checks.integer("row", row, 0, 2**32 - 1),
                      _checks.integer("sample", sample, 0, 2**32 - 1), _checks.integer("step", step, 0, 2**63 - 1))


cdef grown(array, Py_ssize_t n):
    """An array with room for one more than its first n: itself, or one twice as long."""
    if n < len(array):
        return array
    longer = np.empty(max(16, 2 * n), array.dtype)
    longer[:n] = array[:n]
    return longer


cdef class Sampler:
    """What one row needs to choose its next token: settings, history, and the key of its random numbers.

    Parameters
    ----------
    settings : Sampling
    vocab_size : int
        V, as many logits as come.
    seed : int
        From -2**63 to 2**64 - 1; the settings' own is not looked at.
    row, sample : int
        Which prompt, and which of its continuations: from 0 to 2**32 - 1.
    prompt : array_like of int, [T]
        Ids; may be empty.

    Attributes
    ----------
    step : int
        Tokens accepted so far.
    n_prompt : int

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind or out of range, or a setting names an id outside the vocabulary.

    Examples
    --------
    >>> import numpy as np
    >>> from gpt2cy.generation.sampler import Sampler, choose
    >>> from gpt2cy.generation.sampling import Sampling
    >>> row = Sampler(Sampling(temperature=0, logprobs=2), 3, seed=0, row=0, sample=0, prompt=[1])
    >>> ids, logprobs, tops = choose([row], np.array([[0.0, 1.0, 3.0]], np.float32))
    >>> ids, logprobs.round(3), [id for id, logprob in tops[0]]
    (array([2]), array([-0.17], dtype=float32), [2, 1])
    >>> row.accept(2)
    >>> row.ids, row.step
    (array([1, 2]), 1)
    """

    def __init__(self, settings, vocab_size, seed, row, sample, prompt):
        if not isinstance(settings, sampling.Sampling):
            raise TypeError(f"settings: expected a Sampling, got {type(settings).__name__}")
        self.settings = settings
        self.vocab_size = _checks.integer("vocab_size", vocab_size, 1, 2**31 - 1)
        self.seed = _checks.integer("seed", seed, *sampling.SEEDS)
        self.row = _checks.integer("row", row, 0, 2**32 - 1)
        self.sample = _checks.integer("sample", sample, 0, 2**32 - 1)
        self.history = np.array(_checks.id_sequence("prompt", prompt, self.vocab_size), np.int64)
        self.n = self.n_prompt = len(self.history)
        self.place = None
        self.n_seen = 0
        self.seen = self.counts = np.empty(0, np.int64)
        if settings.repetition_penalty != 1 or settings.presence_penalty or settings.frequency_penalty:
            self.place = {}
            for token in dict.fromkeys(self.history.tolist()):
                self.count(token, 0)
        bias = settings.logit_bias or {}
        self.biased = np.array(_checks.id_sequence("logit_bias", list(bias), self.vocab_size), np.int64)
        self.bias = np.array(list(bias.values()), np.float32)

    @property
    def ids(self):
        """All ids so far, prompt and accepted: a fresh read-only array."""
        ids = self.history[:self.n].copy()
        ids.flags.writeable = False
        return ids

    @property
    def step(self):
        return self.n - self.n_prompt

    def accept(self, token):
        """Take this id as the row's next."""
        self.append(_checks.integer("token", token, 0, self.vocab_size - 1))

    def fork(self, sample):
        """Another row of the same history, which draws as `sample` from here on.

        Examples
        --------
        >>> from gpt2cy.generation.sampler import Sampler
        >>> from gpt2cy.generation.sampling import Sampling
        >>> row = Sampler(Sampling(), 100, seed=0, row=0, sample=0, prompt=[1, 2])
        >>> row.accept(3)
        >>> row.fork(1).ids, row.fork(1).step
        (array([1, 2, 3]), 1)
        """
        cdef Sampler other = Sampler(self.settings, self.vocab_size, self.seed, self.row, sample,
                                     self.history[:self.n_prompt])
        for token in self.history[self.n_prompt:self.n].tolist():
            other.append(token)
        return other

    def edit(self, float[::1] scores not None):
        """Penalties, bans and biases alone, in place: what happens to logits before the temperature.

        Parameters
        ----------
        scores : ndarray of float32, [vocab_size]
            Logits, or log-probabilities as in beam search.

        Raises
        ------
        ValueError
            If there are more or fewer of them, or `constrain` gives what is no mask or list of ids.

        Examples
        --------
        >>> import numpy as np
        >>> from gpt2cy.generation.sampler import Sampler
        >>> from gpt2cy.generation.sampling import Sampling
        >>> scores = np.array([2.0, -2.0, 1.0], np.float32)
        >>> Sampler(Sampling(repetition_penalty=1.25), 3, seed=0, row=0, sample=0, prompt=[0, 0, 1]).edit(scores)
        >>> scores
        array([ 1.6, -2.5,  1. ], dtype=float32)
        """
        cdef Edits e
        cdef list keep = []
        if scores.shape[0] != self.vocab_size:
            raise ValueError(f"scores: expected shape [{self.vocab_size}], got [{scores.shape[0]}]")
        if self.edits(self.allowed(), keep, &e):
            kernel.edit(&e, &scores[0], self.vocab_size)

    # ---- for `choose` ---------------------------------------------------------------------------

    cdef void append(self, int64_t token) except *:
        cdef int64_t[::1] view
        self.history = grown(self.history, self.n)
        view = self.history
        view[self.n] = token
        self.n += 1
        if self.place is not None:
            self.count(token, 1)

    cdef void count(self, int64_t token, int64_t times) except *:
        cdef int64_t[::1] view
        cdef object at = self.place.get(token)
        if at is None:
            at = self.place[token] = self.n_seen
            self.seen, self.counts = grown(self.seen, self.n_seen), grown(self.counts, self.n_seen)
            view = self.seen
            view[self.n_seen] = token
            view = self.counts
            view[self.n_seen] = 0
            self.n_seen += 1
        view = self.counts
        view[<Py_ssize_t>at] += times

    cdef object allowed(self):
        """What `constrain` lets come next: an array of uint8 [V], or None for anything."""
        if self.settings.constrain is None:
            return None
        answer = self.settings.constrain(self.ids)
        if answer is None:
            return None
        if isinstance(answer, (set, frozenset)):
            answer = list(answer)
        array = np.asarray(answer)
        if array.dtype == bool:
            if array.shape != (self.vocab_size,):
                raise ValueError(f"constrain: expected a mask of shape [{self.vocab_size}], or ids, or None, "
                                 f"got a mask of shape {list(array.shape)}")
            return np.array(array, np.uint8)
        mask = np.zeros(self.vocab_size, np.uint8)
        mask[_checks.id_sequence("constrain", answer, self.vocab_size)] = 1
        return mask

    cdef bint edits(self, mask, list keep, Edits *e) except -1:
        """Whether there are any. The arrays that `e` points into are added to `keep`."""
        cdef const int64_t[::1] view
        cdef const float[::1] floats
        cdef const uint8_t[::1] bytes_
        settings = self.settings
        e.repetition, e.frequency = settings.repetition_penalty, settings.frequency_penalty
        e.presence = settings.presence_penalty
        e.n_seen, e.n_history, e.n_biased = self.n_seen, self.n, len(self.biased)
        e.ngram = min(settings.no_repeat_ngram_size, 2**31)
        e.limit = min(settings.vocab_limit or self.vocab_size, self.vocab_size)
        e.seen = e.counts = e.history = e.biased = NULL
        e.bias = NULL
        e.allowed = NULL
        keep += [self.seen, self.counts, self.history, self.biased, self.bias, mask]
        if e.n_seen:
            view = self.seen
            e.seen = &view[0]
            view = self.counts
            e.counts = &view[0]
        if e.n_history:
            view = self.history
            e.history = &view[0]
        if e.n_biased:
            view = self.biased
            e.biased = &view[0]
            floats = self.bias
            e.bias = &floats[0]
        if mask is not None:
            bytes_ = mask
            e.allowed = &bytes_[0]
        return bool(e.n_seen or e.ngram or e.n_biased or mask is not None or e.limit < self.vocab_size)

    cdef void choice(self, mask, list keep, Choice *c) except *:
        """All that the kernel asks for but the places for alternatives."""
        settings = self.settings
        c.edited = self.edits(mask, keep, &c.edits)
        c.greedy = settings.greedy
        c.how.inverse_temperature = 0 if c.greedy else 1 / settings.temperature
        c.how.top_k = min(settings.top_k or 0, self.vocab_size)
        c.how.top_p = 1.0 if settings.top_p is None else settings.top_p
        c.how.min_p = settings.min_p or 0.0
        c.how.typical_p = 1.0 if settings.typical_p is None else settings.typical_p
        c.u = g2_uniform(self.seed & <object>UINT64_MAX, <uint32_t>self.row, <uint32_t>self.sample,
                         <uint64_t>(self.n - self.n_prompt))
        c.scored = settings.logprobs is not None
        c.n_top = min(settings.logprobs or 0, self.vocab_size)


def choose(list samplers not None, float[:, ::1] logits not None, bint model_logprobs=False):
    """Choose the next id of each row; the caller then tells the samplers what it has accepted.

    Parameters
    ----------
    samplers : list of Sampler, n of them
    logits : ndarray of float32, [n, V]
        Row i for samplers[i]. Overwritten.
    model_logprobs : bool
        Whether log-probabilities are wanted of rows too whose settings do not ask for any.

    Returns
    -------
    ids : ndarray of int64, [n]
    logprobs : ndarray of float32, [n]
        Of the chosen ids under the model: log softmax of the logits as they came. NaN where not wanted.
    tops : list of (list of (int, float), or None)
        For each row that wants log-probabilities the most likely ids with theirs, the likeliest first.

    Raises
    ------
    FloatingPointError
        If logits are not finite (NaN, +Inf, or all of them -Inf): names the row and the step.
    ValueError
        If constraints leave nothing to choose, or shapes do not fit.
    """
    cdef Py_ssize_t n = len(samplers), width = logits.shape[1], i, most = 0
    cdef Sampler sampler
    cdef Choice *choices
    cdef list masks, keep = []
    cdef int64_t[:, ::1] top
    cdef float[:, ::1] top_logprobs
    cdef int64_t[::1] ids_view
    cdef float[::1] logprobs_view
    samplers = list(samplers)   # ours: `constrain` may do what it likes to the caller's
    if logits.shape[0] != n:
        raise ValueError(f"logits: expected {n} rows, one a sampler, got {logits.shape[0]}")
    for i in range(n):
        if not isinstance(samplers[i], Sampler):
            raise TypeError(f"samplers[{i}]: expected a Sampler, got {type(samplers[i]).__name__}")
        if (<Sampler>samplers[i]).vocab_size != width:
            raise ValueError(f"logits: expected {(<Sampler>samplers[i]).vocab_size} columns, got {width}")
    ids, logprobs = np.empty(n, np.int64), np.empty(n, np.float32)
    if n == 0:
        return ids, logprobs, []
    masks = [(<Sampler>sampler).allowed() for sampler in samplers]
    memory = Arena(rounded(n * sizeof(Choice)))
    choices = <Choice *>memory.take(n * sizeof(Choice))
    for i in range(n):
        sampler = samplers[i]
        sampler.choice(masks[i], keep, &choices[i])
        choices[i].scored = choices[i].scored or model_logprobs
        most = max(most, choices[i].n_top)
    if most:
        alternatives, theirs = np.empty((n, most), np.int64), np.empty((n, most), np.float32)
        top, top_logprobs = alternatives, theirs
        for i in range(n):
            choices[i].top, choices[i].top_logprobs = &top[i, 0], &top_logprobs[i, 0]
    run(choices, logits)
    ids_view, logprobs_view = ids, logprobs
    for i in range(n):
        if choices[i].status != kernel.CHOSEN:
            refuse(samplers[i], choices[i].status)
        ids_view[i], logprobs_view[i] = choices[i].id, choices[i].logprob
    tops = [None] * n
    for i in range(n):
        sampler = samplers[i]
        if sampler.settings.logprobs is not None:
            k = choices[i].n_top
            tops[i] = list(zip(alternatives[i, :k].tolist(), theirs[i, :k].tolist())) if k else []
    return ids, logprobs, tops


cdef void run(Choice *choices, float[:, ::1] logits) except *:
    """With scratch memory and the team, which are given back also when an error leaves."""
    cdef Py_ssize_t n = logits.shape[0], width = logits.shape[1]
    cdef size_t wanted
    cdef float *x = &logits[0, 0]
    cdef float *scratch
    cdef Arena arena
    cdef Team team
    join_team(&team)
    try:
        wanted = rounded(kernel.choose_scratch(&team, width) * sizeof(float))
        try:
            arena = spare.pop()
        except IndexError:   # the first call, or another thread's is running
            arena = None
        if arena is None or arena.nbytes < wanted:
            arena = Arena(wanted)
        arena.used = 0
        scratch = <float *>arena.take(wanted)
        with nogil:
            kernel.choose(&team, x, n, width, choices, scratch)
    finally:
        leave_team(&team)
    if not spare:
        spare.append(arena)


cdef refuse(Sampler sampler, int status):
    where = f"in row {sampler.row}, sample {sampler.sample}, at step {sampler.n - sampler.n_prompt}"
    if status == kernel.NOT_FINITE:
        raise FloatingPointError(f"logits: expected finite numbers, got NaN, +Inf or nothing but -Inf {where}")
    if status == kernel.EDITED_NOT_FINITE:
        raise FloatingPointError(f"logits: penalties and logit_bias led to NaN or +Inf {where}")
    raise ValueError(
        "constrain, logit_bias, no_repeat_ngram_size, vocab_limit: expected at least one id to be left, "
        f"got none {where}"
    )
