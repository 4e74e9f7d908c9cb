/* SPDX-License-Identifier: Apache-2.0
 *
 * Every kernel of every table this processor can run, against ref.c: the same bits where the table is
 * fused, close where it is not.  Buffers end at a page that may not be touched, or begin after one.
 * Then the bits of a fixed set of inputs, which every fused table of every processor must give.
 * Prints one line a kernel and "N passed, M failed".
 *
 *     cc -O2 -I gpt2cy/csrc tests/csrc/kernels.c gpt2cy/csrc/{ref,cpu,isa_*}.c -lm     (flags: setup.py) */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fpmode.h"
#include "layout.h"
#include "table.h"

static uint64_t state = 88172645463325252u;
static float noise(void) { /* xorshift, to [-2, 2) */
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (float)(int32_t)(state >> 32) * 0x1p-30f;
}

/* n floats between two guard pages: up against the second one, or right behind the first. */
static float *guarded(int64_t n, int behind) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = ((size_t)n * 4 + page - 1) / page * page;
    char *p = mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + page, bytes, PROT_READ | PROT_WRITE)) abort();
    return (float *)(behind ? p + page : p + page + bytes - (size_t)n * 4);
}
static void release(float *x, int64_t n, int behind) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = ((size_t)n * 4 + page - 1) / page * page;
    char *start = behind ? (char *)x - page : (char *)x + (size_t)n * 4 - bytes - page;
    munmap(start, bytes + 2 * page);
}
static float *filled(int64_t n, int behind) {
    float *x = guarded(n, behind);
    for (int64_t i = 0; i < n; i++) x[i] = noise();
    return x;
}

static int passed, failed, wrong;
static const g2_table *table, *ref;

static void compare(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int same = memcmp(a + i, b + i, 4) == 0 || (isnan(a[i]) && isnan(b[i]));
        int close = !table->fused && fabsf(a[i] - b[i]) <= 1e-4f * (1 + fabsf(b[i]));
        wrong += !same && !close;
    }
}
static void report(const char *kernel) {
    printf("%-7s %-14s %s\n", table->name, kernel, wrong ? "FAILED" : "ok");
    wrong ? failed++ : passed++;
    wrong = 0;
}

static void gemm_tile(void) {
    for (int behind = 0; behind < 2; behind++)
        for (int64_t m = 1; m <= table->sliver; m++)
            for (int64_t k = 1; k <= 40; k = k < 5 ? k + 1 : k * 2 + 1)
                for (int way = 0; way < 5; way++) { /* sliver; attention weights and queries; rows, also of one */
                    int64_t rs = way == 0 || way == 4 ? 1 : way == 1 ? G2_BLOCK : k + 3, ks = way == 0 ? m : 1;
                    int64_t ldb = way == 1 ? 13 : way == 2 ? G2_BLOCK : G2_PANEL;
                    int64_t na = (m - 1) * rs + (k - 1) * ks + 1, nb = (k - 1) * ldb + G2_PANEL, nc = m * G2_PANEL;
                    float *a = filled(na, behind), *b = filled(nb, behind);
                    float *c = filled(nc, behind), *d = guarded(nc, behind);
                    for (int how = 0; how < 4; how++) { /* from 0 or from c; with and without prefetching */
                        int accumulate = how & 1;
                        memcpy(d, c, (size_t)nc * 4);
                        float *got = guarded(nc, behind);
                        memcpy(got, c, (size_t)nc * 4);
                        const float *ahead = how & 2 ? b : NULL;
                        table->gemm_tile(m, k, a, rs, ks, b, ldb, got, G2_PANEL, accumulate, ahead, G2_PANEL);
                        ref->gemm_tile(m, k, a, rs, ks, b, ldb, d, G2_PANEL, accumulate, NULL, 0);
                        compare(got, d, nc);
                        release(got, nc, behind);
                    }
                    release(a, na, behind), release(b, nb, behind), release(c, nc, behind), release(d, nc, behind);
                }
    report("gemm_tile");
}

