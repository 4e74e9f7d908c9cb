/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host system offers: OpenMP's view of the threads, the processors this thread may use,
 * and aligned memory in huge pages where the system grants them. */
#ifndef G2_HOST_H
#define G2_HOST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <sched.h>
#include <sys/mman.h>
#endif
#ifdef _WIN32
#include <malloc.h>
#endif

#ifdef _OPENMP
enum { G2_OPENMP = _OPENMP };
static inline int g2_omp_limit(void) { return omp_get_max_threads(); }
static inline int g2_omp_team(void) { return omp_get_num_threads(); } /* of the loop that this is in */
#else
enum { G2_OPENMP = 0 };
static inline int g2_omp_limit(void) { return 1; }
static inline int g2_omp_team(void) { return 1; }
#endif

#ifdef _WIN32
static inline int g2_process(void) { return 0; } /* no fork there */
#else
#include <unistd.h>
static inline int g2_process(void) { return (int)getpid(); }
#endif

/* Processors that the calling thread may run on; 0 where the system does not say.  Where OpenMP binds its threads, it
 * has bound this one to one of them already, and knows how many there were. */
static inline int g2_affinity(void) {
#ifdef _OPENMP
    if (omp_get_proc_bind() != omp_proc_bind_false) return omp_get_num_procs();
#endif
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return 0;
}

/* Seconds, of a clock that only goes forwards where the system has one; Windows' can be set back. */
static inline double g2_now(void) {
    struct timespec t;
#ifdef CLOCK_MONOTONIC
    clock_gettime(CLOCK_MONOTONIC, &t);
#else
    timespec_get(&t, TIME_UTC);
#endif
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { G2_ALIGNMENT = 64 };
static const size_t G2_HUGE_PAGE = (size_t)2 << 20;

/* 64-byte aligned; with `huge`, from 4 MiB on, aligned to huge pages, which are asked for and not insisted on: the
 * processor then walks one page table entry where it walked 512. */
static inline void *g2_allocate(size_t bytes, int huge) {
    size_t alignment = huge && bytes >= 2 * G2_HUGE_PAGE ? G2_HUGE_PAGE : G2_ALIGNMENT;
    void *p = NULL;
    if (bytes > SIZE_MAX - alignment) return NULL;
#ifdef _WIN32
    p = _aligned_malloc(bytes, alignment);
#else
    if (posix_memalign(&p, alignment, bytes)) return NULL;
#endif
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (alignment == G2_HUGE_PAGE) madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}
static inline void g2_free(void *p) {
#ifdef _WIN32
    _aligned_free(p);
#else
    free(p);
#endif
}

#endif
