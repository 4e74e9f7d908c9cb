/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters shared by threads: who reads a model's weights, who has the thread team, which task of a loop
 * comes next, who has arrived.  Atomic, so that they hold with and without the GIL. */
#ifndef G2_GUARD_H
#define G2_GUARD_H

#include <stdint.h>

#ifdef _WIN32
#define G2_YIELD() ((void)0)
#else
#include <sched.h>
#define G2_YIELD() ((void)sched_yield())
#endif
#if defined(__x86_64__)
#define G2_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define G2_PAUSE() __asm__ volatile("yield" ::: "memory")
#else
#define G2_PAUSE() ((void)0)
#endif
enum { G2_PATIENCE = 1000 }; /* pauses: tens of microseconds */

/* state: n > 0 readers, 0 free, -1 one writer. */
static inline int g2_read_enter(int *state) {
    int seen = __atomic_load_n(state, __ATOMIC_RELAXED);
    do if (seen < 0) return 0;
    while (!__atomic_compare_exchange_n(state, &seen, seen + 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
    return 1;
}
static inline void g2_read_leave(int *state) { __atomic_sub_fetch(state, 1, __ATOMIC_RELEASE); }
static inline int g2_write_enter(int *state) {
    int free_state = 0;
    return __atomic_compare_exchange_n(state, &free_state, -1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
static inline void g2_write_leave(int *state) { __atomic_store_n(state, 0, __ATOMIC_RELEASE); }

static inline int g2_count_up(int *count) { return __atomic_add_fetch(count, 1, __ATOMIC_RELAXED); }
static inline int g2_count_down(int *count) { return __atomic_sub_fetch(count, 1, __ATOMIC_ACQ_REL); }
static inline int g2_count(const int *count) { return __atomic_load_n(count, __ATOMIC_ACQUIRE); }

/* The next of the tasks *next .. end - 1, or -1 when they are all taken. */
static inline int64_t g2_take(int64_t *next, int64_t end) {
    if (__atomic_load_n(next, __ATOMIC_RELAXED) >= end) return -1;
    int64_t task = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    return task < end ? task : -1;
}

/* One step of waiting.  A long wait means that somebody else has the other's processor: then this one is offered (not
 * on Windows, where G2_YIELD does nothing). */
static inline void g2_wait(int *pauses) {
    if (*pauses < G2_PATIENCE) {
        ++*pauses;
        G2_PAUSE();
    } else {
        G2_YIELD();
    }
}

/* A loop of one thread's that those who wait may help with.  All zero: there is none. */
typedef struct {
    int64_t left;   /* tasks that nobody has taken: the last ones of 0 .. n - 1 */
    int64_t guests; /* threads that take one, or do one they have taken; `n`, `work` and `job` are read by these only */
    int64_t n;
    void (*work)(const void *job, int64_t task, float *scratch);
    const void *job;
} g2_loop;

static inline int64_t g2_next(g2_loop *loop) {
    int64_t left = __atomic_load_n(&loop->left, __ATOMIC_ACQUIRE);
    while (left > 0)
        if (__atomic_compare_exchange_n(&loop->left, &left, left - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return loop->n - left;
    return -1;
}

/* The owner's: all tasks, most of them by itself; returns when the last one is done. */
static inline void g2_run(g2_loop *loop, void (*work)(const void *, int64_t, float *), const void *job, int64_t n,
                          float *scratch) {
    int pauses = 0;
    loop->n = n, loop->work = work, loop->job = job;
    __atomic_store_n(&loop->left, n, __ATOMIC_RELEASE);
    for (int64_t task; (task = g2_next(loop)) >= 0;) work(job, task, scratch);
    while (__atomic_load_n(&loop->guests, __ATOMIC_ACQUIRE)) g2_wait(&pauses);
}

/* Another's: one task, if there is one.  A guest is counted before it takes, so that the owner, who sees that nothing
 * is left, sees it too. */
static inline int g2_help(g2_loop *loop, float *scratch) {
    int64_t task;
    if (__atomic_load_n(&loop->left, __ATOMIC_RELAXED) <= 0) return 0;
    __atomic_add_fetch(&loop->guests, 1, __ATOMIC_RELAXED);
    task = g2_next(loop);
    if (task >= 0) loop->work(loop->job, task, scratch);
    __atomic_sub_fetch(&loop->guests, 1, __ATOMIC_RELEASE);
    return task >= 0;
}

/* A meeting of n threads: each arrives, and goes on when all are there; what they wrote before is there for all of
 * them.  `arrived` starts at 0 and serves for any number of meetings, one after the other.  The answer of g2_arrive is
 * what g2_all_there waits for. */
static inline int g2_arrive(int *arrived, int n) {
    return (__atomic_fetch_add(arrived, 1, __ATOMIC_ACQ_REL) / n + 1) * n;
}
static inline int g2_all_there(const int *arrived, int number) {
    return __atomic_load_n(arrived, __ATOMIC_ACQUIRE) >= number;
}

/* Takes what the pointer holds and leaves `with` in its place. */
static inline void *g2_swap(void **pointer, void *with) {
    return __atomic_exchange_n(pointer, with, __ATOMIC_ACQ_REL);
}

#endif
