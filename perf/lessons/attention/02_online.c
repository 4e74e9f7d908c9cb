/* SPDX-License-Identifier: Apache-2.0
 *
 * One query at a time, keys in blocks of 64, and a softmax that does not need to see all scores first.
 *
 * softmax(s) = exp(s - m) / sum of exp(s - m), for any m; the largest score keeps exp from overflowing. Of the keys so
 * far, keep their maximum m, the sum l and the weighted values out. A block with a larger maximum m' multiplies what
 * there is by exp(m - m'), since exp(s - m) exp(m - m') = exp(s - m'). Divide by l at the end. Nothing is larger than a
 * block, and a query stops at its own position: later keys are never looked at.
 *
 * Blocks begin at positions 0, 64, 128, ..., not at the query: so the rescaling, whose rounding shows in the last bits,
 * is the same however many tokens come in one call.
 *
 * scratch: 64 floats. */
#include "../weigh.h"

void online(const attention *p) {
    float *scores = p->scratch;
    for (int64_t i = 0; i < p->t; i++) {
        const float *q = p->q + i * p->d;
        float *out = p->out + i * p->d;
        running so_far = NOTHING;
        for (int64_t c = 0; c < p->d; c++) out[c] = 0.0f;
        for (int64_t start = 0; start <= i; start += G2_BLOCK) {
            int64_t visible = least(i + 1 - start, G2_BLOCK);
            for (int64_t j = 0; j < visible; j++) {
                const float *key = p->k + (start + j) * p->d;
                scores[j] = 0.0f;
                for (int64_t c = 0; c < p->d; c++) scores[j] = fused(q[c], key[c], scores[j]);
            }
            weigh(scores, visible, p->scale, &so_far, out, p->d);
            for (int64_t j = 0; j < visible; j++) add_value(scores[j], p->v + (start + j) * p->d, out, p->d);
        }
        divide(out, p->d, so_far.sum);
    }
}
