/* SPDX-License-Identifier: Apache-2.0
 *
 * All cores: each thread takes some panels, comes back, and takes the next.
 *
 * Threads share out columns, never k: a sum that two threads make in halves is another sum. There are at least four
 * tasks a thread, handed out one at a time, because cores are not equally fast: a neighbour, an interrupt, the clock. With
 * one fixed share a thread, everybody waits for the slowest. */
#include <omp.h>

#include "../tile.h"

void in_parallel(const product *p, finisher finish) {
    int64_t panels = panels_of(p->n), group = panels / (p->threads * 4);
    if (group < 1) group = 1;
    if (group > 8) group = 8;
#pragma omp parallel for schedule(static) num_threads(p->threads)
    for (int64_t s = 0; s < slivers_of(p->m); s++) pack_sliver(p, s);
#pragma omp parallel for schedule(dynamic) num_threads(p->threads)
    for (int64_t from = 0; from < panels; from += group)
        panels_ahead(p, from, from + group < panels ? from + group : panels,
                     p->tiles + omp_get_thread_num() * p->m * G2_PANEL, finish);
}

void threads(const product *p) { in_parallel(p, store); }
