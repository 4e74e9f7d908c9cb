/* SPDX-License-Identifier: Apache-2.0
 *
 * The register tile (product/03_registers.c says why, tile.c how), and how rows are cut into slivers. */
#ifndef TILE_H
#define TILE_H

#include "lesson.h"

enum { COLUMNS = G2_TILE_WIDTH * G2_VL }; /* of a tile; G2_PANEL, 32, is a multiple */

/* c[rows][32] (+)= a[rows][k] b[k][32]: tile.c. */
void panel_tile(int64_t rows, int64_t k, const float *a, int64_t rs, int64_t ks, const float *b, int64_t ldb, float *c,
                int64_t ldc, int accumulate, const float *ahead, int64_t stride);
/* The same for as many columns as the registers take. */
void any_tile(int64_t rows, int64_t k, const float *a, int64_t rs, int64_t ks, const float *b, int64_t ldb, float *c,
              int64_t ldc, int accumulate, const float *ahead, int64_t stride);

/* m rows make as few slivers as the tile allows, of heights that differ by one at most: 16 rows are 8 + 8. */
static inline int64_t slivers_of(int64_t m) { return (m + G2_TILE_ROWS - 1) / G2_TILE_ROWS; }
static inline int64_t first_row(int64_t m, int64_t sliver) {
    int64_t n = slivers_of(m);
    return sliver * (m / n) + (sliver < m % n ? sliver : m % n);
}

static inline int64_t panels_of(int64_t n) { return (n + G2_PANEL - 1) / G2_PANEL; }

/* A finished tile of a panel to c; the columns past n stay behind. */
static inline void store(const product *p, const float *sums, int64_t rows, int64_t row, int64_t col) {
    int64_t columns = p->n - col < G2_PANEL ? p->n - col : G2_PANEL;
    for (int64_t i = 0; i < rows; i++)
        memcpy(p->c + (row + i) * p->n + col, sums + i * G2_PANEL, (size_t)columns * sizeof(float));
}

/* One sliver of a, transposed: [k][h], as in 05_slivers.c. */
void pack_sliver(const product *p, int64_t sliver);
/* Panels from .. to - 1 of the product from its packed slivers, as in 07_ahead.c; then `finish` takes each tile. */
typedef void (*finisher)(const product *p, const float *sums, int64_t rows, int64_t row, int64_t col);
void panels_ahead(const product *p, int64_t from, int64_t to, float *tiles, finisher finish);
/* All panels, by all threads, as in 08_threads.c. */
void in_parallel(const product *p, finisher finish);

#endif
