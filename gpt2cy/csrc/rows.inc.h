/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done row by row: layer norm, softmax, and the functions of one number.
 *
 * Numbers: a row's sum is 16 lanes (simd.h), each starting at +0; its tail is selected in, so a
 * lane without an element keeps what it has.  Layer norm: m = sum / C, v = sum of (x - m)^2 / C,
 * ((x - m) (1 / sqrt(v + eps))) gamma + beta with one fused multiply-add at the end. */

/* Vector j of a group of 16 elements at x, of which n are there (16 or more: all); the rest reads as `missing`. */
INLINE vf group_load(const float *x, int64_t n, int j, float missing) {
    int64_t there = lanes_in(n, j);
    if (there == G2_VL) return v_load(x + j * G2_VL);
    if (there == 0) return v_splat(missing);
    return v_head(there, v_load_head(x + j * G2_VL, there), v_splat(missing));
}
INLINE void group_store(float *y, vf v, int64_t n, int j) {
    int64_t there = lanes_in(n, j);
    if (there == G2_VL) v_store(y + j * G2_VL, v);
    else if (there) v_store_head(y + j * G2_VL, v, there);
}

/* sum + term in the lanes that the group's n elements fill. */
INLINE vf lanes_add(vf sum, vf term, int64_t n, int j) {
    return n >= G2_LANES ? sum + term : v_head(lanes_in(n, j), sum + term, sum);
}

/* Side by side, since the sums of one row wait for each other; but four of 768, their results and the next four are
 * 36 KiB, and the nearest cache has 32 where vectors are short. */
enum { NORM_ROWS = G2_VL == 4 ? 2 : G2_VL == 8 ? 3 : 4 };

/* A line that is only written is read first, so the second pass asks for those of y, and the third for the next
 * rows of x, which need not be there: a fifth of the time in the third-level cache.  x - m is x + (-m), which x86 adds
 * from where x lies.  `rows` and `with_beta` are constants. */
INLINE void norm_rows(const int rows, const int with_beta, const float *x, const float *gamma, const float *beta,
                      float eps, float *y, int64_t width) {
    const int64_t whole = width / G2_LANES * G2_LANES, left = width - whole;
    lanes16 sum[NORM_ROWS], squares[NORM_ROWS];
    vf shift[NORM_ROWS], scale[NORM_ROWS]; /* -m, and 1 / sqrt(v + eps) */
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < G2_REGISTERS; j++) sum[i].r[j] = squares[i].r[j] = v_splat(0.0f);
    for (int64_t c = 0; c < whole; c += G2_LANES)
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++)
                sum[i].r[j] = sum[i].r[j] + v_load(x + i * width + c + j * G2_VL);
    UNROLL for (int i = 0; i < rows; i++) {
        if (left)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++)
                sum[i].r[j] = lanes_add(sum[i].r[j], group_load(x + i * width + whole, left, j, 0.0f), left, j);
        shift[i] = v_splat(-(lanes_sum(sum[i]) / (float)width));
    }
    for (int64_t c = 0; c < whole; c += G2_LANES)
        UNROLL for (int i = 0; i < rows; i++) {
            __builtin_prefetch(y + i * width + c, 1, 3);
            UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
                vf d = v_load(x + i * width + c + j * G2_VL) + shift[i];
                squares[i].r[j] = v_fma(d, d, squares[i].r[j]);
            }
        }
    UNROLL for (int i = 0; i < rows; i++) {
        if (left)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
                vf d = group_load(x + i * width + whole, left, j, 0.0f) + shift[i];
                squares[i].r[j] = v_head(lanes_in(left, j), v_fma(d, d, squares[i].r[j]), squares[i].r[j]);
            }
        float variance = lanes_sum(squares[i]) / (float)width;
        scale[i] = v_splat(1.0f / __builtin_sqrtf(variance + eps));
    }
    for (int64_t c = 0; c < whole; c += G2_LANES) {
        UNROLL for (int i = 0; i < rows; i++) __builtin_prefetch(x + (rows + i) * width + c, 0, 3);
        UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
            const int64_t at = c + j * G2_VL;
            vf g = v_load(gamma + at), b = with_beta ? v_load(beta + at) : g;
            UNROLL for (int i = 0; i < rows; i++) {
                vf v = (v_load(x + i * width + at) + shift[i]) * scale[i];
                v_store(y + i * width + at, with_beta ? v_fma(v, g, b) : v * g);
            }
        }
    }
    if (left)
        UNROLL for (int i = 0; i < rows; i++)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
                vf v = (group_load(x + i * width + whole, left, j, 0.0f) + shift[i]) * scale[i];
                vf g = group_load(gamma + whole, left, j, 0.0f);
                v = with_beta ? v_fma(v, g, group_load(beta + whole, left, j, 0.0f)) : v * g;
                group_store(y + i * width + whole, v, left, j);
            }
}

FUNCTION void NAMED(layernorm)(const float *x, const float *gamma, const float *beta, float eps, float *y,
                               int64_t rows, int64_t width) {
#define CASE(ROWS)                                                      \
    case ROWS:                                                          \
        if (ROWS > NORM_ROWS) break; /* there is no such case */        \
        if (beta) norm_rows(ROWS, 1, x, gamma, beta, eps, y, width);    \
        else norm_rows(ROWS, 0, x, gamma, NULL, eps, y, width);         \
        break;
    for (int64_t n; rows > 0; rows -= n, x += n * width, y += n * width) {
        n = rows < NORM_ROWS ? rows : NORM_ROWS;
        switch (n) { CASE(1) CASE(2) CASE(3) CASE(4) }
    }
#undef CASE
}

