/* SPDX-License-Identifier: Apache-2.0
 *
 * exp, both GELUs, ReLU and the softmax of rows [x, 0], for every float32 x: fused tables give the bits of ref.c, and
 * the errors of ref.c and of a table without fused steps stay within the limits below (docs/numerics.md).
 * Arguments FIRST STEP: bit patterns FIRST, FIRST + STEP, ... of float32. `0 1` means all; `0 2` and `1 2` share them
 * between two processes; a large odd step takes a sample.  Prints a line a table and function, and
 * "N passed, M failed".
 *
 * The truth is the C library's exp and erfc in double, right to 1e-15; rounding the argument of a GELU's exponential
 * adds less than 1e-13 (a float32's unit is 6e-8).  0.5 x (1 + tanh u) is written as x / (1 + exp(-2 u)), and
 * 0.5 x (1 + erf z) as 0.5 x erfc(-z): the sums would leave nothing of the left tail. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fpmode.h"
#include "table.h"

enum { EXP, GELU_TANH, GELU_ERF, RELU, SOFTMAX, FUNCTIONS };
static const char *const names[FUNCTIONS] = {"exp", "gelu_tanh", "gelu_erf", "relu", "softmax"};
static const int kinds[FUNCTIONS] = {[GELU_TANH] = G2_GELU_TANH, [GELU_ERF] = G2_GELU_ERF, [RELU] = G2_RELU};

/* Largest errors, in ulp: for x >= 0; for x < 0; and these over max(1, x^2 / 2), which is what the rounding of an
 * exponent costs.  `flushed`: a truth of this size or less may be missed by as much, since subnormals are 0. */
typedef struct { double right, left, scaled, flushed; } limits;
static const limits fused_limits[FUNCTIONS] = {
    {1, 1, 1, 1.23e-38}, {2, 216, 5, 3e-38}, {6.7, 200, 8, 8e-38}, {0, 0, 0, 1.18e-38}, {1.5, 2.5, 2.5, 1.23e-38},
};
static const limits base_limits[FUNCTIONS] = {
    {1, 1, 1, 1.23e-38}, {2, 216, 5, 3e-38}, {7.4, 255, 8.6, 8e-38}, {0, 0, 0, 1.18e-38}, {1.5, 2.5, 2.5, 1.23e-38},
};

