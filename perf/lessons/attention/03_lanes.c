/* SPDX-License-Identifier: Apache-2.0
 *
 * A turning not taken: q . key as a dot product of vectors, 16 partial sums joined at the end.
 *
 * It is what one writes first to make lesson 2 faster, and it is. But joining costs as much as the product of 64
 * numbers itself, and it needs a rule for the end of a row. The sum is another one than the chain's: these are not the
 * bits of the other lessons.
 *
 * scratch: 64 floats. */
#include "../weigh.h"

static float dot(const float *a, const float *b, int64_t n) {
    lanes16 sum = {{{0}}};
    int64_t c = 0;
    for (; c + G2_LANES <= n; c += G2_LANES)
        UNROLL for (int j = 0; j < G2_REGISTERS; j++)
            sum.r[j] = v_fma(v_load(a + c + j * G2_VL), v_load(b + c + j * G2_VL), sum.r[j]);
    float joined = lanes_sum(sum);
    for (; c < n; c++) joined = fused(a[c], b[c], joined);
    return joined;
}

void lanes(const attention *p) {
    float *scores = p->scratch;
    for (int64_t i = 0; i < p->t; i++) {
        float *out = p->out + i * p->d;
        running so_far = NOTHING;
        for (int64_t c = 0; c < p->d; c++) out[c] = 0.0f;
        for (int64_t start = 0; start <= i; start += G2_BLOCK) {
            int64_t visible = least(i + 1 - start, G2_BLOCK);
            for (int64_t j = 0; j < visible; j++)
                scores[j] = dot(p->q + i * p->d, p->k + (start + j) * p->d, p->d);
            weigh(scores, visible, p->scale, &so_far, out, p->d);
            for (int64_t j = 0; j < visible; j++) add_value(scores[j], p->v + (start + j) * p->d, out, p->d);
        }
        divide(out, p->d, so_far.sum);
    }
}
