/* SPDX-License-Identifier: Apache-2.0
 *
 * The floating-point mode of a parallel body: round to nearest, subnormals flushed to zero (a
 * subnormal product costs some 36 times a normal one), no traps.  Each thread enters it for the length
 * of one body and puts back what it found, exception flags included. */
#ifndef G2_FPMODE_H
#define G2_FPMODE_H

#include <math.h>
#include <stdint.h>

/* Compilers know of no link between the mode and arithmetic: what is read from memory after this barrier
 * is also computed after it. */
#define G2_BARRIER __asm__ volatile("" : : : "memory")

#if defined(__SSE2__) || defined(_M_X64)
#include <xmmintrin.h>
static inline uint64_t g2_fp_enter(void) {
    unsigned found = _mm_getcsr();
    _mm_setcsr(0x9fc0); /* flush-to-zero | all traps masked | denormals-are-zero */
    G2_BARRIER;
    return found;
}
static inline void g2_fp_leave(uint64_t found) {
    G2_BARRIER;
    _mm_setcsr((unsigned)found);
}
#elif defined(__aarch64__)
static inline uint64_t g2_fp_enter(void) {
    uint64_t found, ours = (uint64_t)1 << 24; /* FZ */
    __asm__ volatile("mrs %0, fpcr" : "=r"(found));
    __asm__ volatile("msr fpcr, %0" : : "r"(ours) : "memory");
    return found;
}
static inline void g2_fp_leave(uint64_t found) {
    __asm__ volatile("msr fpcr, %0" : : "r"(found) : "memory");
}
#else
static inline uint64_t g2_fp_enter(void) { return 0; }
static inline void g2_fp_leave(uint64_t found) { (void)found; }
#endif

/* 1 / sqrt(x) and x itself as float32, rounded to nearest whatever the host's rounding mode. */
static inline float g2_nearest(double x, int inverse_root) {
    volatile double given = x;
    volatile float rounded;
    uint64_t mode = g2_fp_enter();
    rounded = (float)(inverse_root ? 1.0 / sqrt(given) : given);
    g2_fp_leave(mode);
    return rounded;
}

#endif
