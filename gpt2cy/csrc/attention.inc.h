/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of consecutive queries of one head, block by block of 64 keys, so that memory
 * never grows with the square of the length.  G2_QUERY_TILES register tiles of queries go through
 * a block together: its keys, and then its values, come into the nearest cache once for all.
 *
 *     keys    [head_dim][64]   scores  [query][64]  = (q . key) scale       two panels of 32 keys
 *     values  [64][head_dim]   out     [query][head_dim] += weights values  panels of 32 columns
 *
 * Numbers: q . key is one chain over head_dim; out is one chain over the keys.  A query keeps a
 * running maximum m, a sum l and its out; each block rescales them by exp(m_old - m_new), the
 * first assigns.  Where all scores so far have overflowed to -inf, their weights are exp(-inf - 0) = 0, so that a
 * finite one in a later block counts.  A query's chain ends at its own position: later keys are left out by selection
 * or never visited, not multiplied by zero, so an Inf or NaN to come cannot reach back.
 * Source: M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax" (2018);
 * T. Dao et al., "FlashAttention" (2022). */

/* v of register j of 16 keys; -inf where this query does not see, which is all but the first `seen`. */
INLINE vf if_seen(vf v, int j, int64_t seen) {
    if (seen >= G2_LANES) return v;
    return v_head(lanes_in(seen, j), v, v_splat(-__builtin_inff()));
}

/* Scores of n queries against a block to exp(score - maximum); updates m and l, rescales out.  The first sees
 * `all` keys, each one more than the one before.  Three passes over the queries, as one query's steps wait for
 * each other.  `whole`, a constant, says that all see all.  The largest score is the largest product times the scale,
 * to the bit, as the scale is above 0. */
INLINE void weigh(const int whole, int64_t n, int64_t all, float *scores, float scale, int first_block, float *m,
                  float *l, float *out, int64_t ld_out) {
    enum { GROUPS = G2_BLOCK / G2_LANES };
    float highest[G2_TILE_ROWS];
    lanes16 sums[G2_TILE_ROWS]; /* joined when all are there: so many steps that wait for each other hold nobody up */
    for (int64_t i = 0; i < n; i++) {
        const int64_t visible = whole || all + i > G2_BLOCK ? G2_BLOCK : all + i;
        const float *score = scores + i * G2_BLOCK;
        lanes16 top;
        UNROLL for (int g = 0; g < GROUPS; g++) {
            const int64_t seen = visible - g * G2_LANES;
            if (g && seen <= 0) break; /* each sees one key at least */
            UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
                vf v = if_seen(v_load(score + g * G2_LANES + j * G2_VL), j, seen);
                top.r[j] = g ? v_max(top.r[j], v) : v;
            }
        }
        float h = lanes_max(top) * scale;
        highest[i] = first_block || !(m[i] > h) ? h : m[i];
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t visible = whole || all + i > G2_BLOCK ? G2_BLOCK : all + i;
        const float from = highest[i] == -__builtin_inff() ? 0.0f : highest[i];
        float *score = scores + i * G2_BLOCK;
        lanes16 sum = {{{0}}};
        UNROLL for (int g = 0; g < GROUPS; g++) {
            const int64_t seen = visible - g * G2_LANES;
            if (g && seen <= 0) break;
            lanes16 e;
            UNROLL for (int j = 0; j < G2_REGISTERS; j++)
                e.r[j] = if_seen(v_load(score + g * G2_LANES + j * G2_VL) * v_splat(scale), j, seen) -
                         v_splat(from);
            each_exp_down(G2_REGISTERS, e.r);
            UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
                v_store(score + g * G2_LANES + j * G2_VL, e.r[j]);
                vf more = sum.r[j] + e.r[j];
                sum.r[j] = seen >= G2_LANES ? more : v_head(lanes_in(seen, j), more, sum.r[j]);
            }
        }
        sums[i] = sum;
    }
    for (int64_t i = 0; i < n; i++, out += ld_out) {
        const float total = lanes_sum(sums[i]);
        if (first_block) {
            l[i] = total;
        } else if (m[i] == highest[i]) { /* all would be multiplied by exp(0), which is 1 */
            l[i] = l[i] + total;
        } else {
            vf shrink = v_exp_down(v_splat(m[i]) - v_splat(highest[i]));
            l[i] = v_fma(v_splat(l[i]), shrink, v_splat(total))[0];
            for (int64_t d = 0; d < ld_out; d += G2_VL) v_store(out + d, v_load(out + d) * shrink);
        }
        m[i] = highest[i];
    }
}

/* So few queries wait for memory: a block's values are fetched while its keys are read, then the next block's keys. */
enum { FETCHING_QUERIES = G2_WIDE_ROWS < 3 ? G2_WIDE_ROWS : 3 };

/* scores[rows, 32] = q keys, q a sliver [k][rows]. */
#define KEYS_FUNCTION(ROWS)                                                                                  \
    FUNCTION void keys_##ROWS(int64_t k, const float *q, const float *keys, float *scores,                   \
                              const float *ahead) {                                                          \
        panel_tile(ROWS, k, 0, q, 1, ROWS, keys, G2_BLOCK, scores, G2_BLOCK, 0,                              \
                   ROWS <= FETCHING_QUERIES ? ahead : NULL, G2_PANEL);                                       \
    }
EACH_ROW_COUNT(KEYS_FUNCTION)

