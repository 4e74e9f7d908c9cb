/* SPDX-License-Identifier: Apache-2.0
 * Baseline x86-64 (SSE2, no fused multiply-add): a tile of 6 rows by 8 columns, or of 1 by 32. */
#define G2_ISA base
#define G2_VL 4
#define G2_TILE_ROWS 6
#define G2_TILE_WIDTH 2
#define G2_TILE_STEPS 1
#define G2_WIDE_ROWS 1
#define G2_QUERY_TILES 6
#define G2_FUSED 0
#include "isa.inc.h"