/* Softmax has three stages: a row's maximum; its exponentials and their sum; its quotients.  Three rows are on their way
 * at a time, each at a stage of its own, so that one's divisions take place while the next one's exponentials are
 * computed.  `max` and `total` come from the stage before and go to the stage after.  The first stage asks for what
 * it will read soon, which need not be there, and for the lines that the second will write. */
enum { MAXIMUM = 1, POWERS = 2, QUOTIENTS = 4 };
enum { SOON = 1024 }; /* 4 KiB */

/* Of n <= 16 numbers each, at x and y for the first stage's row, one and two rows before for the others'. */
INLINE void softmax_group(const int stages, const float *x, float *y, int64_t width, int64_t n, vf max, vf total,
                          lanes16 *top, lanes16 *sum) {
    const float lowest = -__builtin_inff();
    lanes16 e;
    if (stages & MAXIMUM) __builtin_prefetch(x + SOON, 0, 3), __builtin_prefetch(y, 1, 3);
    if (stages & POWERS) {
        UNROLL for (int j = 0; j < G2_REGISTERS; j++) e.r[j] = group_load(x - width, n, j, lowest) - max;
        each_exp_down(G2_REGISTERS, e.r);
    }
    UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
        if (stages & MAXIMUM) {
            vf larger = v_max(top->r[j], group_load(x, n, j, lowest));
            top->r[j] = n >= G2_LANES ? larger : v_head(lanes_in(n, j), larger, top->r[j]);
        }
        if (stages & POWERS) {
            sum->r[j] = lanes_add(sum->r[j], e.r[j], n, j);
            group_store(y - width, e.r[j], n, j);
        }
        if (stages & QUOTIENTS) group_store(y - 2 * width, group_load(y - 2 * width, n, j, 0.0f) / total, n, j);
    }
}

/* `stages`, a constant: those that have a row.  The first has this row, the second the one before it, the third ... */
INLINE void softmax_stages(const int stages, const float *x, float *y, int64_t row, int64_t width, vf *max,
                           vf *total) {
    lanes16 top, sum;
    UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
        top.r[j] = v_splat(-__builtin_inff());
        sum.r[j] = v_splat(0.0f);
    }
    int64_t n = width;
    for (x += row * width, y += row * width; n >= G2_LANES; x += G2_LANES, y += G2_LANES, n -= G2_LANES)
        softmax_group(stages, x, y, width, G2_LANES, *max, *total, &top, &sum);
    if (n) softmax_group(stages, x, y, width, n, *max, *total, &top, &sum);
    *max = v_splat(lanes_max(top));
    *total = v_splat(lanes_sum(sum));
}

FUNCTION void NAMED(softmax)(const float *x, float *y, int64_t rows, int64_t width) {
    vf max = v_splat(0.0f), total = max;
    for (int64_t row = 0; row < rows + 2; row++) {
#define CASE(STAGES) case STAGES: softmax_stages(STAGES, x, y, row, width, &max, &total); break;
        switch ((row < rows ? MAXIMUM : 0) | (row >= 1 && row <= rows ? POWERS : 0) | (row >= 2 ? QUOTIENTS : 0)) {
            CASE(MAXIMUM) CASE(POWERS) CASE(QUOTIENTS)
            CASE(MAXIMUM | POWERS) CASE(MAXIMUM | POWERS | QUOTIENTS) CASE(POWERS | QUOTIENTS)
        }
#undef CASE
    }
}

#define EACH_ELEMENT(EACH_OF)                                                                      \
    do {                                                                                           \
        enum { N = SIDE_BY_SIDE };                                                                 \
        vectors v;                                                                                 \
        int64_t at = 0;                                                                            \
        for (; at + N * G2_VL <= n; at += N * G2_VL) {                                             \
            UNROLL for (int i = 0; i < N; i++) v[i] = v_load(x + at + i * G2_VL);                  \
            EACH_OF(N, v);                                                                         \
            UNROLL for (int i = 0; i < N; i++) v_store(y + at + i * G2_VL, v[i]);                  \
        }                                                                                          \
        for (; at < n; at += G2_VL) {                                                              \
            const int64_t there = n - at < G2_VL ? n - at : G2_VL;                                 \
            *v = v_load_head(x + at, there);                                                       \
            EACH_OF(1, v);                                                                         \
            v_store_head(y + at, *v, there);                                                       \
        }                                                                                          \
    } while (0)

FUNCTION void NAMED(activation)(int kind, const float *x, float *y, int64_t n) {
    switch (kind) {
    case G2_GELU_TANH: EACH_ELEMENT(each_gelu_tanh); return;
    case G2_GELU_ERF: EACH_ELEMENT(each_gelu_erf); return;
    case G2_RELU: EACH_ELEMENT(each_relu); return;
    default: if (x != y) memcpy(y, x, (size_t)n * sizeof(float));
    }
}

FUNCTION void NAMED(exp)(const float *x, float *y, int64_t n) { EACH_ELEMENT(each_exp); }
