/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps in double and over ids that the kernels of logits share with ref.c: the natural logarithm, what follows
 * from the sums of a row, and the order of ids.  Plain C without fused steps, so the same on every
 * instruction set, the base one included. */
#ifndef G2_ORDER_H
#define G2_ORDER_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "table.h"

#define G2_INLINE static inline __attribute__((always_inline, unused))

/* exp(x) is 0 below -87.3 anyway; held there, a difference to -Inf is a number. */
#define G2_LOWEST_DIFFERENCE -88.0f

/* ln x for a normal x > 0, to 1e-16 of itself or of 1: x = 2^e m, sqrt(1/2) < m <= sqrt(2), and
 * ln m = 2 (f + f^3/3 + f^5/5 + ...) with f = (m - 1) / (m + 1), |f| < 0.172. */
G2_INLINE double g2_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    double e = (double)((int64_t)(bits >> 52) - 1023), m;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    memcpy(&m, &bits, sizeof m);
    if (m > 0x1.6a09e667f3bcdp+0) m = m * 0.5, e = e + 1.0;
    double f = (m - 1.0) / (m + 1.0), square = f * f, sum = 1.0 / 21.0;
    for (int k = 19; k > 0; k -= 2) sum = sum * square + 1.0 / k;
    return e * 0x1.62e42fefa38p-1 + (2.0 * f * sum + e * 0x1.ef35793c7673p-45);
}

/* Of an id with logit x, in a row with this maximum and g2_statistics.log_total. */
G2_INLINE float g2_logprob(float x, float max, double log_total) {
    return (float)((double)x - (double)max - log_total);
}

/* From total, the sum of exp(x - max) over the row, and moment, that of exp(x - max) (max - x). */
G2_INLINE void g2_conclude(g2_statistics *s, double total, double moment) {
    s->log_total = g2_log(total);
    s->log_sum_exp = (double)s->max + s->log_total;
    s->entropy = s->log_total + moment / total;
}

/* Weights are float32 rounded to multiples of a quantum, so small that they matter little and so large that
 * a double holds the sum of a row exactly: its 53 bits reach from the quantum up to n.  Then every sum of them
 * is exact, in any order, and what is kept and drawn does not depend on how it was added up.  Below the grid, 2^23
 * quanta, adding it rounds to one quantum; above, a float32 is a multiple anyway. */
G2_INLINE float g2_grid(int64_t n) {
    float grid = 0x1p-14f; /* a quantum of 2^-37 up to n = 2^16 */
    for (int64_t most = 65536; most < n; most *= 2) grid = grid * 2.0f;
    return grid;
}

/* The weight that a share p of the total has to reach: more than 0, so that the first is always in. */
G2_INLINE double g2_bound(double p, double total) { return p * total > 0x1p-60 ? p * total : 0x1p-60; }

/* Whether position a comes before b: a larger value, or an equal one and a lower position. */
G2_INLINE int g2_before(const float *x, int64_t a, int64_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); }

/* Let heap[i] of n sink until both below it come before it. */
G2_INLINE void g2_sink(const float *x, int64_t *heap, int64_t i, int64_t n) {
    int64_t sinking = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && g2_before(x, heap[child], heap[child + 1])) child++;
        if (!g2_before(x, sinking, heap[child])) break;
        heap[i] = heap[child];
    }
    heap[i] = sinking;
}

/* Put positions in that order: heap sort, with no memory of its own. */
G2_INLINE void g2_sort(const float *x, int64_t *at, int64_t n) {
    for (int64_t i = n / 2 - 1; i >= 0; i--) g2_sink(x, at, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        int64_t last = at[0];
        at[0] = at[end], at[end] = last;
        g2_sink(x, at, 0, end);
    }
}

#endif
