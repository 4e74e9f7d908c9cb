/* SPDX-License-Identifier: Apache-2.0
 *
 * gelu(a b + bias), the GELU after the product: c, just written, is read and written once more. */
#include "../tile.h"

void threads(const product *p);

void apart(const product *p) {
    threads(p);
#pragma omp parallel for schedule(static) num_threads(p->threads)
    for (int64_t i = 0; i < p->m; i++) {
        float *c = p->c + i * p->n;
        int64_t j = 0;
        for (; j + G2_VL <= p->n; j += G2_VL) v_store(c + j, v_gelu_tanh(v_load(c + j) + v_load(p->bias + j)));
        if (j < p->n)
            v_store_head(c + j, v_gelu_tanh(v_load_head(c + j, p->n - j) + v_load_head(p->bias + j, p->n - j)),
                         p->n - j);
    }
}