/* out[rows, 32] += weights[rows, k] values, then along the diagonal: see `tile` in gemm.inc.h. */
#define VALUES_FUNCTION(ROWS)                                                                                \
    FUNCTION void values_##ROWS(int64_t k, int64_t diagonal, const float *weights, const float *values,      \
                                int64_t head_dim, float *out, int64_t ld_out, int accumulate,                \
                                const float *ahead) {                                                        \
        if (ROWS > FETCHING_QUERIES) ahead = NULL;                                                           \
        if (KNOWN && head_dim == 64) /* GPT-2's */                                                           \
            panel_tile(ROWS, k, diagonal, weights, G2_BLOCK, 1, values, 64, out, ld_out, accumulate, ahead,  \
                       G2_PANEL);                                                                            \
        else                                                                                                 \
            panel_tile(ROWS, k, diagonal, weights, G2_BLOCK, 1, values, head_dim, out, ld_out, accumulate,   \
                       ahead, G2_PANEL);                                                                     \
    }
EACH_ROW_COUNT(VALUES_FUNCTION)

/* scores[n, 64] = q keys, panel by panel, of the first `last` keys and those in the same panel. */
INLINE void score(int64_t n, int64_t head_dim, int64_t last, const float *q, const float *keys, float *scores,
                  const float *ahead) {
#define KEYS(ROWS) \
    case ROWS: keys_##ROWS(head_dim, q, keys + key, scores + key, ahead + key * head_dim); break;
    for (int64_t key = 0; key < last; key += G2_PANEL)
        switch (n) { EACH_ROW_COUNT(KEYS) }
}

/* out[n, head_dim] += weights values, panel by panel: `all` keys that every query sees, then `diagonal`
 * more, the first of which the first query does not see, the second the first two, and so on. */
INLINE void add_values(int64_t n, int64_t all, int64_t diagonal, const float *weights, const float *values,
                       int64_t head_dim, float *out, int64_t ld_out, int accumulate, const float *ahead) {
#define VALUES(ROWS)                                                                                              \
    case ROWS:                                                                                                    \
        values_##ROWS(all, diagonal, weights, values + col, head_dim, out + col, ld_out, accumulate,              \
                      ahead ? ahead + col * G2_BLOCK : NULL);                                                     \
        break;
    for (int64_t col = 0; col < head_dim; col += G2_PANEL)
        switch (n) { EACH_ROW_COUNT(VALUES) }
}

enum { QUERIES = G2_TILE_ROWS * G2_QUERY_TILES }; /* of one call at most */

/* Rows of the tile that begins at query i of n. */
INLINE int64_t rows_from(int64_t i, int64_t n) { return n - i < G2_TILE_ROWS ? n - i : G2_TILE_ROWS; }
INLINE int64_t of_block(int64_t keys) { return keys < G2_BLOCK ? keys : G2_BLOCK; }

FUNCTION void NAMED(attention)(const g2_attention *a) {
    const int64_t n = a->n_queries, head_dim = a->head_dim;
    const int64_t ld_out = (head_dim + G2_PANEL - 1) / G2_PANEL * G2_PANEL;
    float *scores = a->scratch;               /* [n][64] */
    float *out = scores + QUERIES * G2_BLOCK; /* [n][ld_out] */
    float *slivers = out + QUERIES * G2_MAX_HEAD;
    const float *q = n == 1 ? a->q : slivers; /* [head_dim][rows] for each tile */
    float m[QUERIES], l[QUERIES];

    if (n > 1)
        for (int64_t i = 0; i < n; i += G2_TILE_ROWS) {
            const int64_t rows = rows_from(i, n);
            NAMED(transpose)(a->q + i * a->ld_q, a->ld_q, rows, head_dim, slivers + i * head_dim, rows);
        }
    for (int64_t start = 0; start < a->position + n; start += G2_BLOCK) {
        const float *block = a->blocks[start / G2_BLOCK];
        const float *keys = block + a->keys, *values = block + a->values;
        const float *next = start + G2_BLOCK < a->position + n ? a->blocks[start / G2_BLOCK + 1] + a->keys : NULL;
        const int64_t seen = a->position + 1 - start; /* keys of the block that query 0 sees; query i sees i more */
        const int64_t first_query = seen < 1 ? (1 - seen) / G2_TILE_ROWS * G2_TILE_ROWS : 0;

        for (int64_t i = first_query; i < n; i += G2_TILE_ROWS) {
            const int64_t rows = rows_from(i, n), last = of_block(seen + i + rows - 1);
            score(rows, head_dim, last, q + i * head_dim, keys, scores + i * G2_BLOCK, values);
        }
        for (int64_t i = first_query; i < n; i += G2_TILE_ROWS) {
            const int64_t last = of_block(seen + i + rows_from(i, n) - 1); /* keys that the tile's last query sees, */
            const int64_t from = seen + i < 1 ? 1 - seen : i;              /* its first that sees any, */
            const int64_t rows = i + rows_from(i, n) - from;
            const int64_t all = of_block(seen + from); /* and those that this one sees, and so all others */
            float *weights = scores + from * G2_BLOCK, *sums = out + from * ld_out;
            if (all == G2_BLOCK)
                weigh(1, rows, all, weights, a->scale, start == 0, m + from, l + from, sums, ld_out);
            else
                weigh(0, rows, all, weights, a->scale, start == 0, m + from, l + from, sums, ld_out);
            add_values(rows, all, last - all, weights, values, head_dim, sums, ld_out, start > 0, next);
        }
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
