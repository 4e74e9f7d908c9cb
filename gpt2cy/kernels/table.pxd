# SPDX-License-Identifier: Apache-2.0
"""csrc/table.h and csrc/layout.h for Cython."""
from libc.stdint cimport int32_t, int64_t


cdef extern from *:
    """
    /* Before each parallel loop of a nogil function Cython asks whether this thread has the GIL, to release it.
     * Our loops never have it.  The asking is not harmless: before Python 3.12 the answer is yes once there has been a
     * sub-interpreter, and releasing what one does not have ends the process; and in the stable ABI before 3.13 there
     * is no answer, so that the GIL is taken first.  So the call becomes "nothing was released".  The definition of
     * the same function, known by its (void), keeps its body under another name. */
    #define __Pyx_SaveUnknownThread(...) G2_SAVE_ ## __VA_ARGS__
    #define G2_SAVE_ (1 ? (__Pyx_UnknownThreadState){0} : g2_save_unknown_thread())
    #define G2_SAVE_void g2_save_unknown_thread(void)
    """

cdef extern from "table.h" nogil:
    int G2_NUMERICS_VERSION
    enum:
        G2_PANEL, G2_LINE, G2_BLOCK, G2_MAX_ROWS, G2_MAX_HEAD, G2_FLOAT32, G2_ATTENTION_SCRATCH
        G2_LINEAR, G2_GELU_TANH, G2_GELU_ERF, G2_RELU

    ctypedef struct g2_packed:
        void *data
        const float *scales
        void *owner
        int64_t k, n
        int32_t dtype, panel, interleave

    ctypedef struct g2_sequence:
        int64_t row, n_rows, position
        float **blocks
        int64_t layer_stride

    ctypedef struct g2_epilogue:
        const float *bias
        int activation
        const float *residual
        int64_t ld_residual
        float *out
        int64_t ld_out
        float **out_rows

    ctypedef struct g2_attention:
        const float *q
        int64_t ld_q, n_queries, position
        float **blocks
        int64_t keys, values, head_dim
        float scale
        float *out
        int64_t ld_out
        float *scratch

    enum:
        G2_NOT_FINITE

    ctypedef struct g2_statistics:
        double log_sum_exp, log_total, entropy
        int64_t argmax, rank
        float max, logprob

    ctypedef struct g2_sampling:
        float inverse_temperature
        int64_t top_k
        double top_p
        float min_p
        double typical_p

    ctypedef struct g2_candidates:
        const float *weights
        const int64_t *ids
        int64_t n
        double total

    int64_t G2_SELECT_SCRATCH(int64_t n)

    ctypedef struct g2_table:
        const char *name
        int fused, sliver, queries, wide, passes, steps
        void (*gemm_tile)(int64_t m, int64_t k, const float *a, int64_t rs, int64_t ks, const float *b,
                          int64_t ldb, float *c, int64_t ldc, int accumulate,
                          const float *ahead, int64_t stride) noexcept nogil
        void (*transpose)(const float *a, int64_t lda, int64_t h, int64_t k, float *b, int64_t ldb) noexcept nogil
        void (*gemm_epilogue)(const g2_epilogue *e, const float *tile, int64_t m, int64_t n, int64_t row,
                              int64_t col) noexcept nogil
        void (*attention)(const g2_attention *a) noexcept nogil
        void (*layernorm)(const float *x, const float *gamma, const float *beta, float eps, float *y,
                          int64_t rows, int64_t width) noexcept nogil
        void (*softmax)(const float *x, float *y, int64_t rows, int64_t width) noexcept nogil
        void (*activation)(int kind, const float *x, float *y, int64_t n) noexcept nogil
        void (*exp)(const float *x, float *y, int64_t n) noexcept nogil
        int64_t (*argmax)(const float *x, int64_t n, float *max) noexcept nogil
        void (*statistics)(const float *x, int64_t n, int64_t target, g2_statistics *out) noexcept nogil
        int64_t (*top)(const float *x, int64_t n, int64_t k, int64_t *ids) noexcept nogil
        int64_t (*select)(const float *x, int64_t n, const g2_sampling *s, float *scratch,
                          g2_candidates *out) noexcept nogil
        int64_t (*draw)(const g2_candidates *c, double u) noexcept nogil

cdef extern from "order.h" nogil:
    float g2_logprob(float x, float max, double log_total)

cdef extern from "layout.h" nogil:
    ctypedef struct g2_rows:
        const float *data
        int64_t panel_stride, row_stride, column_stride

    float *g2_element(const g2_packed *w, int64_t k, int64_t n)
    void g2_copy_packed(const g2_packed *w, int64_t k0, int64_t rows, int64_t n0, int64_t columns,
                        float *other, int64_t row_stride, int64_t column_stride, int out)
    void g2_expect(const g2_epilogue *e, int64_t m, int64_t row, int64_t col)
    void g2_pack_transposed(const g2_table *table, const g2_packed *w, int64_t n0, int64_t columns,
                            const float *other, int64_t stride)
    void g2_append(const g2_table *table, const g2_sequence *s, const float *qkv, int64_t width,
                   int64_t head_dim, int64_t keys, int64_t head, int64_t n_heads, int64_t first, int64_t n)
    void g2_embed(const g2_rows *tokens, int64_t id, const g2_rows *positions, int64_t position,
                  int64_t width, float *x)

cdef extern from "fpmode.h" nogil:
    ctypedef unsigned long long fp_mode "uint64_t"
    fp_mode g2_fp_enter()
    void g2_fp_leave(fp_mode found)
    float g2_nearest(double x, int inverse_root)
