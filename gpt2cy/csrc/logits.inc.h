/* SPDX-License-Identifier: Apache-2.0
 *
 * One row of logits: its largest, its statistics, its first in order, what may be drawn, and the draw.
 *
 * Numbers: exp(x - max) is float32 (simd.h).  The sums of statistics are doubles in 16 lanes, lane i of elements i,
 * i + 16, ...; lanes join as 8, 4, 2, 1.  Weights to draw by are rounded so that sums of them are exact
 * (order.h).  Everything else is a comparison.  So only statistics have to keep an order of addition.
 *
 * Order: ids by their logit, the largest first, equal ones by id.  A part of it, its first k ids say, ends at a
 * cut: a value and a position.  The value is found by bisection, each step one pass that adds up what is above a
 * threshold.  When little is left between two thresholds it goes on apart from the row, and in the end is sorted.
 * Nothing depends on how the logits are distributed but the number of passes: some six, and 64 at most. */
#include "order.h"

enum { STRETCH = 1024 };  /* elements between two looks at the maximum */
enum { MANY = 2048 };     /* elements that are looked at apart from the row */
enum { FEW = 64 };        /* elements that are sorted */

INLINE vf tail_load(const float *x, int64_t n, float missing) {
    return v_head(n, v_load_head(x, n), v_splat(missing));
}

FUNCTION int64_t NAMED(argmax)(const float *x, int64_t n, float *max) {
    const float infinite = __builtin_inff();
    float best = -infinite;
    int64_t stretch = 0;
    vi sound = ~(vi){0};
    for (int64_t start = 0; start < n; start += STRETCH) {
        const int64_t end = n - start < STRETCH ? n : start + STRETCH;
        vf top = v_splat(-infinite);
        int64_t i = start;
        for (; i + 4 * G2_VL <= end; i += 4 * G2_VL) {
            vf a = v_load(x + i), b = v_load(x + i + G2_VL);
            vf c = v_load(x + i + 2 * G2_VL), d = v_load(x + i + 3 * G2_VL);
            sound &= (a < infinite) & (b < infinite) & (c < infinite) & (d < infinite);
            top = v_max(v_max(v_max(a, b), v_max(c, d)), top);
        }
        for (; i < end; i += G2_VL) {
            vf v = end - i < G2_VL ? tail_load(x + i, end - i, -infinite) : v_load(x + i);
            sound &= v < infinite;
            top = v_max(v, top);
        }
        for (int lane = 0; lane < G2_VL; lane++)
            if (top[lane] > best) best = top[lane], stretch = start;
    }
    *max = __builtin_nanf("");
    if (v_bits(sound) != (1u << G2_VL) - 1) return G2_NOT_FINITE;
    if (best == -infinite) return G2_NOTHING;
    while (stretch < n - 1 && x[stretch] != best) stretch++;
    *max = x[stretch] + 0.0f; /* neither -0 nor a subnormal */
    return stretch;
}

/* ---- sums over a row in double ----------------------------------------------------------- */

typedef struct { vd r[2 * G2_REGISTERS]; } wide16; /* lane i of elements i, i + 16, ... */

INLINE void wide_add(wide16 *sum, int j, vf v) {
    sum->r[2 * j] = sum->r[2 * j] + v_wide_low(v);
    sum->r[2 * j + 1] = sum->r[2 * j + 1] + v_wide_high(v);
}
INLINE double wide_sum(const wide16 *sum) {
    double lane[G2_LANES];
    memcpy(lane, sum, sizeof lane);
    for (int width = G2_LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i] + lane[i + width];
    return lane[0];
}

