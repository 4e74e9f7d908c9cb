/* SPDX-License-Identifier: Apache-2.0
 *
 * The floating-point mode of a parallel body: round to nearest, subnormals flushed to zero (a
 * subnormal product costs some 36 times a normal one), no traps.  Each thread enters it for the length
 * of one body and puts back what it found, exception flags included. */
#ifndef G2_FPMODE_H
#define G2_FPMODE_H

#include <stdint.h>

#if defined(__SSE2__) || defined(_M_X64)
#include <xmmintrin.h>
static inline uint64_t g2_fp_enter(void) {
    unsigned found = _mm_getcsr();
    _mm_setcsr(0x9fc0); /* flush-to-zero | all traps masked | denormals-are-zero */
    return found;
}
static inline void g2_fp_leave(uint64_t found) { _mm_setcsr((unsigned)found); }
#elif defined(__aarch64__)
static inline uint64_t g2_fp_enter(void) {
    uint64_t found, ours = (uint64_t)1 << 24; /* FZ */
    __asm__ volatile("mrs %0, fpcr" : "=r"(found));
    __asm__ volatile("msr fpcr, %0" : : "r"(ours));
    return found;
}
static inline void g2_fp_leave(uint64_t found) { __asm__ volatile("msr fpcr, %0" : : "r"(found)); }
#else
static inline uint64_t g2_fp_enter(void) { return 0; }
static inline void g2_fp_leave(uint64_t found) { (void)found; }
#endif

#endif
