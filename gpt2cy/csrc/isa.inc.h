/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that depends on the instruction set, compiled once for each: a stub defines
 *   G2_ISA           suffix and name          G2_VL          floats of a vector
 *   G2_TILE_ROWS     rows and                 G2_TILE_WIDTH  vectors of the full register tile
 *   G2_TILE_STEPS    steps of k in a turn of its loop
 *   G2_WIDE_ROWS     rows up to which a tile has all 32 columns, and one step in a turn
 *   G2_QUERY_TILES   tiles of queries that go through a block of keys and values together
 *   G2_FUSED         1 if a multiply-add rounds once
 * and includes this.  The code goes to a section of its own, .g2_<isa>, so that a test can show
 * that no such instruction lies anywhere else. */
#define PASTE2(a, b) a##_##b
#define PASTE(a, b) PASTE2(a, b)
#define TEXT2(a) #a
#define TEXT(a) TEXT2(a)
#define NAMED(name) PASTE(name, G2_ISA)
#if defined(__ELF__)
#define FUNCTION static __attribute__((noinline, section(".g2_" TEXT(G2_ISA))))
#else
#define FUNCTION static __attribute__((noinline))
#endif

#include "simd.h"

#include "gemm.inc.h"

#include "rows.inc.h"

#include "attention.inc.h"

#include "logits.inc.h"

const g2_table PASTE(g2_table, G2_ISA) = {
    .name = TEXT(G2_ISA),
    .fused = G2_FUSED,
    .sliver = G2_TILE_ROWS,
    .queries = QUERIES,
    .wide = G2_WIDE_ROWS,
    .passes = G2_PANEL / (G2_TILE_WIDTH * G2_VL),
    .steps = G2_TILE_STEPS,
    .gemm_tile = NAMED(gemm_tile),
    .transpose = NAMED(transpose),
    .gemm_epilogue = NAMED(gemm_epilogue),
    .attention = NAMED(attention),
    .layernorm = NAMED(layernorm),
    .softmax = NAMED(softmax),
    .activation = NAMED(activation),
    .exp = NAMED(exp),
    .argmax = NAMED(argmax),
    .statistics = NAMED(statistics),
    .top = NAMED(top),
    .select = NAMED(select),
    .draw = NAMED(draw),
};