INLINE double lanes_total(vd sum) {
    double total = 0;
    for (int lane = 0; lane < G2_VL / 2; lane++) total += sum[lane];
    return total;
}
INLINE int64_t lanes_count(vi count) {
    int64_t sum = 0;
    for (int lane = 0; lane < G2_VL; lane++) sum += count[lane];
    return sum;
}
/* How many of the row are above t, and how many below. */
FUNCTION int64_t NAMED(count_above)(const float *x, int64_t n, float t) {
    vi count = {0};
    int64_t i = 0;
    for (; i + G2_VL <= n; i += G2_VL) count -= v_load(x + i) > t;
    if (i < n) count -= tail_load(x + i, n - i, -__builtin_inff()) > t;
    return lanes_count(count);
}
FUNCTION int64_t NAMED(count_below)(const float *x, int64_t n, float t) {
    vi count = {0};
    int64_t i = 0;
    for (; i + G2_VL <= n; i += G2_VL) count -= v_load(x + i) < t;
    if (i < n) count -= tail_load(x + i, n - i, __builtin_inff()) < t;
    return lanes_count(count);
}

FUNCTION void NAMED(statistics)(const float *x, int64_t n, int64_t target, g2_statistics *out) {
    const double nan = __builtin_nan("");
    *out = (g2_statistics){nan, nan, nan, 0, -1, 0.0f, __builtin_nanf("")};
    out->argmax = NAMED(argmax)(x, n, &out->max);
    if (out->argmax < 0) return;
    const vf max = v_splat(out->max), lowest = v_splat(G2_LOWEST_DIFFERENCE);
    wide16 total = {0}, moment = {0};
    int64_t i = 0;
    for (; i + G2_LANES <= n; i += G2_LANES) {
        lanes16 d, e;
        UNROLL for (int j = 0; j < G2_REGISTERS; j++) d.r[j] = v_max(v_load(x + i + j * G2_VL) - max, lowest);
        e = d;
        each_exp_down(G2_REGISTERS, e.r);
        UNROLL for (int j = 0; j < G2_REGISTERS; j++) {
            wide_add(&total, j, e.r[j]);
            wide_add(&moment, j, e.r[j] * -d.r[j]);
        }
    }
    if (i < n)
        UNROLL for (int j = 0; j < G2_REGISTERS; j++) { /* what is not there adds 0 to its lane */
            vf d = v_max(group_load(x + i, n - i, j, -__builtin_inff()) - max, lowest), e = v_exp_down(d);
            wide_add(&total, j, e);
            wide_add(&moment, j, e * -d);
        }
    g2_conclude(out, wide_sum(&total), wide_sum(&moment));
    if (target < 0) return;
    out->logprob = g2_logprob(x[target], out->max, out->log_total);
    out->rank = target - NAMED(count_below)(x, target, x[target])
                + NAMED(count_above)(x + target, n - target, x[target]);
}

/* ---- a part of the order ----------------------------------------------------------------- */

typedef struct { /* what is in: larger values, and this one up to that position */
    float value;
    int64_t at;
} cut;

/* What of the row is above t: how many, and the sum of their weights.  Without weights each counts 1. */
typedef struct { int64_t count; double weight; } share;

INLINE void share_add(vi *count, vd *sum, vf x, vf w, float t) {
    vi above = x > t;
    *count -= above;
    vf in = v_if_less(v_splat(t), x, w, v_splat(0.0f));
    *sum = *sum + v_wide_low(in) + v_wide_high(in);
}
FUNCTION share NAMED(share_above)(const float *x, const float *w, int64_t n, float t) {
    share s;
    if (!w) {
        s.count = NAMED(count_above)(x, n, t);
        s.weight = (double)s.count;
        return s;
    }
    vi count = {0};
    vd sum = {0}, other = {0};
    int64_t i = 0;
    for (; i + 2 * G2_VL <= n; i += 2 * G2_VL) {
        share_add(&count, &sum, v_load(x + i), v_load(w + i), t);
        share_add(&count, &other, v_load(x + i + G2_VL), v_load(w + i + G2_VL), t);
    }
    for (; i < n; i += G2_VL) {
        int64_t left = n - i < G2_VL ? n - i : G2_VL;
        share_add(&count, &sum, tail_load(x + i, left, -__builtin_inff()), tail_load(w + i, left, 0.0f), t);
    }
    s.count = lanes_count(count);
    s.weight = lanes_total(sum + other);
    return s;
}

