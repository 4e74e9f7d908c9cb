/* SPDX-License-Identifier: Apache-2.0
 *
 * The register tile: all sums of some rows by two vectors (four with NEON) at once. */
#include "tile.h"

/* c[rows][COLUMNS] (+)= a[rows][k] b[k][COLUMNS], where a[i, p] is a[i rs + p ks].  `rows` is a constant at each call:
 * the loops over i and j vanish, and every sum[i][j] is a register. One step of k loads G2_TILE_WIDTH vectors of b once
 * and uses each for all rows. Where `ahead` is not NULL, each step of k asks for the two cache lines there and
 * moves it on by `stride`. */
INLINE void tile(const int rows, int64_t k, const float *a, int64_t rs, int64_t ks, const float *b, int64_t ldb,
                 float *c, int64_t ldc, int accumulate, const float *ahead, int64_t stride) {
    vf sum[G2_TILE_ROWS][G2_TILE_WIDTH];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < G2_TILE_WIDTH; j++)
            sum[i][j] = accumulate ? v_load(c + i * ldc + j * G2_VL) : v_splat(0.0f);
    for (; k > 0; k--, a += ks, b += ldb) {
        vf row[G2_TILE_WIDTH];
        if (ahead) __builtin_prefetch(ahead, 0, 2), __builtin_prefetch(ahead + G2_LINE, 0, 2), ahead += stride;
        UNROLL for (int j = 0; j < G2_TILE_WIDTH; j++) row[j] = v_load(b + j * G2_VL);
        UNROLL for (int i = 0; i < rows; i++) {
            vf left = v_splat(a[i * rs]);
            UNROLL for (int j = 0; j < G2_TILE_WIDTH; j++) sum[i][j] = v_fma(left, row[j], sum[i][j]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < G2_TILE_WIDTH; j++) v_store(c + i * ldc + j * G2_VL, sum[i][j]);
}

/* The same for any number of rows up to G2_TILE_ROWS, each with code of its own. */
void any_tile(int64_t rows, int64_t k, const float *a, int64_t rs, int64_t ks, const float *b, int64_t ldb, float *c,
              int64_t ldc, int accumulate, const float *ahead, int64_t stride) {
    switch (rows) {
#define CASE(ROWS) \
    case ROWS: tile(ROWS, k, a, rs, ks, b, ldb, c, ldc, accumulate, ahead, stride); return;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if G2_TILE_ROWS > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#endif
    }
}

/* All 32 columns of a panel, as many at a time as the registers take. */
void panel_tile(int64_t rows, int64_t k, const float *a, int64_t rs, int64_t ks, const float *b, int64_t ldb, float *c,
                int64_t ldc, int accumulate, const float *ahead, int64_t stride) {
    for (int col = 0; col < G2_PANEL; col += COLUMNS)
        any_tile(rows, k, a, rs, ks, b + col, ldb, c + col, ldc, accumulate, col ? NULL : ahead, stride);
}
