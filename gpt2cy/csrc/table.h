/* SPDX-License-Identifier: Apache-2.0
 *
 * All that the rest of the package sees of the C kernels: three layouts and one table of pointers.
 *
 * g2_packed    a weight matrix [K, N] in panels of 32 columns: [ceil(N/32)][K][32] float32.
 *              The columns past N in the last panel are zero and never leave the kernels.
 * g2_sequence  one sequence of a ragged batch: which rows of x it owns, where it stands, and the
 *              table of 64-position key/value blocks that hold its past.
 * key/value block of one layer: keys [head][head_dim][64], then values [head][64][head_dim].
 * sliver       h rows of the left matrix, transposed: [K][h], so that a kernel reads it forwards.
 *
 * A kernel works on one thread, allocates nothing, knows neither Python nor OpenMP.  The contract
 * of each entry stands beside it; the order of its arithmetic is in ref.c, which every table
 * with `fused` set equals to the bit. */
#ifndef G2_TABLE_H
#define G2_TABLE_H

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "gpt2cy promises its bits: it cannot be compiled with -ffast-math or -ffinite-math-only"
#endif

#include <stddef.h>
#include <stdint.h>

#define G2_NUMERICS_VERSION 1 /* raised by every release that changes a bit of any result */

enum { G2_PANEL = 32 };     /* columns of a panel, on every instruction set */
enum { G2_LANES = 16 };     /* partial sums of a row reduction, on every instruction set */
enum { G2_BLOCK = 64 };     /* positions of a key/value block, aligned to absolute position */
/* Over all instruction sets: most rows of a register tile, and most queries of a call of attention. */
enum { G2_MAX_ROWS = 14, G2_MAX_QUERIES = 36 };
enum { G2_LINE = 16 };      /* floats of a cache line */
enum { G2_MAX_HEAD = 256 }; /* widest attention head */

enum { G2_FLOAT32 = 0 }; /* g2_packed.dtype; 16-bit pairs, int8 quads and int4 come later */

enum { G2_LINEAR = 0, G2_GELU_TANH = 1, G2_GELU_ERF = 2, G2_RELU = 3 }; /* activations */

typedef struct {
    void *data;          /* panels; 64-byte aligned */
    const float *scales; /* per column or per group where dtype has them, else NULL */
    void *owner;         /* who frees data; the kernels never look */
    int64_t k, n;        /* the public shape [in, out] */
    int32_t dtype;
    int32_t panel;      /* columns of a panel, G2_PANEL */
    int32_t interleave; /* consecutive k stored together: 1 for float32 */
} g2_packed;

typedef struct {
    int64_t row, n_rows;  /* x[row : row + n_rows] */
    int64_t position;     /* absolute position of the first row */
    float **blocks;       /* block i holds positions 64 i .. 64 i + 63 */
    int64_t layer_stride; /* floats from one layer's part of a block to the next layer's */
} g2_sequence;

typedef struct { /* what happens to a finished product, in this order */
    const float *bias;     /* [N] added first, or NULL */
    int activation;        /* then this */
    const float *residual; /* [M, ld_residual] added last, or NULL; may be `out` itself */
    int64_t ld_residual;
    float *out;             /* [M, ld_out] ... */
    int64_t ld_out;
    float *const *out_rows; /* ... or, where not NULL, M separate rows */
} g2_epilogue;

typedef struct { /* up to `queries` consecutive queries of one head of one sequence */
    const float *q;  /* [n_queries, ld_q], head_dim columns of it */
    int64_t ld_q;
    int64_t n_queries, position; /* of the first query */
    float *const *blocks;
    int64_t keys, values; /* floats from a block's start to this layer's and head's part */
    int64_t head_dim;
    float scale; /* above 0 */
    float *out;  /* [n_queries, ld_out] */
    int64_t ld_out;
    float *scratch; /* G2_ATTENTION_SCRATCH floats, 64-byte aligned */
} g2_attention;

/* The scores, the output sums and the queries, as slivers. */
#define G2_ATTENTION_SCRATCH (G2_MAX_QUERIES * (G2_BLOCK + 2 * G2_MAX_HEAD))

/* What argmax gives where there is no largest logit. */
enum { G2_NOT_FINITE = -1 }; /* a NaN or +Inf is among them */
enum { G2_NOTHING = -2 };    /* all are -Inf */