/* Smallest value that is not -Inf, +Inf where there is none; and how many are not. */
FUNCTION float NAMED(smallest)(const float *x, int64_t n, int64_t *finite) {
    const float infinite = __builtin_inff();
    vf least = v_splat(infinite);
    vi count = {0};
    for (int64_t i = 0; i < n; i += G2_VL) {
        vf v = n - i < G2_VL ? tail_load(x + i, n - i, -infinite) : v_load(x + i);
        vi in = v > -infinite;
        count -= in;
        v = v_if_less(v_splat(-infinite), v, v, v_splat(infinite));
        least = v_if_less(v, least, v, least);
    }
    *finite = lanes_count(count);
    float found = infinite;
    for (int lane = 0; lane < G2_VL; lane++)
        if (least[lane] < found) found = least[lane];
    return found;
}

/* Positions, in their order, of values above `low`, or equal to it where `with`, and at most `high`;
 * no more than `room` of them. */
FUNCTION int64_t NAMED(collect)(const float *x, int64_t first, int64_t end, float low, int with, float high,
                                int64_t *at, int64_t room) {
    int64_t found = 0;
    for (int64_t i = first; i < end; i += G2_VL) {
        vf v = end - i < G2_VL ? tail_load(x + i, end - i, __builtin_nanf("")) : v_load(x + i);
        for (unsigned in = v_bits((with ? v >= low : v > low) & (v <= high)); in; in &= in - 1) {
            if (found == room) return found;
            at[found++] = i + __builtin_ctz(in);
        }
    }
    return found;
}

