/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done row by row: layer norm, softmax, and the functions of one number.
 *
 * Numbers: a row's sum is 16 lanes (simd.h), each starting at +0; its tail is selected in, so a
 * lane without an element keeps what it has.  Layer norm: m = sum / C, v = sum of (x - m)^2 / C,
 * ((x - m) (1 / sqrt(v + eps))) gamma + beta with one fused multiply-add at the end. */

/* Group g of 16 elements of x, of which n are there; the rest reads as `missing`. */
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

FUNCTION void NAMED(layernorm)(const float *x, const float *gamma, const float *beta, float eps, float *y,
                               int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++, x += width, y += width) {
        lanes16 sum = {{{0}}}, squares = {{{0}}};
        for (int64_t i = 0; i < width; i += G2_LANES)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++)
                sum.r[j] = lanes_add(sum.r[j], group_load(x + i, width - i, j, 0.0f), width - i, j);
        float mean = lanes_sum(sum) / (float)width;
        vf m = v_splat(mean);
        for (int64_t i = 0; i < width; i += G2_LANES)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
                vf d = group_load(x + i, width - i, j, 0.0f) - m;
                squares.r[j] = v_head(lanes_in(width - i, j), v_fma(d, d, squares.r[j]), squares.r[j]);
            }
        float variance = lanes_sum(squares) / (float)width;
        vf scale = v_splat(1.0f) / v_sqrt(v_splat(variance) + v_splat(eps));
        for (int64_t i = 0; i < width; i += G2_LANES)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
                int64_t n = width - i;
                vf v = (group_load(x + i, n, j, 0.0f) - m) * scale;
                vf g = group_load(gamma + i, n, j, 0.0f);
                v = beta ? v_fma(v, g, group_load(beta + i, n, j, 0.0f)) : v * g;
                group_store(y + i, v, n, j);
            }
    }
}

FUNCTION void NAMED(softmax)(const float *x, float *y, int64_t rows, int64_t width) {
    const float lowest = -__builtin_inff();
    for (int64_t row = 0; row < rows; row++, x += width, y += width) {
        lanes16 top, sum = {{{0}}};
        UNROLL for (int j = 0; j < G2_REGISTERS; j++) top.r[j] = v_splat(lowest);
        for (int64_t i = 0; i < width; i += G2_LANES)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++)
                top.r[j] = v_head(lanes_in(width - i, j), v_max(top.r[j], group_load(x + i, width - i, j, lowest)),
                                  top.r[j]);
        vf m = v_splat(lanes_max(top));
        for (int64_t i = 0; i < width; i += G2_LANES)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
                vf e = v_exp(group_load(x + i, width - i, j, lowest) - m);
                sum.r[j] = lanes_add(sum.r[j], e, width - i, j);
                group_store(y + i, e, width - i, j);
            }
        vf total = v_splat(lanes_sum(sum));
        for (int64_t i = 0; i < width; i += G2_LANES)
            UNROLL for (int j = 0; j < G2_REGISTERS; j++)
                group_store(y + i, group_load(y + i, width - i, j, 0.0f) / total, width - i, j);
    }
}

#define EACH_ELEMENT(FUNCTION_OF)                                              \
    do {                                                                       \
        int64_t i = 0;                                                         \
        for (; i + G2_VL <= n; i += G2_VL) v_store(y + i, FUNCTION_OF(v_load(x + i))); \
        if (i < n) v_store_head(y + i, FUNCTION_OF(v_load_head(x + i, n - i)), n - i); \
    } while (0)

FUNCTION void NAMED(activation)(int kind, const float *x, float *y, int64_t n) {
    switch (kind) {
    case G2_GELU_TANH: EACH_ELEMENT(v_gelu_tanh); return;
    case G2_GELU_ERF: EACH_ELEMENT(v_gelu_erf); return;
    case G2_RELU: EACH_ELEMENT(v_relu); return;
    default: if (x != y) memcpy(y, x, (size_t)n * sizeof(float));
    }
}

FUNCTION void NAMED(exp)(const float *x, float *y, int64_t n) { EACH_ELEMENT(v_exp); }
