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

/* Returns when n threads, this one among them, have called it; `arrived` starts at 0 and serves once.  What they
 * wrote before is there for all of them.  A long wait means that somebody else has the other's processor: then this one
 * is offered too. */
static inline void g2_meet(int *arrived, int n) {
    __atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL);
    for (int pauses = 0; __atomic_load_n(arrived, __ATOMIC_ACQUIRE) < n; pauses++) {
        if (pauses < G2_PATIENCE) {
            G2_PAUSE();
        } else {
            pauses--;
            G2_YIELD();
        }
    }
}

/* Takes what the pointer holds and leaves `with` in its place. */
static inline void *g2_swap(void **pointer, void *with) {
    return __atomic_exchange_n(pointer, with, __ATOMIC_ACQ_REL);
}

#endif
