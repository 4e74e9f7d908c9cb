/* SPDX-License-Identifier: Apache-2.0
 *
 * Several queries at a time: both products are now the matrix product's register tile.
 *
 * q . keys is a product [queries][d] by [d][64], two panels of 32 keys; weights . values is [queries][64] by [64][d]. A
 * key or a value is loaded once for as many queries as the tile has rows, and the sums stay in registers. Only on the
 * diagonal do the queries of a tile see different keys: what all of them see goes through the tile, and each key after
 * that is added to the queries that have reached it.
 *
 * scratch: G2_TILE_ROWS (d + 64 + d rounded up to 32) floats; 32 floats are readable after v. */
#include "../tile.h"
#include "../weigh.h"

static void add_values(int64_t rows, int64_t n_keys, const float *weights, const float *values, int64_t d, float *out,
                       int64_t ld_out) {
    for (int64_t c = 0; c < d; c += G2_PANEL)
        panel_tile(rows, n_keys, weights, G2_BLOCK, 1, values + c, d, out + c, ld_out, 1, NULL, 0);
}

void tiles(const attention *p) {
    const int64_t d = p->d, ld_out = panels_of(d) * G2_PANEL;
    float *queries = p->scratch, *scores = queries + G2_TILE_ROWS * d, *out = scores + G2_TILE_ROWS * G2_BLOCK;
    for (int64_t i = 0; i < p->t; i += G2_TILE_ROWS) {
        int64_t rows = least(p->t - i, G2_TILE_ROWS);
        running so_far[G2_TILE_ROWS];
        for (int64_t r = 0; r < rows; r++) { /* a sliver of queries */
            so_far[r] = NOTHING;
            for (int64_t c = 0; c < d; c++) queries[c * rows + r] = p->q[(i + r) * d + c];
            for (int64_t c = 0; c < ld_out; c++) out[r * ld_out + c] = 0.0f;
        }
        for (int64_t start = 0; start < i + rows; start += G2_BLOCK) {
            int64_t all = least(i + 1 - start, G2_BLOCK), last = least(i + rows - start, G2_BLOCK);
            int64_t unseen = all < 1 ? 1 - all : 0; /* queries that stand before this block */
            for (int64_t key = 0; key < G2_BLOCK; key += G2_PANEL)
                panel_tile(rows, d, queries, 1, rows, p->key_blocks + start * d + key, G2_BLOCK, scores + key, G2_BLOCK,
                           0, NULL, 0);
            for (int64_t r = unseen; r < rows; r++)
                weigh(scores + r * G2_BLOCK, least(all + r, G2_BLOCK), p->scale, &so_far[r], out + r * ld_out, ld_out);
            if (all > 0) add_values(rows, all, scores, p->v + start * d, d, out, ld_out);
            for (int64_t key = all > 0 ? all : 0; key < last; key++) { /* the diagonal */
                int64_t r = key - all + 1;
                add_values(rows - r, 1, scores + r * G2_BLOCK + key, p->v + (start + key) * d, d, out + r * ld_out,
                           ld_out);
            }
        }
        for (int64_t r = 0; r < rows; r++) {
            divide(out + r * ld_out, d, so_far[r].sum);
            memcpy(p->out + (i + r) * d, out + r * ld_out, (size_t)d * sizeof(float));
        }
    }
}
