/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels as plain scalar loops: the specification of every result, to the bit.  A table with
 * `fused` set gives exactly these numbers.  Selectable as an instruction set: GPT2CY_ISA=ref.
 * Of the C library it uses fmaf, sqrtf and ldexpf, which IEEE 754 defines to the bit. */
#include <math.h>
#include <string.h>

#include "coefficients.h"
#include "order.h"
#include "table.h"

static float maximum(float a, float b) { return a > b ? a : b; }

static float exp_ref(float x) {
    if (x < G2_EXP_ZERO_BELOW) return 0.0f;
    if (x > G2_EXP_INF_ABOVE) return INFINITY;
    if (x != x) return x;
    float n = fmaf(x, G2_LOG2_E, G2_ROUND) - G2_ROUND;
    float r = fmaf(n, -G2_LN2_HIGH, x);
    r = fmaf(n, -G2_LN2_LOW, r);
    float q = fmaf(G2_E7, r, G2_E6);
    q = fmaf(q, r, G2_E5);
    q = fmaf(q, r, G2_E4);
    q = fmaf(q, r, G2_E3);
    q = fmaf(q, r, 0.5f);
    return ldexpf(fmaf(q, r * r, r) + 1.0f, (int)n);
}

static float gelu_tanh(float x) {
    float slope = fmaf(x * x, G2_T3, G2_T1);
    return x / (exp_ref(x * slope) + 1.0f);
}

static float gelu_erf(float x) {
    float z = G2_SQRT_HALF * x;
    if (z < 0.0f) z = -z;
    if (z > G2_ERFC_LIMIT) z = G2_ERFC_LIMIT;
    float t = 1.0f / fmaf(z, G2_ERFC_T, 1.0f);
    float p = fmaf(G2_C9, t, G2_C8);
    p = fmaf(p, t, G2_C7);
    p = fmaf(p, t, G2_C6);
    p = fmaf(p, t, G2_C5);
    p = fmaf(p, t, G2_C4);
    p = fmaf(p, t, G2_C3);
    p = fmaf(p, t, G2_C2);
    p = fmaf(p, t, G2_C1);
    p = fmaf(p, t, G2_C0);
    float square = z * z;
    float lost = fmaf(z, z, -square);
    float e = exp_ref(-square);
    float erfc = fmaf(-lost, e, e) * (t * p);
    float half = 0.5f * x;
    if (x > 2 * G2_ERFC_LIMIT) return x;
    return x > 0.0f ? fmaf(-half, erfc, x) : half * erfc;
}

static float activate(int kind, float x) {
    switch (kind) {
    case G2_GELU_TANH: return gelu_tanh(x);
    case G2_GELU_ERF: return gelu_erf(x);
    case G2_RELU: return x < 0.0f ? 0.0f : x;
    default: return x;
    }
}

/* Lane i joins lane i + 8, then i + 4, i + 2, i + 1. */
static float lanes_sum(float *lane) {
    for (int width = G2_LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i] + lane[i + width];
    return lane[0];
}

static float lanes_max(float *lane) {
    for (int width = G2_LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = maximum(lane[i], lane[i + width]);
    return lane[0];
}

static void gemm_tile_ref(int64_t m, int64_t k, const float *a, int64_t rs, int64_t ks, const float *b,
                          int64_t ldb, float *c, int64_t ldc, int accumulate, const float *ahead,
                          int64_t stride) {
    (void)ahead, (void)stride;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < G2_PANEL; j++) {
            float sum = accumulate ? c[i * ldc + j] : 0.0f;
            for (int64_t p = 0; p < k; p++) sum = fmaf(a[i * rs + p * ks], b[p * ldb + j], sum);
            c[i * ldc + j] = sum;
        }
}

static void transpose_ref(const float *a, int64_t lda, int64_t h, int64_t k, float *b, int64_t ldb) {
    for (int64_t i = 0; i < h; i++)
        for (int64_t p = 0; p < k; p++) b[p * ldb + i] = a[i * lda + p];
}

static void gemm_epilogue_ref(const g2_epilogue *e, const float *tile, int64_t m, int64_t n, int64_t row,
                              int64_t col) {
    for (int64_t i = 0; i < m; i++) {
        float *out = e->out_rows ? e->out_rows[row + i] : e->out + (row + i) * e->ld_out;
        for (int64_t j = col; j < col + n; j++) {
            float v = tile[i * G2_PANEL + j - col];
            if (e->bias) v = v + e->bias[j];
            v = activate(e->activation, v);
            if (e->residual) v = v + e->residual[(row + i) * e->ld_residual + j];
            out[j] = v;
        }
    }
}

