/* SPDX-License-Identifier: Apache-2.0
 *
 * gelu(a b + bias), the GELU before the tile leaves: its numbers are in the first-level cache, and go to memory once.
 *
 * The order is fixed: the sum, then the bias, then the activation, each rounded once. So this too gives the bits of
 * lesson 9, and a program that wants to see what lies between may compute it apart. */
#include "../tile.h"

static void store_gelu(const product *p, const float *sums, int64_t rows, int64_t row, int64_t col) {
    int64_t columns = p->n - col < G2_PANEL ? p->n - col : G2_PANEL;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j += G2_VL) {
            int64_t n = columns - j;
            vf sum = v_load(sums + i * G2_PANEL + j);
            float *c = p->c + (row + i) * p->n + col + j;
            if (n >= G2_VL) v_store(c, v_gelu_tanh(sum + v_load(p->bias + col + j)));
            else v_store_head(c, v_gelu_tanh(sum + v_load_head(p->bias + col + j, n)), n);
        }
}

void epilogue(const product *p) { in_parallel(p, store_gelu); }
