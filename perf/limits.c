/* SPDX-License-Identifier: Apache-2.0
 *
 * What this machine can do at most.  One request a line on standard input, one JSON line back:
 *
 *   isas                                  {"isas": ["base", ...]}, the best last
 *   fma ISA THREADS SECONDS               {"rate": GFLOP/s}: independent multiply-adds in registers
 *   divide ISA THREADS SECONDS            {"rate": 1e9 quotients a second}
 *   read ISA PAGES BYTES THREADS SECONDS  {"rate": GB/s}: each thread sums BYTES of its own, over and over
 *   copy ISA PAGES BYTES THREADS SECONDS  {"rate": GB/s}, read and written: BYTES of its own to BYTES of its own
 *
 * PAGES is 4k or 2m, and only asked for; BYTES a multiple of 1024.  Buffers are kept for the next request.
 * Thread i stays on the i-th processor that the process may use.
 *
 *     cc -O3 -ffp-contract=fast -pthread limits.c -o limits     (fast: the compiler may fuse c * a + b) */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <sched.h>
#include <sys/mman.h>
#endif

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One set of loops for each instruction set.  CHAINS sums that do not wait for each other cover the latency of a
 * multiply-add on every port; with two constants they fill the registers and no more. */
#define UNROLL _Pragma("GCC unroll 32")
enum { LAPS = 20000, STREAMS = 8 };
typedef struct {
    const char *name;
    double (*fma)(float *sink);    /* floating-point operations of one lap */
    double (*divide)(float *sink); /* quotients of one lap */
    void (*read)(const char *from, size_t bytes, float *sink);
    void (*copy)(const char *from, char *to, size_t bytes);
} isa;

#define LOOPS(NAME, TARGET, FLOATS, CHAINS)                                                               \
    typedef float NAME##_v __attribute__((vector_size(4 * (FLOATS)), may_alias));                         \
    TARGET static double NAME##_fma(float *sink) {                                                        \
        NAME##_v c[CHAINS], a = {0}, b = {0};                                                             \
        a += 0.999f, b += 0.001f;                                                                         \
        UNROLL for (int i = 0; i < (CHAINS); i++) c[i] = b * (float)i;                                    \
        for (int n = 0; n < LAPS; n++) UNROLL for (int i = 0; i < (CHAINS); i++) c[i] = c[i] * a + b;     \
        UNROLL for (int i = 0; i < (CHAINS); i++) *sink += c[i][0];                                       \
        return 2.0 * (FLOATS) * (CHAINS)*LAPS;                                                            \
    }                                                                                                     \
    TARGET static double NAME##_divide(float *sink) {                                                     \
        NAME##_v c[CHAINS], a = {0};                                                                      \
        a += 1.5f;                                                                                        \
        UNROLL for (int i = 0; i < (CHAINS); i++) c[i] = a * (float)(i + 1);                              \
        for (int n = 0; n < LAPS / 8; n++) UNROLL for (int i = 0; i < (CHAINS); i++) c[i] = a / c[i];     \
        UNROLL for (int i = 0; i < (CHAINS); i++) *sink += c[i][0];                                       \
        return (double)(FLOATS) * (CHAINS) * (LAPS / 8);                                                  \
    }                                                                                                     \
    TARGET static void NAME##_read(const char *from, size_t bytes, float *sink) {                         \
        const NAME##_v *p = (const NAME##_v *)from, *end = (const NAME##_v *)(from + bytes);              \
        NAME##_v sum[STREAMS] = {{0}};                                                                    \
        for (; p < end; p += STREAMS) UNROLL for (int i = 0; i < STREAMS; i++) sum[i] += p[i];            \
        UNROLL for (int i = 0; i < STREAMS; i++) *sink += sum[i][0];                                      \
    }                                                                                                     \
    TARGET static void NAME##_copy(const char *from, char *to, size_t bytes) {                            \
        const NAME##_v *p = (const NAME##_v *)from, *end = (const NAME##_v *)(from + bytes);              \
        NAME##_v *q = (NAME##_v *)to, kept[STREAMS];                                                      \
        for (; p < end; p += STREAMS, q += STREAMS) {                                                     \
            UNROLL for (int i = 0; i < STREAMS; i++) kept[i] = p[i];                                      \
            UNROLL for (int i = 0; i < STREAMS; i++) q[i] = kept[i];                                      \
        }                                                                                                 \
    }
