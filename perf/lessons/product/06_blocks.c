/* SPDX-License-Identifier: Apache-2.0
 *
 * k in blocks: what is used again is still in a near cache.
 *
 * A block of a panel (384 by 32 floats, 48 KiB) meets all slivers before the next block comes, and a sliver's part of
 * it (14 by 384, 21 KiB) fits the first-level cache whatever k is. Meanwhile the sums of all slivers wait in memory, as
 * float32, which is what they were: a chain that is put down and taken up again is the same chain. */
#include "../tile.h"

enum { K_BLOCK = 384 };

void blocks(const product *p) {
    for (int64_t s = 0; s < slivers_of(p->m); s++) pack_sliver(p, s);
    for (int64_t panel = 0; panel < panels_of(p->n); panel++)
        for (int64_t k = 0; k < p->k; k += K_BLOCK) {
            int64_t depth = p->k - k < K_BLOCK ? p->k - k : K_BLOCK;
            const float *b = p->panels + (panel * p->k + k) * G2_PANEL;
            for (int64_t s = 0; s < slivers_of(p->m); s++) {
                int64_t row = first_row(p->m, s), rows = first_row(p->m, s + 1) - row;
                float *sums = p->tiles + row * G2_PANEL;
                panel_tile(rows, depth, p->slivers + row * p->k + k * rows, 1, rows, b, G2_PANEL, sums, G2_PANEL, k > 0,
                           NULL, 0);
                if (k + depth == p->k) store(p, sums, rows, row, panel * G2_PANEL);
            }
        }
}
