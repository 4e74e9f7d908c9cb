/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kernel of one instruction set once, on fixed inputs of the gpt2 preset's sizes, for callgrind to count:
 *
 *     valgrind --tool=callgrind --toggle-collect='count_*' --dump-after='count_*' ./instructions avx2
 *
 * Each count_NAME is one kernel and writes one dump. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"

enum { WIDTH = 768, INNER = 3072, ROWS = 16, HEAD = 64, KEYS = 256, BLOCKS = KEYS / G2_BLOCK };
enum { VOCABULARY = 50257, TOP = 50 };
#define COUNTED __attribute__((noinline)) void

static const g2_table *table;
static float *left, *right, *tile, *x, *y, *gamma_, *scratch, *blocks[BLOCKS];
static g2_epilogue epilogue;
static g2_attention attend;
static float *logits, *choosing;
static int64_t ids[TOP];
static g2_statistics statistics;
static g2_sampling sampling;
static g2_candidates candidates;

static uint64_t state = 88172645463325252u;
static float *numbers(size_t n) { /* in [-2, 2), from xorshift */
    float *p = NULL;
    if (posix_memalign((void **)&p, 64, n * sizeof(float))) abort();
    for (size_t i = 0; i < n; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        p[i] = (float)(int32_t)(state >> 32) * 0x1p-30f;
    }
    return p;
}

COUNTED count_gemm_tile(void) {
    int64_t m = table->sliver;
    table->gemm_tile(m, WIDTH, left, 1, m, right, G2_PANEL, tile, G2_PANEL, 0, NULL, 0);
}
COUNTED count_gemm_row(void) {
    table->gemm_tile(1, WIDTH, left, 1, 1, right, G2_PANEL, tile, G2_PANEL, 0, NULL, 0);
}
COUNTED count_transpose(void) { table->transpose(x, WIDTH, table->sliver, WIDTH, y, table->sliver); }
COUNTED count_epilogue(void) { table->gemm_epilogue(&epilogue, tile, table->sliver, G2_PANEL, 0, 0); }
COUNTED count_epilogue_gelu(void) { table->gemm_epilogue(&epilogue, tile, table->sliver, G2_PANEL, 0, 0); }
COUNTED count_layernorm(void) { table->layernorm(x, gamma_, gamma_, 1e-5f, y, ROWS, WIDTH); }
COUNTED count_softmax(void) { table->softmax(x, y, ROWS, WIDTH); }
COUNTED count_gelu_tanh(void) { table->activation(G2_GELU_TANH, x, y, ROWS * WIDTH); }
COUNTED count_gelu_erf(void) { table->activation(G2_GELU_ERF, x, y, ROWS * WIDTH); }
COUNTED count_exp(void) { table->exp(x, y, ROWS * WIDTH); }
COUNTED count_attention(void) { table->attention(&attend); }
COUNTED count_attention_row(void) { table->attention(&attend); }
COUNTED count_argmax(void) { table->argmax(logits, VOCABULARY, y); }
COUNTED count_statistics(void) { table->statistics(logits, VOCABULARY, 1000, &statistics); }
COUNTED count_top(void) { table->top(logits, VOCABULARY, TOP, ids); }
COUNTED count_select(void) { table->select(logits, VOCABULARY, &sampling, choosing, &candidates); }
COUNTED count_select_top_k(void) { table->select(logits, VOCABULARY, &sampling, choosing, &candidates); }
COUNTED count_select_top_p(void) { table->select(logits, VOCABULARY, &sampling, choosing, &candidates); }
COUNTED count_draw(void) { table->draw(&candidates, 0.75); }

int main(int argc, char **argv) {
    const g2_table *const *tables = g2_tables();
    for (int i = 0; tables[i]; i++)
        if (argc > 1 && !strcmp(tables[i]->name, argv[1]) && g2_supported(tables[i])) table = tables[i];
    if (!table) return fprintf(stderr, "no such instruction set here\n"), 3;

    left = numbers(WIDTH * G2_MAX_ROWS), right = numbers(WIDTH * G2_PANEL), tile = numbers(G2_MAX_ROWS * G2_PANEL);
    x = numbers(ROWS * WIDTH), y = numbers(ROWS * WIDTH), gamma_ = numbers(WIDTH);
    scratch = numbers(G2_ATTENTION_SCRATCH);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = numbers(2 * HEAD * G2_BLOCK + G2_PANEL);

    count_gemm_tile();
    count_gemm_row();
    count_transpose();
    epilogue = (g2_epilogue){gamma_, G2_LINEAR, x, INNER, y, G2_PANEL, NULL};
    epilogue.ld_residual = G2_PANEL;
    count_epilogue();
    epilogue.activation = G2_GELU_TANH, epilogue.residual = NULL;
    count_epilogue_gelu();
    count_layernorm();
    count_softmax();
    count_gelu_tanh();
    count_gelu_erf();
    count_exp();
    attend = (g2_attention){x, HEAD, table->queries, KEYS - table->queries, blocks, 0, HEAD * G2_BLOCK, HEAD, 0.125f,
                            y, HEAD, scratch};
    count_attention();
    attend.n_queries = 1, attend.position = KEYS - 1;
    count_attention_row();
    logits = numbers(VOCABULARY), choosing = numbers(G2_SELECT_SCRATCH(VOCABULARY));
    count_argmax();
    count_statistics();
    count_top();
    sampling = (g2_sampling){1.25f, 0, 1.0, 0.0f, 1.0};
    count_select();
    sampling.top_k = TOP;
    count_select_top_k();
    sampling.top_k = 0, sampling.top_p = 0.9;
    count_select_top_p();
    count_draw();
    return 0;
}