static double truth(int function, double x) {
    switch (function) {
    case EXP: return exp(x);
    case GELU_TANH: return x / (1 + exp(-2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case GELU_ERF: return 0.5 * x * erfc(-0.70710678118654752440 * x);
    case RELU: return x < 0 ? 0 : x;
    default: return isinf(x) && x > 0 ? NAN : 1 / (1 + exp(-x));
    }
}

/* Unit in the last place of a float32 of that size: 2^-23 of its power of two. */
static double unit(double size) {
    uint64_t bits;
    memcpy(&bits, &size, 8);
    int64_t exponent = (int64_t)(bits >> 52 & 2047);
    bits = (uint64_t)((exponent < 1023 - 126 ? 1023 - 126 : exponent) - 23) << 52;
    memcpy(&size, &bits, 8);
    return size;
}

typedef struct { double error; float at; } worst;
typedef struct { worst right, left, scaled, flushed; int64_t other_bits, wrong_kind; } record;

static void note(worst *w, double error, float at) {
    if (!(error <= w->error)) w->error = error, w->at = at;
}

/* y is the result for x, t the truth. */
static void judge(record *r, float x, float y, double t, double flushed) {
    if (isnan(t) || fabs(t) >= 0x1.ffffffp+127) { /* what rounds to Inf */
        r->wrong_kind += isnan(t) ? !isnan(y) : y != copysign(INFINITY, t);
        return;
    }
    double error = fabs(y - t);
    if (fabs(t) <= flushed && error <= flushed) {
        note(&r->flushed, error, x);
        return;
    }
    error /= unit(t);
    if (x >= 0) note(&r->right, error, x);
    else note(&r->left, error, x), note(&r->scaled, error / fmax(1, 0.5 * x * x), x);
}

static void compute(const g2_table *table, int function, const float *x, float *y, int64_t n) {
    uint64_t mode = g2_fp_enter();
    if (function == EXP) table->exp(x, y, n);
    else if (function == SOFTMAX) table->softmax(x, y, n, 2);
    else table->activation(kinds[function], x, y, n);
    g2_fp_leave(mode);
}

static int64_t differ(const float *a, const float *b, int64_t n) {
    int64_t count = 0;
    if (memcmp(a, b, (size_t)n * 4) == 0) return 0;
    for (int64_t i = 0; i < n; i++) count += memcmp(a + i, b + i, 4) && !(isnan(a[i]) && isnan(b[i]));
    return count;
}

enum { CHUNK = 4096, MOST_TABLES = 8 };
static record records[MOST_TABLES][FUNCTIONS];

/* One function of x[n] with every table; `in` is x, or the rows [x, 0]. */
static void examine(int f, const float *x, const float *in, int64_t n) {
    static float expected[2 * CHUNK], got[2 * CHUNK];
    static double t[CHUNK], rest[CHUNK];
    const g2_table *const *tables = g2_tables();
    int width = f == SOFTMAX ? 2 : 1;
    for (int64_t i = 0; i < n; i++) {
        t[i] = truth(f, x[i]);
        rest[i] = isnan(t[i]) ? NAN : isinf(x[i]) ? 1 : truth(f, -x[i]); /* of a row [x, 0], its second number */
    }
    for (int k = 0; tables[k]; k++) {
        record *r = &records[k][f];
        float *y = k ? got : expected;
        if (!g2_supported(tables[k])) continue;
        compute(tables[k], f, in, y, n);
        if (k && tables[k]->fused) {
            r->other_bits += differ(y, expected, n * width);
            continue;
        }
        double flushed = (tables[k]->fused ? fused_limits : base_limits)[f].flushed;
        for (int64_t i = 0; i < n; i++) judge(r, x[i], y[i * width], t[i], flushed);
        for (int64_t i = 0; i < n && width == 2; i++)
            judge(r, -x[i], y[2 * i + 1], rest[i], flushed);
    }
}

static void print(const char *what, worst w) { printf("  %s %.4g at %.9g", what, w.error, w.at); }

int main(int argc, char **argv) {
    static float x[CHUNK], pairs[2 * CHUNK];
    const uint64_t all = (uint64_t)1 << 32, step = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t next = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    const g2_table *const *tables = g2_tables();
    int passed = 0, failed = 0;

    while (next < all) {
        int64_t n = 0;
        for (; n < CHUNK && next < all; n++, next += step) {
            uint32_t bits = (uint32_t)next;
            memcpy(x + n, &bits, 4);
            pairs[2 * n] = x[n], pairs[2 * n + 1] = 0;
        }
        for (int f = EXP; f < SOFTMAX; f++) examine(f, x, x, n);
        if (signbit(x[n - 1])) examine(SOFTMAX, x, pairs, n); /* for x > 0 it is the row [-x, 0], turned round */
    }
    for (int k = 0; tables[k]; k++)
        for (int f = 0; f < FUNCTIONS && g2_supported(tables[k]); f++) {
            const record *r = &records[k][f];
            const limits *most = (tables[k]->fused ? fused_limits : base_limits) + f;
            int good = !r->other_bits && !r->wrong_kind && r->right.error <= most->right &&
                       r->left.error <= most->left && r->scaled.error <= most->scaled;
            printf("%-7s %-10s %s", tables[k]->name, names[f], good ? "ok" : "FAILED");
            if (k && tables[k]->fused) printf("  other bits: %lld", (long long)r->other_bits);
            else {
                print("right", r->right), print("left", r->left), print("scaled", r->scaled);
                print("flushed", r->flushed), printf("  not NaN or Inf: %lld", (long long)r->wrong_kind);
            }
            printf("\n");
            good ? passed++ : failed++;
        }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
