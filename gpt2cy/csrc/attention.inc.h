/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of up to G2_TILE_ROWS consecutive queries of one head, block by block of 64
 * keys, so that memory never grows with the square of the length.
 *
 *     keys    [head_dim][64]   scores  [query][64]  = (q . key) scale       two panels of 32 keys
 *     values  [64][head_dim]   out     [query][head_dim] += weights values  panels of 32 columns
 *
 * Numbers: q . key is one chain over head_dim; out is one chain over the keys.  A query keeps a
 * running maximum m, a sum l and its out; each block rescales them by exp(m_old - m_new), the
 * first assigns.  A query's chain ends at its own position: later keys are left out by selection
 * or never visited, not multiplied by zero, so an Inf or NaN to come cannot reach back.
 * Source: M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax" (2018);
 * T. Dao et al., "FlashAttention" (2022). */

/* Scores of one query against a block to exp(score - maximum); updates m and l, rescales out. */
INLINE void weigh(float *score, int64_t visible, float scale, int first, float *m, float *l, float *out,
                  int64_t head_dim) {
    enum { GROUPS = G2_BLOCK / G2_LANES };
    vf s[GROUPS][G2_REGISTERS];
    lanes16 top, sum = {{{0}}};
    UNROLL for (int g = 0; g < GROUPS; g++)
        UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
            vf v = v_load(score + g * G2_LANES + j * G2_VL) * v_splat(scale);
            int64_t there = lanes_in(visible - g * G2_LANES, j);
            s[g][j] = v_head(there, v, v_splat(-__builtin_inff()));
            top.r[j] = g ? v_max(top.r[j], s[g][j]) : s[g][j];
        }
    float highest = lanes_max(top);
    if (!first) highest = *m > highest ? *m : highest;
    UNROLL for (int g = 0; g < GROUPS; g++)
        UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
            vf e = v_exp(s[g][j] - v_splat(highest));
            sum.r[j] = v_head(lanes_in(visible - g * G2_LANES, j), sum.r[j] + e, sum.r[j]);
            v_store(score + g * G2_LANES + j * G2_VL, e);
        }
    if (first) {
        *l = lanes_sum(sum);
    } else if (*m == highest) { /* all would be multiplied by exp(0), which is 1 */
        *l = *l + lanes_sum(sum);
    } else {
        vf shrink = v_exp(v_splat(*m) - v_splat(highest));
        *l = v_fma(v_splat(*l), shrink, v_splat(lanes_sum(sum)))[0];
        for (int64_t d = 0; d < head_dim; d += G2_VL) v_store(out + d, v_load(out + d) * shrink);
    }
    *m = highest;
}

/* out[rows, 32] += weights[rows, k] values, then along the diagonal: see `tile` in gemm.inc.h. */
#define VALUES_FUNCTION(ROWS)                                                                                \
    FUNCTION void values_##ROWS(int64_t k, int64_t diagonal, const float *weights, const float *values,      \
                                int64_t head_dim, float *out, int64_t ld_out, int accumulate) {              \
        panel_tile(ROWS, k, diagonal, weights, G2_BLOCK, 1, values, head_dim, out, ld_out, accumulate, NULL, \
                   0);                                                                                       \
    }
EACH_ROW_COUNT(VALUES_FUNCTION)

/* out[n, head_dim] += weights values, panel by panel: `all` keys that every query sees, then `diagonal`
 * more, the first of which the first query does not see, the second the first two, and so on. */
INLINE void add_values(int64_t n, int64_t all, int64_t diagonal, const float *weights, const float *values,
                       int64_t head_dim, float *out, int64_t ld_out, int accumulate) {
#define VALUES(ROWS) \
    case ROWS: values_##ROWS(all, diagonal, weights, values + col, head_dim, out + col, ld_out, accumulate); break;
    for (int64_t col = 0; col < head_dim; col += G2_PANEL)
        switch (n) { EACH_ROW_COUNT(VALUES) }
}

FUNCTION void NAMED(attention)(const g2_attention *a) {
    const int64_t n = a->n_queries, head_dim = a->head_dim;
    const int64_t ld_out = (head_dim + G2_PANEL - 1) / G2_PANEL * G2_PANEL;
    float *queries = a->scratch;                           /* [head_dim][n] */
    float *scores = queries + G2_MAX_ROWS * G2_MAX_HEAD;   /* [n][64] */
    float *out = scores + G2_MAX_ROWS * G2_BLOCK;          /* [n][ld_out] */
    float m[G2_TILE_ROWS], l[G2_TILE_ROWS];

    NAMED(transpose)(a->q, a->ld_q, n, head_dim, queries, n);

    for (int64_t start = 0; start < a->position + n; start += G2_BLOCK) {
        const float *block = a->blocks[start / G2_BLOCK];
        const float *keys = block + a->keys, *values = block + a->values;
        int64_t last = a->position + n - start; /* keys that the last query sees, */
        int64_t all = a->position + 1 - start;  /* and those that every query sees */
        if (last > G2_BLOCK) last = G2_BLOCK;
        if (all > G2_BLOCK) all = G2_BLOCK;
        int64_t unseen = all < 1 ? 1 - all : 0; /* queries that stand before this block */

        for (int64_t key = 0; key < last; key += G2_PANEL)
            NAMED(gemm_tile)(n, head_dim, queries, 1, n, keys + key, G2_BLOCK, scores + key, G2_BLOCK, 0, NULL, 0);
        for (int64_t i = unseen; i < n; i++) {
            int64_t visible = all + i < G2_BLOCK ? all + i : G2_BLOCK;
            weigh(scores + i * G2_BLOCK, visible, a->scale, start == 0, m + i, l + i, out + i * ld_out,
                  ld_out);
        }
        if (all < 1) all = 1; /* of those that see any */
        add_values(n - unseen, all, last - all, scores + unseen * G2_BLOCK, values, head_dim, out + unseen * ld_out,
                   ld_out, start > 0);
    }
    for (int64_t i = 0; i < n; i++) {
        float *y = a->out + i * a->ld_out;
        vf total = v_splat(l[i]);
        for (int64_t d = 0; d < head_dim; d += G2_VL) {
            vf v = v_load(out + i * ld_out + d) / total;
            if (head_dim - d >= G2_VL) v_store(y + d, v);
            else v_store_head(y + d, v, head_dim - d);
        }
    }
}
