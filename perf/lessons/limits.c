/* SPDX-License-Identifier: Apache-2.0
 *
 * What the processor could do at best: the two figures that every lesson is measured against. */
#include "lesson.h"

/* 2 * steps * TILE floating-point operations a thread: as many chains as a full tile has, none waits for memory. */
void peak(int64_t steps, int threads, float *sink) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        vf sum[G2_TILE_ROWS * G2_TILE_WIDTH], x = v_splat(0.5f);
        UNROLL for (int i = 0; i < G2_TILE_ROWS * G2_TILE_WIDTH; i++) sum[i] = v_splat((float)i);
        for (int64_t step = 0; step < steps; step++) {
            __asm__ volatile("" : : : "memory"); /* every step is taken */
            UNROLL for (int i = 0; i < G2_TILE_ROWS * G2_TILE_WIDTH; i++) sum[i] = v_fma(sum[i], x, x);
        }
        UNROLL for (int i = 1; i < G2_TILE_ROWS * G2_TILE_WIDTH; i++) sum[0] = sum[0] + sum[i];
        sink[thread] = sum[0][0];
    }
}

/* Reads n floats, once, in order. */
void read_all(const float *x, int64_t n, int threads, float *sink) {
    const int64_t part = n / threads / (8 * G2_VL) * (8 * G2_VL);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int thread = 0; thread < threads; thread++) {
        const float *from = x + thread * part;
        vf sum[8] = {0};
        for (int64_t i = 0; i < part; i += 8 * G2_VL)
            UNROLL for (int j = 0; j < 8; j++) sum[j] = sum[j] + v_load(from + i + j * G2_VL);
        UNROLL for (int j = 1; j < 8; j++) sum[0] = sum[0] + sum[j];
        sink[thread] = sum[0][0];
    }
}
