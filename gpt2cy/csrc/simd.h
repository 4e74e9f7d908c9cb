/* SPDX-License-Identifier: Apache-2.0
 *
 * One vector of G2_VL floats, and what the kernels do with it.  Most of it is GCC/Clang vector
 * extensions; where those have no word (fused multiply-add, selection, partial
 * loads) one intrinsic an instruction set.  Nothing here lets the compiler choose what to fuse.
 *
 * Rules that every instruction set keeps (design of the bits: docs/numerics.md)
 *   v_max(a, b)    a > b ? a : b, so b where either is NaN
 *   v_head(n,x,y)  lanes below n from x, the others from y: selection, never arithmetic
 *   lanes16        16 partial results, lane i of elements i, i+16, ...; joined by 8, 4, 2, 1
 *   v_bits(mask)   bit i for lane i of a comparison;  v_wide_low, v_wide_high: half the lanes as doubles */
#ifndef G2_SIMD_H
#define G2_SIMD_H

#include <stdint.h>
#include <string.h>

#include "coefficients.h"
#include "table.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

typedef float vf __attribute__((vector_size(4 * G2_VL)));
typedef int32_t vi __attribute__((vector_size(4 * G2_VL)));
typedef uint32_t vu __attribute__((vector_size(4 * G2_VL))); /* wraps; shifts of it are defined */
typedef double vd __attribute__((vector_size(4 * G2_VL)));   /* half as many */
typedef float vf_memory __attribute__((vector_size(4 * G2_VL), aligned(4), may_alias));

INLINE vf v_load(const float *p) { return *(const vf_memory *)p; }
INLINE void v_store(float *p, vf v) { *(vf_memory *)p = v; }
INLINE vf v_splat(float x) { return x - (vf){0}; }

#if defined(G2_AVX512)
#include <immintrin.h>
INLINE vf v_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
INLINE vf v_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf v_if_less(vf a, vf b, vf yes, vf no) {
    return (vf)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ), (__m512)no, (__m512)yes);
}
INLINE __mmask16 first_lanes(int64_t n) { return (__mmask16)((1u << n) - 1); }
INLINE vf v_head(int64_t n, vf x, vf y) { return (vf)_mm512_mask_blend_ps(first_lanes(n), (__m512)y, (__m512)x); }
INLINE vf v_load_head(const float *p, int64_t n) { return (vf)_mm512_maskz_loadu_ps(first_lanes(n), p); }
INLINE void v_store_head(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), (__m512)v); }
INLINE vf v_one_plus_any(vf q, vf n, vf rounded) {
    (void)rounded;
    return (vf)_mm512_scalef_ps((__m512)(q + v_splat(1.0f)), (__m512)n);
}
INLINE vf v_one_plus(vf q, vf n, vf rounded) { return v_one_plus_any(q, n, rounded); }
INLINE unsigned v_bits(vi mask) { return _mm512_movepi32_mask((__m512i)mask); }
INLINE vd v_wide_low(vf v) { return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v)); }
INLINE vd v_wide_high(vf v) { return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1)); }

#else

