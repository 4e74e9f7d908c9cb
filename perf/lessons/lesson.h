/* SPDX-License-Identifier: Apache-2.0
 *
 * What every lesson is given. One vector, and what can be done with it, comes from the package's own simd.h; run.py
 * compiles the lessons as the package compiles its kernels, for one instruction set:
 *
 *   G2_VL         floats of a vector         G2_FUSED       1 if a multiply-add rounds once
 *   G2_TILE_ROWS  rows and                   G2_TILE_WIDTH  vectors of the tile that fills the registers
 *
 * Every lesson computes each element of its product as the same chain, fma(a[k], b[k], sum) over k = 0, 1, ...: what
 * changes from one to the next is only who waits for whom. */
#ifndef LESSON_H
#define LESSON_H

#include <math.h>

#include "simd.h"

/* A multiply-add of numbers, rounded as a vector's is. */
static inline float fused(float a, float b, float c) { return G2_FUSED ? fmaf(a, b, c) : a * b + c; }

typedef struct { /* c = a b, or gelu(a b + bias) where a lesson says so */
    int64_t m, k, n;
    const float *a;      /* [m][k] */
    const float *b;      /* [k][n] */
    const float *panels; /* b again, packed once, before the clock starts: [ceil(n / 32)][k][32], padded with zeros */
    const float *bias;   /* [n] */
    float *c;            /* [m][n] */
    float *slivers;      /* scratch: m k floats */
    float *tiles;        /* scratch: threads times m 32 floats */
    int threads;
} product;

typedef struct { /* causal attention of one head: out[i] = sum over j <= i of softmax(scale q[i] . k[j]) v[j] */
    int64_t t, d;
    float scale;
    const float *q, *k, *v;  /* [t][d] */
    const float *key_blocks; /* k again, transposed in blocks of 64, as a cache keeps it: [ceil(t / 64)][d][64] */
    float *out;              /* [t][d] */
    float *scratch;          /* see each lesson */
} attention;

#endif
