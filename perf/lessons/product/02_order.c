/* SPDX-License-Identifier: Apache-2.0
 *
 * The same three loops in another order: k before j.
 *
 * The innermost loop now goes along a row of b and a row of c. Its steps belong to different elements, so none waits
 * for another, and the compiler makes vectors of it. Every element still adds up k = 0, 1, ...: not a bit changes.
 * But a row of c is loaded and stored again for each k: two loads and a store for one multiply-add, where a processor
 * can do two multiply-adds in the same time if they find their numbers in registers. */
#include "../lesson.h"

void order(const product *p) {
    for (int64_t i = 0; i < p->m; i++) {
        float *restrict c = p->c + i * p->n;
        for (int64_t j = 0; j < p->n; j++) c[j] = 0.0f;
        for (int64_t k = 0; k < p->k; k++) {
            const float a = p->a[i * p->k + k], *restrict b = p->b + k * p->n;
            for (int64_t j = 0; j < p->n; j++) c[j] = fused(a, b[j], c[j]);
        }
    }
}