static void gemm_epilogue(void) {
    for (int behind = 0; behind < 2; behind++)
        for (int64_t n = 1; n <= G2_PANEL; n++)
            for (int set = 0; set < 32; set++) {
                enum { M = 3 };
                float *tile = filled(M * G2_PANEL, behind), *bias = filled(n, behind), *residual = filled(M * n, behind);
                float *got = guarded(M * n, behind), *want = guarded(M * n, behind), *rows[M];
                for (int i = 0; i < M; i++) rows[i] = got + i * n;
                g2_epilogue e = {set & 1 ? bias : NULL, set >> 3, set & 2 ? residual : NULL, n, got, n, set & 4 ? rows : NULL};
                table->gemm_epilogue(&e, tile, M, n, 0, 0);
                e.out = want, e.out_rows = NULL;
                ref->gemm_epilogue(&e, tile, M, n, 0, 0);
                compare(got, want, M * n);
                release(tile, M * G2_PANEL, behind), release(bias, n, behind), release(residual, M * n, behind);
                release(got, M * n, behind), release(want, M * n, behind);
            }
    report("gemm_epilogue");
}

static void rows(void) {
    static const int64_t widths[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 100, 127};
    for (int behind = 0; behind < 2; behind++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            int64_t width = widths[i], n = 3 * width;
            float *x = filled(n, behind), *gamma = filled(width, behind), *beta = filled(width, behind);
            float *got = guarded(n, behind), *want = guarded(n, behind);
            if (i % 3 == 0) x[n / 2] = NAN, x[n - 1] = INFINITY;
            for (int with = 0; with < 2; with++) {
                table->layernorm(x, gamma, with ? beta : NULL, 1e-5f, got, 3, width);
                ref->layernorm(x, gamma, with ? beta : NULL, 1e-5f, want, 3, width);
                compare(got, want, n);
            }
            table->softmax(x, got, 3, width), ref->softmax(x, want, 3, width), compare(got, want, n);
            for (int kind = G2_LINEAR; kind <= G2_RELU; kind++)
                table->activation(kind, x, got, n), ref->activation(kind, x, want, n), compare(got, want, n);
            for (int64_t j = 0; j < n; j++) x[j] *= 50.0f;
            table->exp(x, got, n), ref->exp(x, want, n), compare(got, want, n);
            release(x, n, behind), release(gamma, width, behind), release(beta, width, behind);
            release(got, n, behind), release(want, n, behind);
        }
    report("rows");
}

/* Of one tile every second number; then several tiles, the last of them not full, and as many as there may be. */
static int64_t more_queries(int64_t n) {
    int64_t next = n < table->sliver ? n + 2 : 3 * n;
    return n == table->queries ? n + 1 : next < table->queries ? next : table->queries;
}

static void attention(void) {
    static const int64_t head_dims[] = {1, 2, 3, 16, 31, 32, 33, 64, 100, 256};
    static const int64_t positions[] = {0, 1, 50, 63, 64, 65, 127, 130};
    enum { BLOCKS = 3 };
    float *scratch = guarded(G2_ATTENTION_SCRATCH, 0);
    for (size_t h = 0; h < sizeof head_dims / sizeof *head_dims; h++)
        for (size_t p = 0; p < sizeof positions / sizeof *positions; p++)
            for (int64_t n = 1; n <= table->queries; n = more_queries(n)) {
                int64_t d = head_dims[h], size = 2 * d * G2_BLOCK + G2_PANEL, seen = positions[p] + n;
                float *blocks[BLOCKS], *q = filled(n * d, 0), *got = guarded(n * d, 0), *want = guarded(n * d, 0);
                for (int b = 0; b < BLOCKS; b++) {
                    blocks[b] = filled(size, 0);
                    for (int64_t j = 0; j < G2_BLOCK; j++) /* what is not yet there is poison */
                        if (b * G2_BLOCK + j >= seen)
                            for (int64_t c = 0; c < d; c++)
                                blocks[b][c * G2_BLOCK + j] = NAN, blocks[b][d * G2_BLOCK + j * d + c] = INFINITY;
                }
                g2_attention a = {q, d, n, positions[p], blocks, 0, d * G2_BLOCK, d, 0.3f, got, d, scratch};
                table->attention(&a);
                a.out = want;
                ref->attention(&a);
                compare(got, want, n * d);
                for (int64_t i = 0; i < n * d; i++) wrong += isnan(got[i]);
                for (int b = 0; b < BLOCKS; b++) release(blocks[b], size, 0);
                release(q, n * d, 0), release(got, n * d, 0), release(want, n * d, 0);
            }
    release(scratch, G2_ATTENTION_SCRATCH, 0);
    report("attention");
}

/* A row of logits in one of several kinds: noise, few values, half of it masked, all equal, NaN, nothing. */
enum { LOGIT_KINDS = 6 };
static float *logit_row(int64_t n, int kind, int behind) {
    float *x = filled(n, behind);
    for (int64_t i = 0; i < n; i++) {
        if (kind == 1) x[i] = (float)(int)(2 * x[i]);
        if (kind == 2 && x[i] < 0 && i != n / 2) x[i] = -INFINITY;
        if (kind == 3) x[i] = 1.5f;
        if (kind == 5) x[i] = -INFINITY;
    }
    if (kind == 4) x[n - 1] = NAN;
    return x;
}