static void layernorm_ref(const float *x, const float *gamma, const float *beta, float eps, float *y,
                          int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++, x += width, y += width) {
        float sum[G2_LANES] = {0}, squares[G2_LANES] = {0};
        for (int64_t i = 0; i < width; i++) sum[i % G2_LANES] += x[i];
        float mean = lanes_sum(sum) / (float)width;
        for (int64_t i = 0; i < width; i++) {
            float d = x[i] - mean;
            squares[i % G2_LANES] = fmaf(d, d, squares[i % G2_LANES]);
        }
        float variance = lanes_sum(squares) / (float)width;
        float scale = 1.0f / sqrtf(variance + eps);
        for (int64_t i = 0; i < width; i++) {
            float v = (x[i] - mean) * scale;
            y[i] = beta ? fmaf(v, gamma[i], beta[i]) : v * gamma[i];
        }
    }
}

static void softmax_ref(const float *x, float *y, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++, x += width, y += width) {
        float top[G2_LANES], sum[G2_LANES] = {0};
        for (int i = 0; i < G2_LANES; i++) top[i] = -INFINITY;
        for (int64_t i = 0; i < width; i++) top[i % G2_LANES] = maximum(top[i % G2_LANES], x[i]);
        float m = lanes_max(top);
        for (int64_t i = 0; i < width; i++) {
            y[i] = exp_ref(x[i] - m);
            sum[i % G2_LANES] += y[i];
        }
        float total = lanes_sum(sum);
        for (int64_t i = 0; i < width; i++) y[i] = y[i] / total;
    }
}

static void activation_ref(int kind, const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = activate(kind, x[i]);
}

static void exp_array_ref(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = exp_ref(x[i]);
}

/* One query against the keys 0 .. position, in blocks of 64 aligned to position 0. */
static void attend(const g2_attention *a, int64_t query) {
    const float *q = a->q + query * a->ld_q;
    float *out = a->out + query * a->ld_out;
    float m = 0.0f, l = 0.0f;
    for (int64_t start = 0; start <= a->position + query; start += G2_BLOCK) {
        const float *block = a->blocks[start / G2_BLOCK];
        const float *keys = block + a->keys, *values = block + a->values;
        float score[G2_BLOCK], top[G2_LANES], sum[G2_LANES] = {0};
        int64_t visible = a->position + query + 1 - start;
        if (visible > G2_BLOCK) visible = G2_BLOCK;
        for (int64_t j = 0; j < G2_BLOCK; j++) score[j] = -INFINITY;
        for (int64_t j = 0; j < visible; j++) {
            float chain = 0.0f;
            for (int64_t d = 0; d < a->head_dim; d++) chain = fmaf(q[d], keys[d * G2_BLOCK + j], chain);
            score[j] = chain * a->scale;
        }
        for (int64_t j = 0; j < G2_BLOCK; j++)
            top[j % G2_LANES] = j < G2_LANES ? score[j] : maximum(top[j % G2_LANES], score[j]);
        float highest = lanes_max(top);
        if (start) highest = maximum(m, highest);
        const float from = highest == -INFINITY ? 0.0f : highest; /* all have overflowed: their weights are 0 */
        for (int64_t j = 0; j < visible; j++) {
            score[j] = exp_ref(score[j] - from);
            sum[j % G2_LANES] += score[j];
        }
        float shrink = start ? exp_ref(m - from) : 0.0f;
        l = start ? fmaf(l, shrink, lanes_sum(sum)) : lanes_sum(sum);
        m = highest;
        for (int64_t d = 0; d < a->head_dim; d++) {
            float chain = start ? out[d] * shrink : 0.0f;
            for (int64_t j = 0; j < visible; j++) chain = fmaf(score[j], values[j * a->head_dim + d], chain);
            out[d] = chain;
        }
    }
    for (int64_t d = 0; d < a->head_dim; d++) out[d] = out[d] / l;
}

static void attention_ref(const g2_attention *a) {
    for (int64_t i = 0; i < a->n_queries; i++) attend(a, i);
}

static int64_t argmax_ref(const float *x, int64_t n, float *max) {
    int64_t best = 0;
    int sound = 1, something = 0;
    for (int64_t i = 0; i < n; i++) {
        sound &= x[i] < INFINITY;
        something |= x[i] > -INFINITY;
        if (x[i] > x[best]) best = i;
    }
    *max = sound && something ? x[best] + 0.0f : NAN;
    return !sound ? G2_NOT_FINITE : !something ? G2_NOTHING : best;
}

static double wide_sum(double *lane) {
    for (int width = G2_LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i] + lane[i + width];
    return lane[0];
}