/* A number for each float32, in their order; -0 is 0. */
INLINE int32_t order_of(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >= 0 ? bits : (int32_t)(0x80000000u - (uint32_t)bits);
}
INLINE float with_order(int32_t order) {
    int32_t bits = order >= 0 ? order : (int32_t)(0x80000000u - (uint32_t)order);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
/* A value between two others that are not neighbours: by turns half-way in value, which suits logits that lie
 * closely, and half-way in bit patterns, which suits a few far away from the rest and ends within 32 steps. */
INLINE float between(float low, float high, int step) {
    float middle = 0.5f * low + 0.5f * high;
    if (step % 2 == 0 && low < middle && middle < high) return middle;
    int64_t a = order_of(low), b = order_of(high);
    return with_order((int32_t)(a + (b - a) / 2));
}

/* The cut after as many of the equal values `value` as it takes: one is in if the weight before it is below
 * `bound`; of the first that is so. */
INLINE cut cut_among_equals(const float *x, const float *w, int64_t n, float value, double before, double bound) {
    cut found = {value, -1};
    for (int64_t i = 0; i < n && before < bound; i++)
        if (x[i] == value) found.at = i, before += w ? (double)w[i] : 1.0;
    return found;
}

/* Between two values: weights above `low` reach the bound, those above `high` do not. */
typedef struct { float low, high; share above_low, above_high; } bracket;

/* Bisect until at most `most` values are in the bracket, or only one value is, however often.  The row may be a part
 * of one: `base` is what is above all of it. */
FUNCTION void NAMED(narrow)(const float *x, const float *w, int64_t n, share base, double bound, int64_t most,
                            bracket *b) {
    for (int step = 0; b->above_low.count - b->above_high.count > most; step++) {
        if (order_of(b->high) - (int64_t)order_of(b->low) <= 1) return;
        float middle = between(b->low, b->high, step);
        share above = NAMED(share_above)(x, w, n, middle);
        above.count += base.count, above.weight += base.weight;
        if (above.weight >= bound) b->low = middle, b->above_low = above;
        else b->high = middle, b->above_high = above;
    }
}

/* The first of the order whose weights reach `bound`: an id is in if the weight of those before it is below.
 * bound > 0, and weights, if there are any, reach it; max is the maximum. */
FUNCTION cut NAMED(find_cut)(const float *x, const float *w, int64_t n, float max, double bound) {
    int64_t finite, at[MANY] = {0}, few[FEW], last = 0;
    float y[MANY] = {0}, v[MANY] = {0}, least = NAMED(smallest)(x, n, &finite);
    if (!w && (double)finite < bound) return cut_among_equals(x, w, n, -__builtin_inff(), (double)finite, bound);
    const float *weights = w ? v : NULL;
    bracket b = {least - 0x1p-10f * __builtin_fabsf(least) - 0x1p-100f, max, {finite, bound}, {0, 0.0}};
    NAMED(narrow)(x, w, n, b.above_high, bound, MANY, &b);
    if (b.above_low.count - b.above_high.count > MANY)
        return cut_among_equals(x, w, n, b.high, b.above_high.weight, bound);
    const int64_t many = NAMED(collect)(x, 0, n, b.low, 0, b.high, at, MANY);
    for (int64_t i = 0; i < many; i++) {
        y[i] = x[at[i]];
        if (w) v[i] = w[at[i]];
    }
    NAMED(narrow)(y, weights, many, b.above_high, bound, FEW, &b);
    double before = b.above_high.weight;
    if (b.above_low.count - b.above_high.count > FEW) {
        cut among = cut_among_equals(y, weights, many, b.high, before, bound);
        last = among.at > 0 ? among.at : 0;
    } else {
        const int64_t left = NAMED(collect)(y, 0, many, b.low, 0, b.high, few, FEW);
        g2_sort(y, few, left);
        for (int64_t i = 0; i < left && before < bound; i++) last = few[i], before += w ? (double)v[last] : 1.0;
    }
    return (cut){y[last], at[last]};
}

FUNCTION int64_t NAMED(top)(const float *x, int64_t n, int64_t k, int64_t *ids) {
    float max;
    if (k > n) k = n;
    if (k < 1 || NAMED(argmax)(x, n, &max) < 0) return 0;
    cut last = NAMED(find_cut)(x, NULL, n, max, (double)k);
    int64_t found = NAMED(collect)(x, 0, last.at + 1, last.value, 1, max, ids, k);
    found += NAMED(collect)(x, last.at + 1, n, last.value, 0, max, ids + found, k - found);
    g2_sort(x, ids, found);
    return found;
}

/* ---- what may be drawn ------------------------------------------------------------------- */

INLINE vf on_grid(vf e, float grid) {
    return v_if_less(e, v_splat(grid), (e + v_splat(grid)) - v_splat(grid), e);
}
/* (x - max) / temperature, for elements i.. of x[n]; what is not there is -Inf. */
INLINE vf scaled(const float *x, int64_t i, int64_t n, float max, float inverse_temperature) {
    vf v = n - i < G2_VL ? tail_load(x + i, n - i, -__builtin_inff()) : v_load(x + i);
    return v_max((v - max) * inverse_temperature, v_splat(G2_LOWEST_DIFFERENCE));
}
INLINE void put(float *y, vf v, int64_t i, int64_t n) {
    if (n - i < G2_VL) v_store_head(y + i, v, n - i);
    else v_store(y + i, v);
}
INLINE vf get(const float *x, int64_t i, int64_t n) { return n - i < G2_VL ? v_load_head(x + i, n - i) : v_load(x + i); }

FUNCTION double NAMED(sum)(const float *w, int64_t n) {
    vd low = {0}, high = {0};
    for (int64_t i = 0; i < n; i += G2_VL) {
        vf v = get(w, i, n);
        low = low + v_wide_low(v), high = high + v_wide_high(v);
    }
    return lanes_total(low + high);
}

FUNCTION double NAMED(weigh)(const float *x, int64_t n, float max, float inverse_temperature, float grid, float *w) {
    vd low = {0}, high = {0};
    for (int64_t i = 0; i < n; i += G2_VL) {
        vf e = on_grid(v_exp_down(scaled(x, i, n, max, inverse_temperature)), grid);
        put(w, e, i, n);
        low = low + v_wide_low(e), high = high + v_wide_high(e);
    }
    return lanes_total(low + high);
}

/* Weights of what is not before or at the cut become 0. */
INLINE void drop_outside(const float *x, float *w, int64_t first, int64_t end, float value, int with) {
    for (int64_t i = first; i < end; i += G2_VL) {
        vf v = get(x, i, end), weight = get(w, i, end), none = v_splat(0.0f);
        put(w, with ? v_if_less(v, v_splat(value), none, weight) : v_if_less(v_splat(value), v, weight, none), i, end);
    }
}
FUNCTION void NAMED(drop)(const float *x, float *w, int64_t n, cut last) {
    drop_outside(x, w, 0, last.at + 1, last.value, 1);
    drop_outside(x, w, last.at + 1, n, last.value, 0);
}

/* How typical each is: less the distance of its log-likelihood from the mean; -Inf where it is out already. */
FUNCTION void NAMED(typicality)(const float *x, const float *w, int64_t n, float max, float inverse_temperature,
                                float grid, float *key) {
    vd low = {0}, high = {0};
    for (int64_t i = 0; i < n; i += G2_VL) {
        vf e = on_grid(get(w, i, n) * -scaled(x, i, n, max, inverse_temperature), grid);
        low = low + v_wide_low(e), high = high + v_wide_high(e);
    }
    vf mean = v_splat((float)(-lanes_total(low + high) / NAMED(sum)(w, n)));
    for (int64_t i = 0; i < n; i += G2_VL) {
        vf d = scaled(x, i, n, max, inverse_temperature) - mean;
        d = v_if_less(d, v_splat(0.0f), d, -d);
        put(key, v_if_less(v_splat(0.0f), get(w, i, n), d, v_splat(-__builtin_inff())), i, n);
    }
}

FUNCTION int64_t NAMED(select)(const float *x, int64_t n, const g2_sampling *s, float *scratch, g2_candidates *out) {
    int64_t *ids = (int64_t *)(void *)scratch;
    float *few = scratch + 2 * n, *w = scratch + 3 * n, *key = scratch + 4 * n;
    const float temperature = s->inverse_temperature, grid = g2_grid(n);
    float max, closest;
    int64_t first = NAMED(argmax)(x, n, &max);
    if (first < 0) return first;
    *out = (g2_candidates){w, NULL, n, 0.0};
    if (0 < s->top_k && s->top_k < n) { /* from here on a row of top_k */
        cut last = NAMED(find_cut)(x, NULL, n, max, (double)s->top_k);
        int64_t found = NAMED(collect)(x, 0, last.at + 1, last.value, 1, max, ids, s->top_k);
        found += NAMED(collect)(x, last.at + 1, n, last.value, 0, max, ids + found, s->top_k - found);
        if (!found) return G2_NOTHING; /* another thread is writing to x: wrong, but never out of bounds */
        for (int64_t i = 0; i < found; i++) few[i] = x[ids[i]];
        x = few, out->ids = ids, out->n = n = found;
    }
    out->total = NAMED(weigh)(x, n, max, temperature, grid, w);
    if (s->top_p < 1.0) NAMED(drop)(x, w, n, NAMED(find_cut)(x, w, n, max, g2_bound(s->top_p, out->total)));
    if (s->min_p > 0.0f)
        for (int64_t i = 0; i < n; i += G2_VL) {
            vf weight = get(w, i, n);
            put(w, v_if_less(weight, v_splat(s->min_p), v_splat(0.0f), weight), i, n);
        }
    if (s->typical_p < 1.0) {
        NAMED(typicality)(x, w, n, max, temperature, grid, key);
        NAMED(argmax)(key, n, &closest);
        double bound = g2_bound(s->typical_p, NAMED(sum)(w, n));
        NAMED(drop)(key, w, n, NAMED(find_cut)(key, w, n, closest, bound));
    }
    out->total = NAMED(sum)(w, n);
    return first;
}

FUNCTION int64_t NAMED(draw)(const g2_candidates *c, double u) {
    const double share = u * c->total;
    double before = 0;
    int64_t chosen = 0;
    for (int64_t start = 0; start < c->n; start += STRETCH) {
        const int64_t end = c->n - start < STRETCH ? c->n : start + STRETCH;
        double sum = NAMED(sum)(c->weights + start, end - start);
        if (before + sum <= share) {
            before += sum;
            continue;
        }
        for (chosen = start; chosen < end - 1; chosen++)
            if ((before += (double)c->weights[chosen]) > share) break;
        break;
    }
    return c->ids ? c->ids[chosen] : chosen;
}
