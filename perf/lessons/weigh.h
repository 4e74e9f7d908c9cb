/* SPDX-License-Identifier: Apache-2.0
 *
 * The online softmax (attention/02_online.c says why): a block of 64 scores becomes weights, and what was summed up
 * under another maximum is brought to the new one. */
#ifndef WEIGH_H
#define WEIGH_H

#include "lesson.h"

typedef struct { float maximum, sum; } running; /* of one query: of the scores so far, and of exp(score - maximum) */
static const running NOTHING = {-INFINITY, 0.0f};

/* score[64], of which the query may see the first `visible`, to exp(scale score - maximum); out[d] along. */
static inline void weigh(float *score, int64_t visible, float scale, running *so_far, float *out, int64_t d) {
    enum { GROUPS = G2_BLOCK / G2_LANES };
    lanes16 top, sum = {{{0}}};
    for (int g = 0; g < GROUPS; g++)
        for (int j = 0; j < G2_REGISTERS; j++) {
            float *at = score + g * G2_LANES + j * G2_VL;
            vf seen = v_head(lanes_in(visible - g * G2_LANES, j), v_load(at) * v_splat(scale), v_splat(-INFINITY));
            top.r[j] = g ? v_max(top.r[j], seen) : seen;
            v_store(at, seen);
        }
    float highest = lanes_max(top);
    if (so_far->maximum > highest) highest = so_far->maximum;
    for (int g = 0; g < GROUPS; g++)
        for (int j = 0; j < G2_REGISTERS; j++) {
            float *at = score + g * G2_LANES + j * G2_VL;
            vf weight = v_exp(v_load(at) - v_splat(highest)); /* exp(-inf) = 0, and 0 joins the sum unseen */
            sum.r[j] = sum.r[j] + weight;
            v_store(at, weight);
        }
    vf shrink = v_exp(v_splat(so_far->maximum) - v_splat(highest));
    so_far->sum = fused(so_far->sum, shrink[0], lanes_sum(sum));
    so_far->maximum = highest;
    for (int64_t j = 0; j < d; j++) out[j] = out[j] * shrink[0];
}

/* out[d] += weight value[d] */
static inline void add_value(float weight, const float *restrict value, float *restrict out, int64_t d) {
    for (int64_t j = 0; j < d; j++) out[j] = fused(weight, value[j], out[j]);
}

static inline void divide(float *out, int64_t d, float sum) {
    for (int64_t j = 0; j < d; j++) out[j] = out[j] / sum;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