static void statistics_ref(const float *x, int64_t n, int64_t target, g2_statistics *out) {
    *out = (g2_statistics){NAN, NAN, NAN, 0, -1, 0.0f, NAN};
    out->argmax = argmax_ref(x, n, &out->max);
    if (out->argmax < 0) return;
    double total[G2_LANES] = {0}, moment[G2_LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        float d = maximum(x[i] - out->max, G2_LOWEST_DIFFERENCE), e = exp_ref(d);
        total[i % G2_LANES] += (double)e;
        moment[i % G2_LANES] += (double)(e * -d);
    }
    g2_conclude(out, wide_sum(total), wide_sum(moment));
    if (target < 0) return;
    out->logprob = g2_logprob(x[target], out->max, out->log_total);
    out->rank = 0;
    for (int64_t i = 0; i < n; i++) out->rank += g2_before(x, i, target);
}

static int64_t top_ref(const float *x, int64_t n, int64_t k, int64_t *ids) {
    float max;
    int64_t found = 0;
    if (argmax_ref(x, n, &max) < 0) return 0;
    for (int64_t i = 0; i < n; i++) { /* the best so far, in order: i goes before the first that is less */
        int64_t j = found;
        while (j > 0 && x[ids[j - 1]] < x[i]) j--;
        if (j == k) continue;
        if (found < k) found++;
        memmove(ids + j + 1, ids + j, (size_t)(found - 1 - j) * sizeof *ids);
        ids[j] = i;
    }
    return found;
}

static float on_grid(float e, float grid) { return e < grid ? (e + grid) - grid : e; }

static double sum_ref(const float *w, int64_t n) { /* exact, so in any order */
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)w[i];
    return sum;
}

/* Of the positions in this order the first whose weights reach the share p; the others get the weight 0. */
static void keep_share(const int64_t *order, float *w, int64_t n, double p) {
    double bound = g2_bound(p, sum_ref(w, n)), before = 0;
    for (int64_t i = 0; i < n; i++) {
        if (before < bound) before += (double)w[order[i]];
        else w[order[i]] = 0.0f;
    }
}

static int64_t select_ref(const float *x, int64_t n, const g2_sampling *s, float *scratch, g2_candidates *out) {
    int64_t *order = (int64_t *)(void *)scratch;
    float *d = scratch + 2 * n, *w = scratch + 3 * n, *key = scratch + 4 * n, max, grid = g2_grid(n);
    int64_t first = argmax_ref(x, n, &max);
    if (first < 0) return first;
    for (int64_t i = 0; i < n; i++) {
        d[i] = maximum((x[i] - max) * s->inverse_temperature, G2_LOWEST_DIFFERENCE);
        w[i] = on_grid(exp_ref(d[i]), grid);
        order[i] = i;
    }
    g2_sort(x, order, n);
    if (s->top_k > 0)
        for (int64_t i = s->top_k; i < n; i++) w[order[i]] = 0.0f;
    if (s->top_p < 1.0) keep_share(order, w, n, s->top_p);
    if (s->min_p > 0.0f)
        for (int64_t i = 0; i < n; i++)
            if (w[i] < s->min_p) w[i] = 0.0f;
    if (s->typical_p < 1.0) {
        double moment = 0;
        for (int64_t i = 0; i < n; i++) moment += (double)on_grid(w[i] * -d[i], grid);
        float mean = (float)(-moment / sum_ref(w, n));
        for (int64_t i = 0; i < n; i++) key[i] = w[i] > 0.0f ? -fabsf(d[i] - mean) : -INFINITY;
        g2_sort(key, order, n);
        keep_share(order, w, n, s->typical_p);
    }
    *out = (g2_candidates){w, NULL, n, sum_ref(w, n)};
    return first;
}

static int64_t draw_ref(const g2_candidates *c, double u) {
    double share = u * c->total, sum = 0;
    int64_t i = 0;
    while (i < c->n - 1 && (sum += (double)c->weights[i]) <= share) i++;
    return c->ids ? c->ids[i] : i;
}

const g2_table g2_table_ref = {
    .name = "ref",
    .fused = 1,
    .sliver = 4,
    .queries = 4,
    .wide = 4,
    .passes = 1,
    .steps = 1,
    .gemm_tile = gemm_tile_ref,
    .transpose = transpose_ref,
    .gemm_epilogue = gemm_epilogue_ref,
    .attention = attention_ref,
    .layernorm = layernorm_ref,
    .softmax = softmax_ref,
    .activation = activation_ref,
    .exp = exp_array_ref,
    .argmax = argmax_ref,
    .statistics = statistics_ref,
    .top = top_ref,
    .select = select_ref,
    .draw = draw_ref,
};
