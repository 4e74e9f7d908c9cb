/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile of c stays in registers until k is through: tile.h, the heart of it all.
 *
 * With r rows and w vectors, one step of k loads w vectors of b and r numbers of a, and does r w multiply-adds: with
 * AVX-512, 16 loads for 28 of them. And the r w chains are independent: while one multiply-add takes its four cycles,
 * others begin, two a cycle. Columns that do not fill a tile go as in lesson 2. */
#include "../tile.h"

void registers(const product *p) {
    int64_t j = 0;
    for (; j + COLUMNS <= p->n; j += COLUMNS)
        for (int64_t s = 0; s < slivers_of(p->m); s++) {
            int64_t row = first_row(p->m, s), rows = first_row(p->m, s + 1) - row;
            any_tile(rows, p->k, p->a + row * p->k, p->k, 1, p->b + j, p->n, p->c + row * p->n + j, p->n, 0, NULL, 0);
        }
    for (int64_t i = 0; i < p->m && j < p->n; i++) {
        for (int64_t rest = j; rest < p->n; rest++) p->c[i * p->n + rest] = 0.0f;
        for (int64_t k = 0; k < p->k; k++)
            for (int64_t rest = j; rest < p->n; rest++)
                p->c[i * p->n + rest] = fused(p->a[i * p->k + k], p->b[k * p->n + rest], p->c[i * p->n + rest]);
    }
}
