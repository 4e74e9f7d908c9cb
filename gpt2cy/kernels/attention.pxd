# SPDX-License-Identifier: Apache-2.0
from gpt2cy.kernels.table cimport g2_sequence
from gpt2cy.kernels.threads cimport Team

cdef void append(const Team *team, const g2_sequence *sequences, Py_ssize_t n_sequences, const float *qkv,
                 Py_ssize_t n_heads, Py_ssize_t head_dim, Py_ssize_t layer) noexcept nogil
cdef void attend(const Team *team, const g2_sequence *sequences, Py_ssize_t n_sequences, const float *qkv,
                 Py_ssize_t n_heads, Py_ssize_t head_dim, Py_ssize_t layer, float scale, float *out,
                 float *scratch, bint appends) noexcept nogil
cdef bint may_append(const Team *team, const g2_sequence *sequences, Py_ssize_t n_sequences,
                     Py_ssize_t head_dim) noexcept nogil
cdef Py_ssize_t attend_scratch(const Team *team) noexcept nogil

cdef void scores(const Team *team, const g2_sequence *s, const float *qkv, Py_ssize_t n_heads, Py_ssize_t head_dim,
                 Py_ssize_t layer, float scale, float *rows, Py_ssize_t n_keys) noexcept nogil
cdef void weigh(const Team *team, const g2_sequence *s, Py_ssize_t n_heads, float *rows,
                Py_ssize_t n_keys) noexcept nogil
cdef void mix(const Team *team, const g2_sequence *s, Py_ssize_t n_heads, Py_ssize_t head_dim, Py_ssize_t layer,
              const float *rows, const unsigned char *changed, float *out, Py_ssize_t n_keys) noexcept nogil
