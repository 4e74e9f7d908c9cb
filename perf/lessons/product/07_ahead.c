/* SPDX-License-Identifier: Apache-2.0
 *
 * Fetching ahead: the next block is on its way while this one is computed with.
 *
 * The first sliver that meets a block waits for memory, the others find it in the cache; that wait can be spent on
 * arithmetic. While a block is multiplied, its first two slivers ask for the block after it, evenly over their time: a
 * block has two cache lines for each k, so each sliver fetches a half of it, a line a step. A single sliver fetches
 * both lines in each step. Then memory alone sets the pace, and what this buys is that it never rests. */
#include "../tile.h"

enum { K_BLOCK = 384 };

void panels_ahead(const product *p, int64_t from, int64_t to, float *tiles, finisher finish) {
    for (int64_t panel = from; panel < to; panel++)
        for (int64_t k = 0; k < p->k; k += K_BLOCK) {
            int64_t depth = p->k - k < K_BLOCK ? p->k - k : K_BLOCK;
            const float *b = p->panels + (panel * p->k + k) * G2_PANEL, *next = b + depth * G2_PANEL;
            int64_t stride = slivers_of(p->m) == 1 ? G2_PANEL : G2_LINE;
            for (int64_t s = 0; s < slivers_of(p->m); s++) {
                int64_t row = first_row(p->m, s), rows = first_row(p->m, s + 1) - row;
                const float *ahead = s < 2 ? next + s * depth * G2_LINE : NULL;
                float *sums = tiles + row * G2_PANEL;
                panel_tile(rows, depth, p->slivers + row * p->k + k * rows, 1, rows, b, G2_PANEL, sums, G2_PANEL, k > 0,
                           ahead, stride);
                if (k + depth == p->k) finish(p, sums, rows, row, panel * G2_PANEL);
            }
        }
}

void ahead(const product *p) {
    for (int64_t s = 0; s < slivers_of(p->m); s++) pack_sliver(p, s);
    panels_ahead(p, 0, panels_of(p->n), p->tiles, store);
}