#define LINE(NAME) {#NAME, NAME##_fma, NAME##_divide, NAME##_read, NAME##_copy}

#if defined(__x86_64__)
LOOPS(base, , 4, 14) /* no fused multiply-add: a product and a sum */
LOOPS(avx2, __attribute__((target("avx2,fma"))), 8, 14)
LOOPS(avx512, __attribute__((target("avx512f,fma,prefer-vector-width=512"))), 16, 24)
static const isa isas[] = {LINE(base), LINE(avx2), LINE(avx512)};
static int supported(int i) {
    if (i == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return i == 0 || __builtin_cpu_supports("avx512f");
}
#elif defined(__aarch64__)
LOOPS(neon, , 4, 28)
static const isa isas[] = {LINE(neon)};
static int supported(int i) { return i == 0; }
#else
LOOPS(base, , 4, 8)
static const isa isas[] = {LINE(base)};
static int supported(int i) { return i == 0; }
#endif
enum { N_ISAS = sizeof isas / sizeof *isas, MOST_THREADS = 256, MOST_BUFFERS = 1024, PIECE = 1 << 20 };

/* ---- buffers ---------------------------------------------------------------------------------- */

static struct { char *data; size_t bytes; int huge, thread, which; } buffers[MOST_BUFFERS];
static int n_buffers;
static pthread_mutex_t buffers_lock = PTHREAD_MUTEX_INITIALIZER;

static char *allocate(size_t bytes, int huge) {
    size_t alignment = (size_t)2 << 20;
    void *p = NULL;
    if (posix_memalign(&p, alignment, bytes)) return NULL;
#ifdef __linux__
    madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#endif
    memset(p, 1, bytes); /* floats of 0x01010101, which are normal numbers; touched by the thread that reads them */
    return p;
}

/* The thread's source (which = 0) or target (1) of this size. */
static char *buffer(size_t bytes, int huge, int thread, int which) {
    char *found = NULL;
    pthread_mutex_lock(&buffers_lock);
    for (int i = 0; i < n_buffers && !found; i++)
        if (buffers[i].bytes == bytes && buffers[i].huge == huge && buffers[i].thread == thread &&
            buffers[i].which == which)
            found = buffers[i].data;
    pthread_mutex_unlock(&buffers_lock);
    if (found || !(found = allocate(bytes, huge))) return found;
    pthread_mutex_lock(&buffers_lock);
    if (n_buffers < MOST_BUFFERS) {
        buffers[n_buffers].data = found, buffers[n_buffers].bytes = bytes, buffers[n_buffers].huge = huge;
        buffers[n_buffers].thread = thread, buffers[n_buffers].which = which;
        n_buffers++;
    }
    pthread_mutex_unlock(&buffers_lock);
    return found;
}

/* ---- one request ------------------------------------------------------------------------------- */

typedef struct {
    const isa *with;
    char kind; /* first letter of the request */
    int huge, thread;
    size_t bytes;
    double seconds, rate; /* rate < 0: no memory */
    float sink;
} job;
static pthread_barrier_t start_line;

static void stay_on(int thread) {
#ifdef __linux__
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    thread %= CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && thread-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        }
#else
    (void)thread;
#endif
}

/* Some bytes from `at` on; how many. */
static size_t move_piece(const job *j, const char *from, char *to, size_t at, float *sink) {
    size_t bytes = j->bytes - at < PIECE ? j->bytes - at : PIECE;
    if (to) j->with->copy(from + at, to + at, bytes);
    else j->with->read(from + at, bytes, sink);
    return bytes;
}

