/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tables there are, and which of them this processor and operating system can run.
 * Compiled for the baseline, without link-time optimisation. */
#include <string.h>

#include "table.h"

extern const g2_table g2_table_ref;
#if defined(__x86_64__) || defined(_M_X64)
extern const g2_table g2_table_base, g2_table_avx2, g2_table_avx512;
static const g2_table *const tables[] = {&g2_table_ref, &g2_table_base, &g2_table_avx2, &g2_table_avx512, NULL};
#elif defined(__aarch64__)
extern const g2_table g2_table_neon;
static const g2_table *const tables[] = {&g2_table_ref, &g2_table_neon, NULL};
#else
static const g2_table *const tables[] = {&g2_table_ref, NULL};
#endif

const g2_table *const *g2_tables(void) { return tables; }

int g2_supported(const g2_table *table) {
#if defined(__x86_64__) || defined(_M_X64)
    /* The built-in reads XCR0 too: a kernel that does not save the registers counts as a no. */
    __builtin_cpu_init();
    if (!strcmp(table->name, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    if (!strcmp(table->name, "avx2")) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    (void)table;
#endif
    return 1;
}
