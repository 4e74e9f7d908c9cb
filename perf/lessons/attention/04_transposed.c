/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys transposed within their block, [d][64]: 64 chains side by side.
 *
 * The same turn as in the product's lesson 2: vectors go across elements, not along a sum. One number of the query
 * meets a row of 64 keys; each score is one chain over d, nothing is joined, and any d works without a rest. The cache
 * keeps keys like this: a key is transposed once, when it comes, and read by every query after it. All 64 scores are
 * computed, also of keys that the query may not see: weigh selects them away before anything reads them.
 *
 * scratch: 64 floats. */
#include "../weigh.h"

void transposed(const attention *p) {
    float *scores = p->scratch;
    for (int64_t i = 0; i < p->t; i++) {
        const float *q = p->q + i * p->d;
        float *out = p->out + i * p->d;
        running so_far = NOTHING;
        for (int64_t c = 0; c < p->d; c++) out[c] = 0.0f;
        for (int64_t start = 0; start <= i; start += G2_BLOCK) {
            int64_t visible = least(i + 1 - start, G2_BLOCK);
            const float *keys = p->key_blocks + start * p->d;
            vf sum[G2_BLOCK / G2_VL] = {0};
            for (int64_t c = 0; c < p->d; c++)
                UNROLL for (int j = 0; j < G2_BLOCK / G2_VL; j++)
                    sum[j] = v_fma(v_splat(q[c]), v_load(keys + c * G2_BLOCK + j * G2_VL), sum[j]);
            UNROLL for (int j = 0; j < G2_BLOCK / G2_VL; j++) v_store(scores + j * G2_VL, sum[j]);
            weigh(scores, visible, p->scale, &so_far, out, p->d);
            for (int64_t j = 0; j < visible; j++) add_value(scores[j], p->v + (start + j) * p->d, out, p->d);
        }
        divide(out, p->d, so_far.sum);
    }
}