static void same_statistics(const g2_statistics *a, const g2_statistics *b) {
    float got[] = {a->max, a->logprob, (float)a->log_sum_exp, (float)a->log_total, (float)a->entropy};
    float want[] = {b->max, b->logprob, (float)b->log_sum_exp, (float)b->log_total, (float)b->entropy};
    compare(got, want, 5);
    wrong += a->argmax != b->argmax || a->rank != b->rank;
}

/* Weights [n] of ids, whichever way the candidates are kept. */
static void dense(const g2_candidates *c, float *w, int64_t n) {
    memset(w, 0, (size_t)n * 4);
    for (int64_t i = 0; i < c->n; i++) w[c->ids ? c->ids[i] : i] = c->weights[i];
}

static void logits(void) {
    static const int64_t widths[] = {1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65, 100, 1024, 1025, 1500};
    static const g2_sampling ways[] = {{1, 0, 1, 0, 1}, {0.5f, 0, 0.9, 0, 1}, {2, 5, 0.7, 0, 1}, {1, 0, 1, 0.1f, 0.8}};
    for (int behind = 0; behind < 2; behind++)
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
            for (int kind = 0; kind < LOGIT_KINDS; kind++) {
                int64_t n = widths[i], k = n / 2 + 1, *got, *want;
                int64_t room = (G2_SELECT_SCRATCH(n) + 1) / 2 * 2; /* ids are in it, so 8-byte aligned */
                float *x = logit_row(n, kind, behind), *scratch = guarded(room, behind);
                float *other = guarded(room, behind);
                float *w = guarded(n, behind), *v = guarded(n, behind);
                g2_statistics a, b;
                for (int64_t target = -1; target < n; target += (n + 2) / 2)
                    table->statistics(x, n, target, &a), ref->statistics(x, n, target, &b), same_statistics(&a, &b);
                got = (int64_t *)(void *)guarded(2 * k, behind), want = (int64_t *)(void *)guarded(2 * k, behind);
                int64_t found = table->top(x, n, k, got);
                wrong += found != ref->top(x, n, k, want) || memcmp(got, want, (size_t)found * sizeof *got) != 0;
                for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
                    g2_candidates c, d;
                    int64_t first = table->select(x, n, ways + way, scratch, &c);
                    wrong += first != ref->select(x, n, ways + way, other, &d);
                    if (first < 0) continue;
                    dense(&c, w, n), dense(&d, v, n), compare(w, v, n);
                    for (double u = 0; u < 1 && table->fused; u += 0.2499)
                        wrong += table->draw(&c, u) != ref->draw(&d, u);
                }
                release(x, n, behind), release(scratch, room, behind), release(other, room, behind);
                release(w, n, behind), release(v, n, behind);
                release((float *)(void *)got, 2 * k, behind), release((float *)(void *)want, 2 * k, behind);
            }
    report("logits");
}

static void layouts(void) { /* packing and back, a sliver, keys and values: moves, so exact */
    for (int64_t k = 1; k < 40; k += 6)
        for (int64_t n = 1; n < 80; n += 9) {
            int64_t size = (n + G2_PANEL - 1) / G2_PANEL * G2_PANEL * k;
            float *panels = guarded(size, 0), *x = filled(k * n, 0), *y = guarded(k * n, 0), *s = guarded(k * n, 0);
            g2_packed w = {panels, NULL, NULL, k, n, G2_FLOAT32, G2_PANEL, 1};
            g2_copy_packed(&w, 0, k, 0, n, x, n, 1, 0);
            g2_copy_packed(&w, 0, k, 0, n, y, 1, k, 1);
            table->transpose(x, n, k, n, s, k);
            for (int64_t i = 0; i < k; i++)
                for (int64_t j = 0; j < n; j++) {
                    wrong += x[i * n + j] != y[j * k + i] || *g2_element(&w, i, j) != x[i * n + j];
                    wrong += s[j * k + i] != x[i * n + j];
                }
            release(panels, size, 0), release(x, k * n, 0), release(y, k * n, 0), release(s, k * n, 0);
        }
    for (int64_t position = 0; position < 70; position += 23) {
        enum { T = 75, H = 2, D = 5, C = H * D, SIZE = 2 * C * G2_BLOCK };
        float *qkv = filled(T * 3 * C, 0), *blocks[3];
        for (int b = 0; b < 3; b++) blocks[b] = guarded(SIZE, 0);
        g2_sequence s = {0, T, position, blocks, SIZE};
        g2_append(table, &s, qkv, C, D, 0, 0, C / D, 0, T);
        for (int64_t i = 0; i < T; i++)
            for (int64_t c = 0; c < C; c++) {
                int64_t at = (position + i) % G2_BLOCK, head = c / D;
                const float *block = blocks[(position + i) / G2_BLOCK];
                wrong += block[c * G2_BLOCK + at] != qkv[i * 3 * C + C + c];
                wrong += block[C * G2_BLOCK + (head * G2_BLOCK + at) * D + c % D] != qkv[i * 3 * C + 2 * C + c];
            }
        release(qkv, T * 3 * C, 0);
        for (int b = 0; b < 3; b++) release(blocks[b], SIZE, 0);
    }
    report("layouts");
}