static void *work(void *argument) {
    job *j = argument;
    stay_on(j->thread);
    int reads = j->kind == 'r' || j->kind == 'c';
    char *from = reads ? buffer(j->bytes, j->huge, j->thread, 0) : NULL;
    char *to = j->kind == 'c' ? buffer(j->bytes, j->huge, j->thread, 1) : NULL;
    int possible = (from || !reads) && (to || j->kind != 'c');
    /* Once before the clock runs: what nobody has touched for a while can be slow the first time. */
    for (size_t at = 0; reads && possible && at < j->bytes;) at += move_piece(j, from, to, at, &j->sink);
    pthread_barrier_wait(&start_line);
    double begin = now(), end = begin, done = 0;
    for (size_t at = 0; possible && end - begin < j->seconds; end = now()) {
        if (j->kind == 'f') done += j->with->fma(&j->sink);
        else if (j->kind == 'd') done += j->with->divide(&j->sink);
        else
            for (size_t piece = 0; piece < PIECE;) { /* small buffers several times before the clock is read */
                size_t bytes = move_piece(j, from, to, at, &j->sink);
                done += (double)bytes * (to ? 2 : 1), piece += bytes;
                at = at + bytes < j->bytes ? at + bytes : 0;
            }
    }
    j->rate = possible ? done / (end - begin) / 1e9 : -1;
    return NULL;
}

static double together(job like, int threads) {
    static job jobs[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    double rate = 0;
    int failed = 0;
    pthread_barrier_init(&start_line, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        jobs[i] = like, jobs[i].thread = i;
        if (pthread_create(&ids[i], NULL, work, &jobs[i])) perror("pthread_create"), exit(1);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        failed |= jobs[i].rate < 0, rate += jobs[i].rate;
    }
    pthread_barrier_destroy(&start_line);
    return failed ? -1 : rate;
}

static const char *answer(char *line, double *rate) {
    char kind[16], name[16], pages[16] = "";
    job like = {0};
    int threads;
    if (sscanf(line, "%15s", kind) != 1) return "empty request";
    int reads = !strcmp(kind, "read") || !strcmp(kind, "copy");
    if (!reads && strcmp(kind, "fma") && strcmp(kind, "divide")) return "no such request";
    if (reads ? sscanf(line, "%*s %15s %15s %zu %d %lf", name, pages, &like.bytes, &threads, &like.seconds) != 5
              : sscanf(line, "%*s %15s %d %lf", name, &threads, &like.seconds) != 3)
        return "wrong number of words";
    if (reads && (like.bytes < 1024 || like.bytes % 1024)) return "BYTES: expected a multiple of 1024";
    if (reads && strcmp(pages, "4k") && strcmp(pages, "2m")) return "PAGES: expected 4k or 2m";
    if (threads < 1 || threads > MOST_THREADS) return "THREADS: expected 1 to 256";
    for (int i = 0; i < N_ISAS; i++)
        if (supported(i) && !strcmp(isas[i].name, name)) like.with = &isas[i];
    if (!like.with) return "ISA: not on this machine";
    like.kind = kind[0], like.huge = !strcmp(pages, "2m");
    *rate = together(like, threads);
    return *rate < 0 ? "out of memory" : NULL;
}

int main(void) {
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        double rate = 0;
        if (!strncmp(line, "isas", 4)) {
            printf("{\"isas\": [");
            for (int i = 0, n = 0; i < N_ISAS; i++)
                if (supported(i)) printf("%s\"%s\"", n++ ? ", " : "", isas[i].name);
            printf("]}\n");
        } else {
            const char *error = answer(line, &rate);
            if (error) printf("{\"error\": \"%s\"}\n", error);
            else printf("{\"rate\": %.4f}\n", rate);
        }
        fflush(stdout);
    }
    return 0;
}
