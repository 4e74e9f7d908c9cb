/* SPDX-License-Identifier: Apache-2.0
 *
 * b in panels of 32 columns: what a tile reads lies in one piece.
 *
 * Going down b with a stride of n floats is a new page of memory for each k (n = 3072 is 12 KiB): more pages than the
 * processor keeps addresses of, and its prefetchers stop at the end of each. A panel is read as one stream.
 * Weights are packed once, when they are assigned, and used a million times. Padding takes care of the last columns:
 * they are computed like all others, and not stored. */
#include "../tile.h"

void panels(const product *p) {
    float sums[G2_TILE_ROWS * G2_PANEL];
    for (int64_t panel = 0; panel < panels_of(p->n); panel++)
        for (int64_t s = 0; s < slivers_of(p->m); s++) {
            int64_t row = first_row(p->m, s), rows = first_row(p->m, s + 1) - row;
            panel_tile(rows, p->k, p->a + row * p->k, p->k, 1, p->panels + panel * p->k * G2_PANEL, G2_PANEL, sums,
                       G2_PANEL, 0, NULL, 0);
            store(p, sums, rows, row, panel * G2_PANEL);
        }
}
