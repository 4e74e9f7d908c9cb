/* SPDX-License-Identifier: Apache-2.0
 *
 * Who writes what, as the Cython drivers share it out (kernels/gemm.pyx, kernels/attention.pyx), with plain
 * threads, so that a race detector understands the locks: built with -fsanitize=thread, or run under helgrind.
 * Tasks are taken from shares, as in kernels/threads.pyx; results are compared with one thread's; then threads help
 * each other and meet.
 * Prints "N passed, M failed". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guard.h"
#include "layout.h"
#include "table.h"

enum { THREADS = 3, M = 75, K = 130, N = 200, K_BLOCK = 48, CHUNK = 2, GROUP = 2, H = 3, D = 20, T = 150, START = 30 };
enum { C = H * D, PANELS = (N + G2_PANEL - 1) / G2_PANEL, BLOCKS = (START + T + G2_BLOCK - 1) / G2_BLOCK };

static const g2_table *table;
static struct { int64_t next, end; } shares[THREADS];
static void (*body)(int task, int thread);
static int n_workers;

/* A worker's next task, or -1: of its own share, then of the others'. */
static int take(int me) {
    for (int i = 0; i < n_workers; i++) {
        int who = (me + i) % n_workers;
        int64_t task = g2_take(&shares[who].next, shares[who].end);
        if (task >= 0) return (int)task;
    }
    return -1;
}

static void *worker(void *arg) {
    const int me = (int)(size_t)arg;
    for (int task; (task = take(me)) >= 0;) body(task, me);
    return NULL;
}

/* One parallel loop: all threads start, all have ended when it returns. */
static void parallel(void (*what)(int, int), int tasks, int threads) {
    pthread_t id[THREADS];
    body = what, n_workers = threads;
    for (int i = 0; i < threads; i++) shares[i].next = tasks * i / threads, shares[i].end = tasks * (i + 1) / threads;
    for (int i = 0; i < threads; i++) pthread_create(&id[i], NULL, worker, (void *)(size_t)i);
    for (int i = 0; i < threads; i++) pthread_join(id[i], NULL);
}

static float *numbers(size_t n) {
    float *x = aligned_alloc(64, (n * 4 + 63) / 64 * 64);
    for (size_t i = 0; i < n; i++) x[i] = (float)(i * 2654435761u % 2003) / 1001.5f - 1.0f;
    return x;
}

/* ---- a product: pack slivers, then some slivers by some panels a task */
static float *a, *slivers, *tiles[THREADS];
static g2_packed w;
static g2_epilogue e;

static int n_slivers(void) { return (M + table->sliver - 1) / table->sliver; }
static int row_of(int sliver) { return sliver * (M / n_slivers()) + (sliver < M % n_slivers() ? sliver : M % n_slivers()); }

static void pack(int sliver, int thread) {
    (void)thread;
    int h = row_of(sliver + 1) - row_of(sliver);
    table->transpose(a + row_of(sliver) * K, K, h, K, slivers + row_of(sliver) * K, h);
}

static void multiply(int task, int thread) {
    int chunks = (n_slivers() + CHUNK - 1) / CHUNK, s0 = task % chunks * CHUNK, g0 = task / chunks * GROUP;
    for (int k0 = 0; k0 < K; k0 += K_BLOCK) {
        int depth = K - k0 < K_BLOCK ? K - k0 : K_BLOCK;
        float *tile = tiles[thread];
        for (int panel = g0; panel < g0 + GROUP && panel < PANELS; panel++)
            for (int s = s0; s < s0 + CHUNK && s < n_slivers(); s++) {
                int row = row_of(s), h = row_of(s + 1) - row, left = N - panel * G2_PANEL;
                const float *b = (float *)w.data + (panel * K + k0) * G2_PANEL;
                table->gemm_tile(h, depth, slivers + row * K + k0 * h, 1, h, b, G2_PANEL, tile, G2_PANEL, k0 > 0, b, G2_LINE);
                if (k0 + depth == K)
                    table->gemm_epilogue(&e, tile, h, left < G2_PANEL ? left : G2_PANEL, row, panel * G2_PANEL);
                tile += h * G2_PANEL;
            }
    }
}

static float *product(int threads) {
    e.out = numbers(M * N), e.residual = e.out; /* in place, as on the residual stream */
    parallel(pack, n_slivers(), threads);
    parallel(multiply, (n_slivers() + CHUNK - 1) / CHUNK * ((PANELS + GROUP - 1) / GROUP), threads);
    return e.out;
}

/* ---- attention: keys and values a block a task, then some queries of one head a task */
static float *qkv, *blocks[BLOCKS], *out, *scratch[THREADS];
static g2_sequence sequence;