#if defined(G2_AVX2)
#include <immintrin.h>
INLINE vf v_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vf v_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf v_blend(vi mask, vf yes, vf no) {
    return (vf)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
}
INLINE unsigned v_bits(vi mask) { return (unsigned)_mm256_movemask_ps((__m256)mask); }
INLINE vd v_wide_low(vf v) { return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)); }
INLINE vd v_wide_high(vf v) { return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1)); }
#elif defined(G2_NEON)
#include <arm_neon.h>
INLINE vf v_fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE vf v_blend(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
INLINE vf v_max(vf a, vf b) { return v_blend(a > b, a, b); }
INLINE unsigned v_bits(vi mask) { return vaddvq_u32((uint32x4_t)(mask & (vi){1, 2, 4, 8})); }
INLINE vd v_wide_low(vf v) { return (vd)vcvt_f64_f32(vget_low_f32((float32x4_t)v)); }
INLINE vd v_wide_high(vf v) { return (vd)vcvt_high_f64_f32((float32x4_t)v); }
#else /* SSE2, which has no fused multiply-add: rounds twice, and so stands outside the promise */
#include <emmintrin.h>
INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf v_max(vf a, vf b) { return (vf)_mm_max_ps((__m128)a, (__m128)b); }
INLINE vf v_blend(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
INLINE unsigned v_bits(vi mask) { return (unsigned)_mm_movemask_ps((__m128)mask); }
INLINE vd v_wide_low(vf v) { return (vd)_mm_cvtps_pd((__m128)v); }
INLINE vd v_wide_high(vf v) { return (vd)_mm_cvtps_pd(_mm_movehl_ps((__m128)v, (__m128)v)); }
#endif

INLINE vf v_if_less(vf a, vf b, vf yes, vf no) { return v_blend(a < b, yes, no); }
INLINE vi v_index(void) {
#if G2_VL == 8
    return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (vi){0, 1, 2, 3};
#endif
}
INLINE vf v_head(int64_t n, vf x, vf y) { return v_blend(v_index() < (int32_t)n - (vi){0}, x, y); }
INLINE vf v_load_head(const float *p, int64_t n) {
    vf v = {0};
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}
INLINE void v_store_head(float *p, vf v, int64_t n) { memcpy(p, &v, (size_t)n * sizeof(float)); }
/* (1 + q) 2^n, rounded once, where it is a normal number; n is in the lowest bits of `rounded` too.  NaN where q and n
 * are.  `any`: n may be 128, so it is added to the exponent of 1 + q. */
INLINE vf v_one_plus_any(vf q, vf n, vf rounded) {
    return (vf)((vu)(q + v_splat(1.0f)) + ((vu)rounded << 23)) + (n - n);
}
#if defined(G2_AVX2) || defined(G2_NEON)
INLINE vf v_one_plus(vf q, vf n, vf rounded) {
    (void)n;
    vf power = (vf)((vu)v_splat(1.0f) + ((vu)rounded << 23));
    return v_fma(q, power, power);
}
#else /* not fused: q 2^n, rounded by itself, would be lost where it is subnormal */
INLINE vf v_one_plus(vf q, vf n, vf rounded) { return v_one_plus_any(q, n, rounded); }
#endif
#endif

/* ---- functions of one number --------------------------------------------------------------
 *
 * Of n vectors, a constant, in place and side by side: each step is done for all of them before the next one.  The
 * steps of one vector wait for each other, and where vectors come one after the other, a core that sees some hundred
 * instructions ahead finds few that it can begin (docs/measured.md). */

enum { SIDE_BY_SIDE = 4 };
typedef vf vectors[SIDE_BY_SIDE];
#define EACH UNROLL for (int i = 0; i < n; i++)

/* 1 ulp; exp(0) = 1 exactly; 0 below -87.3, so no subnormal result; NaN stays NaN.  Unless `any`, x is not above 0. */
INLINE void exp_of(const int n, const int any, vf *x) {
    vectors rounded, whole, r, q;
    EACH rounded[i] = v_fma(x[i], v_splat(G2_LOG2_E), v_splat(G2_ROUND));
    EACH whole[i] = rounded[i] - v_splat(G2_ROUND);
    EACH r[i] = v_fma(whole[i], v_splat(-G2_LN2_HIGH), x[i]);
    EACH r[i] = v_fma(whole[i], v_splat(-G2_LN2_LOW), r[i]);
    EACH q[i] = v_fma(v_splat(G2_E7), r[i], v_splat(G2_E6));
    EACH q[i] = v_fma(q[i], r[i], v_splat(G2_E5));
    EACH q[i] = v_fma(q[i], r[i], v_splat(G2_E4));
    EACH q[i] = v_fma(q[i], r[i], v_splat(G2_E3));
    EACH q[i] = v_fma(q[i], r[i], v_splat(0.5f));
    EACH q[i] = v_fma(q[i], r[i] * r[i], r[i]);
    EACH q[i] = any ? v_one_plus_any(q[i], whole[i], rounded[i]) : v_one_plus(q[i], whole[i], rounded[i]);
    if (any) EACH q[i] = v_if_less(v_splat(G2_EXP_INF_ABOVE), x[i], v_splat(__builtin_inff()), q[i]);
    EACH x[i] = v_if_less(x[i], v_splat(G2_EXP_ZERO_BELOW), v_splat(0.0f), q[i]);
}
INLINE void each_exp(const int n, vf *x) { exp_of(n, 1, x); }
INLINE void each_exp_down(const int n, vf *x) { exp_of(n, 0, x); }

INLINE void each_gelu_tanh(const int n, vf *x) {
    vectors e;
    EACH e[i] = v_fma(x[i] * x[i], v_splat(G2_T3), v_splat(G2_T1));
    EACH e[i] = x[i] * e[i];
    each_exp(n, e);
    EACH x[i] = x[i] / (e[i] + v_splat(1.0f));
}

INLINE void each_gelu_erf(const int n, vf *x) {
    vectors z, t, p, e, half;
    EACH z[i] = v_splat(G2_SQRT_HALF) * x[i];
    EACH z[i] = v_if_less(z[i], v_splat(0.0f), -z[i], z[i]);
    EACH z[i] = v_if_less(v_splat(G2_ERFC_LIMIT), z[i], v_splat(G2_ERFC_LIMIT), z[i]);
    EACH t[i] = v_splat(1.0f) / v_fma(z[i], v_splat(G2_ERFC_T), v_splat(1.0f));
    EACH p[i] = v_fma(v_splat(G2_C9), t[i], v_splat(G2_C8));
    EACH p[i] = v_fma(p[i], t[i], v_splat(G2_C7));
    EACH p[i] = v_fma(p[i], t[i], v_splat(G2_C6));
    EACH p[i] = v_fma(p[i], t[i], v_splat(G2_C5));
    EACH p[i] = v_fma(p[i], t[i], v_splat(G2_C4));
    EACH p[i] = v_fma(p[i], t[i], v_splat(G2_C3));
    EACH p[i] = v_fma(p[i], t[i], v_splat(G2_C2));
    EACH p[i] = v_fma(p[i], t[i], v_splat(G2_C1));
    EACH p[i] = t[i] * v_fma(p[i], t[i], v_splat(G2_C0));
    EACH e[i] = -(z[i] * z[i]);
    EACH z[i] = v_fma(z[i], z[i], e[i]); /* what rounding took from z^2 */
    each_exp_down(n, e);
    EACH p[i] = v_fma(-z[i], e[i], e[i]) * p[i]; /* erfc */
    EACH half[i] = v_splat(0.5f) * x[i];
    EACH e[i] = v_if_less(v_splat(2 * G2_ERFC_LIMIT), x[i], x[i], v_fma(-half[i], p[i], x[i]));
    EACH x[i] = v_if_less(v_splat(0.0f), x[i], e[i], half[i] * p[i]);
}

INLINE void each_relu(const int n, vf *x) { EACH x[i] = v_if_less(x[i], v_splat(0.0f), v_splat(0.0f), x[i]); }

#define OF_ONE(NAME, EACH_OF)     \
    INLINE vf NAME(vf x) {        \
        EACH_OF(1, &x);           \
        return x;                 \
    }
OF_ONE(v_exp, each_exp)
OF_ONE(v_exp_down, each_exp_down)
OF_ONE(v_gelu_tanh, each_gelu_tanh)

/* ---- 16 partial results of a row --------------------------------------------------------- */

enum { G2_REGISTERS = G2_LANES / G2_VL };
typedef struct { vf r[G2_REGISTERS]; } lanes16;

/* Elements of register j among the first n of a group of 16. */
INLINE int64_t lanes_in(int64_t n, int j) {
    int64_t left = n - (int64_t)j * G2_VL;
    return left < 0 ? 0 : left > G2_VL ? G2_VL : left;
}

/* Lanes of a and b, which count on from a's: list them with EACH_LANE. */
#if defined(__clang__) || __GNUC__ >= 12
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif
#if G2_VL == 16
#define EACH_LANE(F, s)                                                                          \
    F(0, s), F(1, s), F(2, s), F(3, s), F(4, s), F(5, s), F(6, s), F(7, s), F(8, s), F(9, s),    \
        F(10, s), F(11, s), F(12, s), F(13, s), F(14, s), F(15, s)
#elif G2_VL == 8
#define EACH_LANE(F, s) F(0, s), F(1, s), F(2, s), F(3, s), F(4, s), F(5, s), F(6, s), F(7, s)
#else
#define EACH_LANE(F, s) F(0, s), F(1, s), F(2, s), F(3, s)
#endif

/* r[i] lane j becomes r[j] lane i: blocks of s x s off the diagonal change places, for s = 1, 2, 4, .. */
#define LOW_LANE(l, s) ((l) & (s) ? G2_VL + ((l) ^ (s)) : (l))
#define HIGH_LANE(l, s) ((l) & (s) ? G2_VL + (l) : (l) ^ (s))
#define SWAP_BLOCKS(s)                                                \
    UNROLL for (int i = 0; i < G2_VL; i++)                            \
        if ((i & (s)) == 0) {                                         \
            vf low = r[i], high = r[i + (s)];                         \
            r[i] = PICK(low, high, EACH_LANE(LOW_LANE, s));           \
            r[i + (s)] = PICK(low, high, EACH_LANE(HIGH_LANE, s));    \
        }
INLINE void v_transpose(vf r[G2_VL]) {
    SWAP_BLOCKS(1)
    SWAP_BLOCKS(2)
#if G2_VL > 4
    SWAP_BLOCKS(4)
#endif
#if G2_VL > 8
    SWAP_BLOCKS(8)
#endif
}

/* v with lane i + n in lane i; what comes in behind the last lane is never used. */
#define LANES_DOWN(v, n) PICK(v, v, EACH_LANE(LANE_AFTER, n))
#define LANE_AFTER(l, n) (((l) + (n)) % G2_VL)

INLINE vf v_add(vf a, vf b) { return a + b; }

/* Lane i joins lane i + 8, then i + 4, i + 2, i + 1: the same tree however wide a register is. */
#define JOIN(NAME, OP)                                                            \
    INLINE float NAME(lanes16 s) {                                                \
        for (int n = G2_REGISTERS / 2; n; n /= 2)                                 \
            for (int j = 0; j < n; j++) s.r[j] = OP(s.r[j], s.r[j + n]);          \
        vf v = s.r[0];                                                            \
        if (G2_VL > 8) v = OP(v, LANES_DOWN(v, 8));                               \
        if (G2_VL > 4) v = OP(v, LANES_DOWN(v, 4));                               \
        v = OP(v, LANES_DOWN(v, 2));                                              \
        v = OP(v, LANES_DOWN(v, 1));                                              \
        return v[0];                                                              \
    }
JOIN(lanes_sum, v_add)
JOIN(lanes_max, v_max)

#endif
