/* SPDX-License-Identifier: Apache-2.0
 *
 * a, too, in the order in which it is read: slivers [k][h].
 *
 * The tile takes one number of each of its rows in a step: in a itself these lie k floats apart, often at a distance
 * that maps them all to one corner of the first-level cache. Copied once, a sliver is read forwards by every panel, and
 * an address is one register plus a constant. The copy is m k moves beside m k n multiply-adds. */
#include "../tile.h"

void pack_sliver(const product *p, int64_t s) {
    int64_t row = first_row(p->m, s), rows = first_row(p->m, s + 1) - row;
    float *sliver = p->slivers + row * p->k;
    for (int64_t k0 = 0; k0 < p->k; k0 += G2_LINE) /* by cache lines of a */
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = k0; k < k0 + G2_LINE && k < p->k; k++)
                sliver[k * rows + i] = p->a[(row + i) * p->k + k];
}

void slivers(const product *p) {
    float sums[G2_TILE_ROWS * G2_PANEL];
    for (int64_t s = 0; s < slivers_of(p->m); s++) pack_sliver(p, s);
    for (int64_t panel = 0; panel < panels_of(p->n); panel++)
        for (int64_t s = 0; s < slivers_of(p->m); s++) {
            int64_t row = first_row(p->m, s), rows = first_row(p->m, s + 1) - row;
            panel_tile(rows, p->k, p->slivers + row * p->k, 1, rows, p->panels + panel * p->k * G2_PANEL, G2_PANEL,
                       sums, G2_PANEL, 0, NULL, 0);
            store(p, sums, rows, row, panel * G2_PANEL);
        }
}
