# SPDX-License-Identifier: Apache-2.0
from libc.stdint cimport int64_t, uint8_t

from gpt2cy.kernels.table cimport g2_sampling, g2_statistics
from gpt2cy.kernels.threads cimport Team

ctypedef struct Edits:         # what happens to a row before anything is drawn from it, in this order
    float repetition           # divides positive and multiplies negative logits of `seen`; 1: does nothing
    float frequency, presence  # subtracted: times the count, and once, where the count is not 0
    const int64_t *seen        # [n_seen] distinct ids ...
    const int64_t *counts      # ... and how often each has been generated
    Py_ssize_t n_seen
    Py_ssize_t ngram           # no run of so many ids comes twice in `history`; 0: any may
    const int64_t *history     # [n_history]
    Py_ssize_t n_history
    const int64_t *biased      # [n_biased] distinct ids ...
    const float *bias          # ... and what each is given
    Py_ssize_t n_biased
    const uint8_t *allowed     # [width], or NULL: all are
    Py_ssize_t limit           # ids from here on are not

cdef enum:                     # Choice.status
    CHOSEN, NOT_FINITE, EDITED_NOT_FINITE, NOTHING_LEFT

ctypedef struct Choice:        # one row: how to choose, and what came of it
    bint edited                # there are edits
    Edits edits
    bint greedy                # the largest; else by `how` and `u`
    g2_sampling how
    double u
    bint scored                # logprob is wanted, of the row as it came
    Py_ssize_t n_top           # alternatives, of the row as it came
    int64_t *top               # [n_top]
    float *top_logprobs        # [n_top]
    int status
    int64_t id
    float logprob

cdef void statistics(const Team *team, const float *x, Py_ssize_t n, Py_ssize_t width, const int64_t *targets,
                     g2_statistics *out) noexcept nogil
cdef void top(const Team *team, const float *x, Py_ssize_t n, Py_ssize_t width, Py_ssize_t k, int64_t *ids,
              int64_t *found) noexcept nogil
cdef void edit(const Edits *e, float *x, Py_ssize_t width) noexcept nogil
cdef Py_ssize_t choose_scratch(const Team *team, Py_ssize_t width) noexcept nogil
cdef void choose(const Team *team, float *x, Py_ssize_t n, Py_ssize_t width, Choice *choices,
                 float *scratch) noexcept nogil