/* ---- the same bits on every processor: all kernels on inputs that an integer formula makes, as one hash */

/* Of numerics version 1.  A release that raises G2_NUMERICS_VERSION puts the value that the program prints here. */
static const uint64_t GOLDEN = 0xb8fc9c960159485cu;
static const uint64_t GOLDEN_LOGITS = 0xc78d58fb42e4fec7u;

enum { GOLDEN_M = 29, GOLDEN_K = 200, GOLDEN_N = 70, GOLDEN_K_BLOCK = 77, GOLDEN_D = 40, GOLDEN_T = 150 };
static uint64_t hash;
static void mix(const float *x, int64_t n) { /* FNV-1a, a float at a time */
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        hash = (hash ^ bits) * 0x100000001b3u;
    }
}

/* n multiples of 2^-23 within [-scale, scale): exact where scale is a power of two, rounded once elsewhere. */
static float *formula(uint32_t seed, int64_t n, float scale) {
    float *x = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        uint32_t h = (uint32_t)i + seed * 0x9e3779b9u; /* the finaliser of MurmurHash3 */
        h = (h ^ h >> 16) * 0x85ebca6bu, h = (h ^ h >> 13) * 0xc2b2ae35u, h ^= h >> 16;
        x[i] = ((float)(h >> 8) * 0x1p-23f - 1.0f) * scale;
    }
    return x;
}

/* epilogue(a w): slivers as tall as the table's tile, K in blocks. */
static void golden_product(int activation) {
    float *a = formula(1, GOLDEN_M * GOLDEN_K, 1), *b = formula(2, GOLDEN_K * GOLDEN_N, 1);
    float *bias = formula(3, GOLDEN_N, 1), *residual = formula(4, GOLDEN_M * GOLDEN_N, 8);
    float *out = formula(5, GOLDEN_M * GOLDEN_N, 0), panels[96 * GOLDEN_K] = {0};
    float tile[G2_MAX_ROWS * G2_PANEL], sliver[G2_MAX_ROWS * GOLDEN_K];
    g2_packed w = {panels, NULL, NULL, GOLDEN_K, GOLDEN_N, G2_FLOAT32, G2_PANEL, 1};
    g2_epilogue e = {bias, activation, residual, GOLDEN_N, out, GOLDEN_N, NULL};
    g2_copy_packed(&w, 0, GOLDEN_K, 0, GOLDEN_N, b, GOLDEN_N, 1, 0);
    for (int64_t row = 0, h; row < GOLDEN_M; row += h) {
        h = GOLDEN_M - row < table->sliver ? GOLDEN_M - row : table->sliver;
        table->transpose(a + row * GOLDEN_K, GOLDEN_K, h, GOLDEN_K, sliver, h);
        for (int64_t col = 0; col < GOLDEN_N; col += G2_PANEL) {
            for (int64_t k = 0; k < GOLDEN_K; k += GOLDEN_K_BLOCK)
                table->gemm_tile(h, k + GOLDEN_K_BLOCK < GOLDEN_K ? GOLDEN_K_BLOCK : GOLDEN_K - k, sliver + k * h, 1,
                                 h, g2_element(&w, k, col), G2_PANEL, tile, G2_PANEL, k > 0, NULL, 0);
            table->gemm_epilogue(&e, tile, h, GOLDEN_N - col < G2_PANEL ? GOLDEN_N - col : G2_PANEL, row, col);
        }
    }
    mix(out, GOLDEN_M * GOLDEN_N);
    free(a), free(b), free(bias), free(residual), free(out);
}

