/* SPDX-License-Identifier: Apache-2.0
 *
 * Constants of exp and of the two GELUs, shared by the vector kernels and by ref.c.  Found by
 * weighted least squares iterated towards the minimax polynomial (Lawson's method). */
#ifndef G2_COEFFICIENTS_H
#define G2_COEFFICIENTS_H

/* exp(x) = 2^n exp(r), n = round(x log2 e), r = x - n ln 2 in two steps, |r| <= ln 2 / 2.
 * exp(r) = 1 + r + r^2 (1/2 + r (E3 + r (E4 + r (E5 + r (E6 + r E7))))), relative error 1e-10. */
#define G2_EXP_ZERO_BELOW -87.3f
#define G2_EXP_INF_ABOVE 0x1.62e42ep+6f /* exp of this is the largest that is finite */
#define G2_LOG2_E 0x1.715476p+0f
#define G2_ROUND 0x1.8p+23f /* adding it rounds a float32 to an integer */
#define G2_LN2_HIGH 0x1.63p-1f
#define G2_LN2_LOW -0x1.bd0106p-13f
#define G2_E3 0x1.555554p-3f
#define G2_E4 0x1.5554e6p-5f
#define G2_E5 0x1.111332p-7f
#define G2_E6 0x1.6d4e56p-10f
#define G2_E7 0x1.9dd62cp-13f

/* gelu_tanh(x) = x / (1 + exp(x (T1 + T3 x^2))), which is 0.5 x (1 + tanh(..)) rearranged:
 * T1 = -2 sqrt(2/pi), T3 = 0.044715 T1. */
#define G2_T1 -0x1.988454p+0f
#define G2_T3 -0x1.2444f2p-4f

/* erfc(z) = exp(-z^2) t (C0 + C1 t + ... + C9 t^9), t = 1 / (1 + 0.4 z), z >= 0; relative
 * error 7e-9.  z is held at 16, where erfc is 0 in float32. */
#define G2_SQRT_HALF 0x1.6a09e6p-1f
#define G2_ERFC_T 0.4f
#define G2_ERFC_LIMIT 16.0f
#define G2_C0 0x1.ce4164p-3f
#define G2_C1 0x1.cc8decp-3f
#define G2_C2 0x1.b95da2p-3f
#define G2_C3 0x1.03fbf4p-3f
#define G2_C4 0x1.1ea062p-2f
#define G2_C5 -0x1.320a6cp-2f
#define G2_C6 0x1.212790p-1f
#define G2_C7 -0x1.06006cp-1f
#define G2_C8 0x1.a0b756p-3f
#define G2_C9 -0x1.f545bep-6f

#endif
