/* SPDX-License-Identifier: Apache-2.0
 *
 * Random numbers by counter: Philox4x32 with 10 rounds (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As
 * Easy as 1, 2, 3", 2011).  Each number is a function of what it is for and of nothing that came before, so
 * rows may be drawn in any order, and one alone gives what it gives among others. */
#ifndef G2_PHILOX_H
#define G2_PHILOX_H

#include <stdint.h>

static inline void g2_philox(uint32_t counter[4], const uint32_t key[2]) {
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t a = (uint64_t)counter[0] * 0xd2511f53u, b = (uint64_t)counter[2] * 0xcd9e8d57u;
        counter[0] = (uint32_t)(b >> 32) ^ counter[1] ^ k0, counter[1] = (uint32_t)b;
        counter[2] = (uint32_t)(a >> 32) ^ counter[3] ^ k1, counter[3] = (uint32_t)a;
    }
}

/* Uniform in [0, 1), a multiple of 2^-53: of a seed's low 64 bits, a row's and a sample's low 32, and a step. */
static inline double g2_uniform(uint64_t seed, uint32_t row, uint32_t sample, uint64_t step) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t word[4] = {(uint32_t)step, (uint32_t)(step >> 32), row, sample};
    g2_philox(word, key);
    return (double)((uint64_t)(word[0] >> 5) << 26 | word[1] >> 6) * 0x1p-53;
}

#endif