typedef struct { /* of one row of logits; where it is not finite, argmax says why and the rest is NaN or -1 */
    double log_sum_exp; /* natural logarithm */
    double log_total;   /* of the sum of exp(x - max): log_sum_exp - max without its rounding */
    double entropy;     /* in nats */
    int64_t argmax;     /* the lowest id of the largest logit, or G2_NOT_FINITE or G2_NOTHING */
    int64_t rank;       /* of the target: ids with a larger logit, or with an equal one and a lower id */
    float max;
    float logprob;      /* of the target */
} g2_statistics;

typedef struct { /* which ids of a row may be drawn, in the order in which it is decided */
    float inverse_temperature;
    int64_t top_k;    /* keep the ids of the k largest logits; 0 keeps all */
    double top_p;     /* then the likeliest, as few as together have this share; 1 keeps all */
    float min_p;      /* then those at least this many times as likely as the likeliest; 0 keeps all */
    double typical_p; /* as top_p, but first those whose log-likelihood is nearest to its mean; 1 keeps all */
} g2_sampling;

typedef struct {
    const float *weights; /* [n]; 0: not to be drawn */
    const int64_t *ids;   /* [n], ascending; NULL: of position i it is i */
    int64_t n;
    double total; /* of the weights, exactly */
} g2_candidates;

/* Floats of scratch memory to select from a row of n, 8-byte aligned: ids, and three arrays of floats. */
#define G2_SELECT_SCRATCH(n) (5 * (int64_t)(n))

typedef struct g2_table {
    const char *name;
    int fused;    /* 1: fused multiply-add, so equal to ref.c to the bit */
    int sliver;   /* rows of the register tile that fills the registers */
    int queries;  /* of one call of attention, at most: some slivers */
    int wide;     /* a tile of up to so many rows goes through its panel once, one k in each turn of its loop */
    int passes;   /* a tile of more rows goes through it so many times, */
    int steps;    /* and does so many k in each turn */

    /* c[m, 32] (+)= a[m, k] b[k, 32], one chain over k for each element, starting at 0 or, with
     * `accumulate`, at c.  a[i, p] is a[i rs + p ks]: rows, ks 1, or against a panel (ldb 32) a sliver, rs 1 and
     * ks m; 1 <= m <= sliver; 32 floats are readable in each of b's k rows.  Where `ahead` is not NULL, each turn of
     * the loop prefetches the cache lines of the `stride` <= 48 floats there and moves it on by as many. */
    void (*gemm_tile)(int64_t m, int64_t k, const float *a, int64_t rs, int64_t ks, const float *b,
                      int64_t ldb, float *c, int64_t ldc, int accumulate, const float *ahead, int64_t stride);
    /* b[p ldb + i] = a[i lda + p] for i < h, p < k.  Nothing else is written; ldb >= h. */
    void (*transpose)(const float *a, int64_t lda, int64_t h, int64_t k, float *b, int64_t ldb);
    /* Bias, activation, residual, store: tile[m, 32] to rows row.. and columns col..col+n-1. */
    void (*gemm_epilogue)(const g2_epilogue *e, const float *tile, int64_t m, int64_t n, int64_t row,
                          int64_t col);
    void (*attention)(const g2_attention *a);
    /* y[rows, width] from x[rows, width]; x may be y */
    void (*layernorm)(const float *x, const float *gamma, const float *beta, float eps, float *y,
                      int64_t rows, int64_t width);
    void (*softmax)(const float *x, float *y, int64_t rows, int64_t width);
    void (*activation)(int kind, const float *x, float *y, int64_t n);
    void (*exp)(const float *x, float *y, int64_t n);

    /* One row of logits, 1 <= n < 2^31; -Inf among them counts for nothing.  The lowest id of the largest. */
    int64_t (*argmax)(const float *x, int64_t n, float *max);
    /* All of it; target -1: none. */
    void (*statistics)(const float *x, int64_t n, int64_t target, g2_statistics *out);
    /* ids[k] of the largest, by value and then by id; returns how many: fewer where n is, 0 where argmax is
     * negative. */
    int64_t (*top)(const float *x, int64_t n, int64_t k, int64_t *ids);
    /* What may be drawn, with weights exp((x - max) inverse_temperature); it lies in scratch, or is x's.  Returns
     * what argmax does. */
    int64_t (*select)(const float *x, int64_t n, const g2_sampling *s, float *scratch, g2_candidates *out);
    /* The id at share u of the total, 0 <= u < 1: the first at which the sum of weights exceeds it. */
    int64_t (*draw)(const g2_candidates *c, double u);
} g2_table;

/* Tables that this build holds, best last; NULL-terminated.  g2_supported says whether the
 * processor and the operating system can run one. */
const g2_table *const *g2_tables(void);
int g2_supported(const g2_table *table);

#endif
