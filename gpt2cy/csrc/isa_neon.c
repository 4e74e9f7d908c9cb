/* SPDX-License-Identifier: Apache-2.0
 * NEON on aarch64: 24 of 32 registers hold the tile of 6 rows by 16 columns, or of 3 by 32. */
#define G2_NEON
#define G2_ISA neon
#define G2_VL 4
#define G2_TILE_ROWS 6
#define G2_TILE_WIDTH 4
#define G2_TILE_STEPS 1
#define G2_WIDE_ROWS 3
#define G2_QUERY_TILES 6
#define G2_FUSED 1
#include "isa.inc.h"