static void append(int task, int thread) {
    (void)thread;
    int first = task * G2_BLOCK - START, end = first + G2_BLOCK;
    first = first < 0 ? 0 : first, end = end > T ? T : end;
    if (end > first) g2_append(table, &sequence, qkv, C, D, 0, 0, C / D, first, end - first);
}

static void attend(int task, int thread) {
    int per_head = (T + table->queries - 1) / table->queries, head = task / per_head;
    int row = task % per_head * table->queries, n = T - row < table->queries ? T - row : table->queries;
    g2_attention job = {qkv + row * 3 * C + head * D, 3 * C, n, START + row, blocks, head * D * G2_BLOCK,
                        head * D * G2_BLOCK + C * G2_BLOCK, D, 0.2f, out + row * C + head * D, C, scratch[thread]};
    table->attention(&job);
}

static float *attention(int threads) {
    out = numbers(T * C);
    parallel(append, BLOCKS, threads);
    parallel(attend, H * ((T + table->queries - 1) / table->queries), threads);
    return out;
}

/* ---- meetings: each thread has loops of its own, and helps with the others' until all are there */
enum { ROUNDS = 40, LOOPS = 3, TASKS = 9 };
typedef struct { int factor, input, result[TASKS]; } job;
static g2_loop loops[THREADS];
static job jobs[THREADS];
static int arrived, missed;

static void one_task(const void *what, int64_t task, float *scratch_of) {
    job *j = (job *)what;
    scratch_of[0] = (float)task; /* the worker's own */
    j->result[task] += j->factor * (int)scratch_of[0] + j->input;
}

static void *meeting(void *arg) {
    const int me = (int)(size_t)arg;
    job *mine = &jobs[me];
    for (int round = 0; round < ROUNDS; round++) {
        int pauses = 0, number;
        memset(mine->result, 0, sizeof mine->result);
        for (int i = 0; i < LOOPS; i++) { /* the next one begins when guests have left the last */
            mine->factor = me + i + 1, mine->input = round;
            g2_run(&loops[me], one_task, mine, TASKS - i, scratch[me]);
        }
        number = g2_arrive(&arrived, THREADS);
        while (!g2_all_there(&arrived, number)) {
            int helped = 0;
            for (int i = 1; i < THREADS; i++) helped |= g2_help(&loops[(me + i) % THREADS], scratch[me]);
            if (!helped) g2_wait(&pauses);
        }
        for (int t = 0; t < THREADS; t++)
            for (int task = 0; task < TASKS; task++) {
                int want = 0;
                for (int i = 0; i < LOOPS && task < TASKS - i; i++) want += (t + i + 1) * task + round;
                if (jobs[t].result[task] != want) __atomic_add_fetch(&missed, 1, __ATOMIC_RELAXED);
            }
        number = g2_arrive(&arrived, THREADS); /* all have read */
        while (!g2_all_there(&arrived, number)) g2_wait(&pauses);
    }
    return NULL;
}

static int meetings(int times) {
    while (times--) {
        pthread_t id[THREADS];
        arrived = 0, memset(loops, 0, sizeof loops);
        for (int i = 0; i < THREADS; i++) pthread_create(&id[i], NULL, meeting, (void *)(size_t)i);
        for (int i = 0; i < THREADS; i++) pthread_join(id[i], NULL);
    }
    return missed;
}

int main(void) {
    int failed = 0, passed = 0;
    a = numbers(M * K), slivers = numbers(M * K), qkv = numbers(T * 3 * C);
    w = (g2_packed){numbers(PANELS * G2_PANEL * K), NULL, NULL, K, N, G2_FLOAT32, G2_PANEL, 1};
    e = (g2_epilogue){numbers(N), G2_GELU_TANH, NULL, N, NULL, N, NULL};
    for (int i = 0; i < THREADS; i++)
        tiles[i] = numbers(CHUNK * GROUP * G2_MAX_ROWS * G2_PANEL), scratch[i] = numbers(G2_ATTENTION_SCRATCH);
    for (int i = 0; i < BLOCKS; i++) blocks[i] = numbers(2 * C * G2_BLOCK + G2_PANEL);
    sequence = (g2_sequence){0, T, START, blocks, 0};
    for (const g2_table *const *t = g2_tables(); *t; t++) {
        table = *t;
        if (!g2_supported(table)) continue;
        int wrong = memcmp(product(1), product(THREADS), M * N * 4) != 0;
        wrong += memcmp(attention(1), attention(THREADS), T * C * 4) != 0;
        printf("%-7s %s\n", table->name, wrong ? "FAILED" : "ok");
        wrong ? failed++ : passed++;
    }
    meetings(10) ? failed++ : passed++;
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
