/* SPDX-License-Identifier: Apache-2.0
 *
 * As the formula says it: one element after the other.
 *
 * Each multiply-add waits for the one before it, four processor cycles or so, and no vector can help: the order of the
 * additions is the result, so the compiler may not change it. And b is read down its columns, a cache line for each
 * number. */
#include "../lesson.h"

void naive(const product *p) {
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < p->k; k++) sum = fused(p->a[i * p->k + k], p->b[k * p->n + j], sum);
            p->c[i * p->n + j] = sum;
        }
}