static void golden_rows(void) {
    enum { ROWS = 3, WIDTH = 333, N = ROWS * WIDTH };
    float *x = formula(6, N, 8), *gamma = formula(7, WIDTH, 1), *beta = formula(8, WIDTH, 1);
    float *wide = formula(9, N, 95), *y = formula(10, N, 0); /* exp: 0, Inf, and all between */
    for (int with = 0; with < 2; with++)
        table->layernorm(x, gamma, with ? beta : NULL, 1e-5f, y, ROWS, WIDTH), mix(y, N);
    table->softmax(x, y, ROWS, WIDTH), mix(y, N);
    for (int kind = G2_LINEAR; kind <= G2_RELU; kind++) table->activation(kind, x, y, N), mix(y, N);
    table->exp(wide, y, N), mix(y, N);
    free(x), free(gamma), free(beta), free(wide), free(y);
}

static void golden_attention(void) {
    enum { D = GOLDEN_D, T = GOLDEN_T, BLOCKS = (T + G2_BLOCK - 1) / G2_BLOCK };
    float *qkv = formula(11, T * 3 * D, 1), *out = formula(12, T * D, 0), *blocks[BLOCKS];
    float *scratch = formula(13, G2_ATTENTION_SCRATCH, 0);
    for (int b = 0; b < BLOCKS; b++) blocks[b] = formula(14, 2 * D * G2_BLOCK + G2_PANEL, 0);
    g2_sequence s = {0, T, 0, blocks, 0};
    g2_append(table, &s, qkv, D, D, 0, 0, 1, 0, T);
    for (int64_t i = 0; i < T; i += table->queries) {
        int64_t n = T - i < table->queries ? T - i : table->queries;
        g2_attention job = {qkv + i * 3 * D, 3 * D, n, i, blocks, 0, D * G2_BLOCK, D, 0.75f, out + i * D, D, scratch};
        table->attention(&job);
    }
    mix(out, T * D);
    for (int b = 0; b < BLOCKS; b++) free(blocks[b]);
    free(qkv), free(out), free(scratch);
}

static void mix_doubles(const double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float half[2];
        memcpy(half, x + i, 8);
        mix(half, 2);
    }
}

static void golden_logits(void) {
    enum { N = 3333, TOP = 40 };
    static const g2_sampling ways[] = {{1, 0, 1, 0, 1}, {0.75f, 0, 0.9, 0, 1}, {1.5f, 50, 0.7, 0, 1}, {1, 0, 1, 0.1f, 0.8}};
    float *x = formula(15, N, 12), *scratch = formula(16, G2_SELECT_SCRATCH(N), 0);
    float *w = formula(17, N, 0);
    int64_t ids[TOP];
    g2_statistics s;
    table->statistics(x, N, N / 3, &s);
    double sums[] = {s.log_sum_exp, s.log_total, s.entropy, s.max, s.logprob, (double)s.argmax, (double)s.rank};
    mix_doubles(sums, 7);
    table->top(x, N, TOP, ids);
    for (int i = 0; i < TOP; i++) mix_doubles(&(double){(double)ids[i]}, 1);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        g2_candidates c;
        table->select(x, N, ways + way, scratch, &c);
        dense(&c, w, N), mix(w, N), mix_doubles(&c.total, 1);
        for (double u = 0; u < 1; u += 1 / 64.0) mix_doubles(&(double){(double)table->draw(&c, u)}, 1);
    }
    free(x), free(scratch), free(w);
}

static void golden(void) {
    hash = 0xcbf29ce484222325u;
    for (int activation = G2_LINEAR; activation <= G2_RELU; activation++) golden_product(activation);
    golden_rows();
    golden_attention();
    printf("%-7s these bits: 0x%016llx\n", table->name, (unsigned long long)hash);
    wrong = table->fused && hash != GOLDEN;
    report("golden");
    hash = 0xcbf29ce484222325u;
    golden_logits();
    printf("%-7s these bits of logits: 0x%016llx\n", table->name, (unsigned long long)hash);
    wrong = table->fused && hash != GOLDEN_LOGITS;
    report("golden_logits");
}

int main(void) {
    const g2_table *const *tables = g2_tables();
    uint64_t mode = g2_fp_enter();
    ref = tables[0];
    for (int i = 0; tables[i]; i++) {
        table = tables[i];
        if (!g2_supported(table)) continue;
        gemm_tile(), gemm_epilogue(), rows(), attention(), logits(), layouts(), golden();
    }
    g2_fp_leave(mode);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
