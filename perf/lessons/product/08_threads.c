/* SPDX-License-Identifier: Apache-2.0
 *
 * All cores: each thread takes some panels, comes back, and takes the next.
 *
 * Threads share out columns, never k: a sum that two threads make in halves is another sum. There are at least four
 * tasks a thread, and a thread that has done its own share takes from the others', because cores are not equally fast:
 * a neighbour, an interrupt, the clock. With fixed shares, everybody waits for the slowest. And the tasks of a share
 * follow each other in memory, so that what lesson 7 fetches ahead is what this thread needs next. */
#include <omp.h>

#include "../tile.h"

enum { MOST_THREADS = 256 };
typedef struct { int64_t next, end, apart[6]; } share; /* a cache line of its own */

void in_parallel(const product *p, finisher finish) {
    int64_t panels = panels_of(p->n), group = panels / (p->threads * 4);
    if (group < 1) group = 1;
    if (group > 8) group = 8;
    int64_t tasks = (panels + group - 1) / group;
    share shares[MOST_THREADS];
    for (int i = 0; i < p->threads; i++) shares[i] = (share){tasks * i / p->threads, tasks * (i + 1) / p->threads, {0}};
#pragma omp parallel num_threads(p->threads)
    {
        int me = omp_get_thread_num();
#pragma omp for schedule(static)
        for (int64_t s = 0; s < slivers_of(p->m); s++) pack_sliver(p, s);
        for (int i = 0; i < p->threads; i++) {
            share *from = &shares[(me + i) % p->threads];
            for (int64_t task; (task = __atomic_fetch_add(&from->next, 1, __ATOMIC_RELAXED)) < from->end;) {
                int64_t first = task * group, end = first + group < panels ? first + group : panels;
                panels_ahead(p, first, end, p->tiles + me * p->m * G2_PANEL, finish);
            }
        }
    }
}

void threads(const product *p) { in_parallel(p, store); }
