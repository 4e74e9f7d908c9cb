/* SPDX-License-Identifier: Apache-2.0
 * AVX-512: 28 of 32 registers hold the tile of 14 rows by 32 columns. */
#define G2_AVX512
#define G2_ISA avx512
#define G2_VL 16
#define G2_TILE_ROWS 14
#define G2_TILE_WIDTH 2
#define G2_TILE_STEPS 1
#define G2_WIDE_ROWS 14
#define G2_QUERY_TILES 1
#define G2_FUSED 1
#include "isa.inc.h"
