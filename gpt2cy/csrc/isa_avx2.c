/* SPDX-License-Identifier: Apache-2.0
 * AVX2 with FMA: 12 of 16 registers hold the tile of 6 rows by 16 columns, or of 3 by 32. */
#define G2_AVX2
#define G2_ISA avx2
#define G2_VL 8
#define G2_TILE_ROWS 6
#define G2_TILE_WIDTH 2
#define G2_TILE_STEPS 3
#define G2_WIDE_ROWS 3
#define G2_QUERY_TILES 6
#define G2_FUSED 1
#include "isa.inc.h"
