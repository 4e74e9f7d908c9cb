/* SPDX-License-Identifier: Apache-2.0
 *
 * As the formula says it, one array after the other: scores [t][t], masked, softmax of each row, times v.
 *
 * Half of the scores are computed only to be masked, and the square is written and read three times. Its size grows
 * with the square of t: for 12 heads of 4096 tokens, 768 MiB.
 *
 * scratch: t t floats. */
#include "../lesson.h"

void square(const attention *p) {
    float *scores = p->scratch;
    for (int64_t i = 0; i < p->t; i++)
        for (int64_t j = 0; j < p->t; j++) {
            float sum = 0.0f;
            for (int64_t c = 0; c < p->d; c++) sum = fused(p->q[i * p->d + c], p->k[j * p->d + c], sum);
            scores[i * p->t + j] = sum * p->scale;
        }
    for (int64_t i = 0; i < p->t; i++)
        for (int64_t j = i + 1; j < p->t; j++) scores[i * p->t + j] = -INFINITY;
    for (int64_t i = 0; i < p->t; i++) {
        float *row = scores + i * p->t, highest = row[0], sum = 0.0f;
        for (int64_t j = 1; j < p->t; j++) highest = row[j] > highest ? row[j] : highest;
        for (int64_t j = 0; j < p->t; j++) row[j] = v_exp(v_splat(row[j] - highest))[0], sum += row[j];
        for (int64_t j = 0; j < p->t; j++) row[j] = row[j] / sum;
    }
    for (int64_t i = 0; i < p->t; i++) {
        float *restrict out = p->out + i * p->d;
        for (int64_t c = 0; c < p->d; c++) out[c] = 0.0f;
        for (int64_t j = 0; j < p->t; j++)
            for (int64_t c = 0; c < p->d; c++) out[c] = fused(scores[i * p->t + j], p->v[j * p->d + c], out[c]);
    }
}
