/* SPDX-License-Identifier: Apache-2.0
 *
 * The register tile of the matrix product, and what is done to it before it leaves.
 *
 *     b  one panel [k][32]            each step of k: load a row of b, then for every row of a
 *     a  m rows, or a sliver          broadcast one number and fuse-multiply-add it in.
 *     c  the tile [m][32]             All of c lives in registers until k is through.
 *
 * Numbers: an element is fma(a[k-1], b[k-1], .. fma(a[0], b[0], 0)), whatever the tile's shape.
 * A tile is up to G2_TILE_ROWS rows by G2_TILE_WIDTH vectors, which fills the registers of its
 * instruction set.  The panel is 32 columns on all of them, so a narrow tile takes it in passes.
 * G2_TILE_STEPS of k make one turn of the loop: with AVX2 its two jumps and its counting cost as much as some of the
 * arithmetic, and most where another thread shares the core.  (`base` would need more moves between registers.)
 * The shape of the loop: K. Goto and R. van de Geijn, "Anatomy of High-Performance Matrix
 * Multiplication" (2008), and the micro-kernels of BLIS. */

/* What every function down to the tile takes and hands on; see gemm_tile in table.h. */
#define REST const float *b, int64_t ldb, float *c, int64_t ldc, int accumulate, const float *ahead, \
             int64_t stride

/* Element [i, u] of a.  Where a turn has several steps, rows 3 to 5 have a pointer of their own, `lower`, since x86's
 * addresses are a pointer and 0, 1 or 2 strides; and OPAQUE keeps the compiler from knowing the stride, or it would have
 * a sum of its own for each row and step, of which most do not fit the registers. */
#define LEFT(i, u) (steps > 1 && (i) >= 3 ? lower[((i) - 3) * rs + (u) * ks] : a[(i) * rs + (u) * ks])
#define OPAQUE(stride) do { if (steps > 1 && !__builtin_constant_p(stride)) __asm__("" : "+r"(stride)); } while (0)

/* One step of k, u after the one where a and b stand. */
#define STEP(u)                                                                                     \
    do {                                                                                            \
        vf row[G2_PANEL / G2_VL];                                                                   \
        UNROLL for (int j = 0; j < width; j++) row[j] = v_load(b + (u) * ldb + j * G2_VL);          \
        UNROLL for (int i = 0; i < rows; i++) {                                                     \
            vf left = v_splat(LEFT(i, u));                                                          \
            UNROLL for (int j = 0; j < width; j++) sum[i][j] = v_fma(left, row[j], sum[i][j]);      \
        }                                                                                           \
    } while (0)

/* Is anything ahead?  With short vectors the answer is known when it is compiled, as are more of the strides: what is
 * asked and counted in a turn matters there.  Beside AVX-512's 28 multiply-adds it is nothing, and code has a size. */
enum { NOTHING, SOMETHING, PERHAPS, KNOWN = G2_VL < 16 };

/* Columns of `width` vectors.  `rows`, `width`, `steps`, `fetching` (see above) and, where they can be, `rs`,
 * `ks` and `ldb` are constants at each call, so the inner loops vanish and `sum` becomes registers; its bounds are
 * constants too: a variable-length array stays in memory. */
INLINE void tile(const int rows, const int width, const int steps, const int fetching, int64_t k, int64_t diagonal,
                 const float *a, int64_t rs, int64_t ks, REST) {
    vf sum[G2_TILE_ROWS][G2_PANEL / G2_VL];
    const float *lower = rows > 3 ? a + 3 * rs : a;
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < width; j++)
            sum[i][j] = accumulate ? v_load(c + i * ldc + j * G2_VL) : v_splat(0.0f);
    for (; k >= steps; k -= steps, a += steps * ks, lower += steps * ks, b += steps * ldb) {
        if (fetching == PERHAPS ? ahead != NULL : fetching) {
            __builtin_prefetch(ahead, 0, 3);
            if (stride > G2_LINE) __builtin_prefetch(ahead + G2_LINE, 0, 3);
            if (stride > 2 * G2_LINE) __builtin_prefetch(ahead + 2 * G2_LINE, 0, 3);
            ahead += stride;
        }
        OPAQUE(rs);
        UNROLL for (int u = 0; u < steps; u++) STEP(u);
    }
    for (; k > 0; k--, a += ks, lower += ks, b += ldb) STEP(0);
    UNROLL for (int p = 0; p < rows - 1; p++) /* row i takes part in the first i of these */
        if (p < diagonal) {
            vf row[G2_PANEL / G2_VL];
            UNROLL for (int j = 0; j < width; j++) row[j] = v_load(b + p * ldb + j * G2_VL);
            UNROLL for (int i = 0; i < rows; i++)
                if (i > p) {
                    vf left = v_splat(LEFT(i, p));
                    UNROLL for (int j = 0; j < width; j++) sum[i][j] = v_fma(left, row[j], sum[i][j]);
                }
        }
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < width; j++) v_store(c + i * ldc + j * G2_VL, sum[i][j]);
}

/* All 32 columns: few rows at once, in the registers that more rows would take, as each number of b is then read from
 * memory for little work; else as many at a time as the registers take. */
INLINE void columns(const int rows, const int fetching, int64_t k, int64_t diagonal, const float *a, int64_t rs,
                    int64_t ks, REST) {
    if (rows <= G2_WIDE_ROWS)
        tile(rows, G2_PANEL / G2_VL, 1, fetching, k, diagonal, a, rs, ks, b, ldb, c, ldc, accumulate, ahead, stride);
    else
        for (int col = 0; col < G2_PANEL; col += G2_TILE_WIDTH * G2_VL) {
            tile(rows, G2_TILE_WIDTH, G2_TILE_STEPS, fetching, k, diagonal, a, rs, ks, b + col, ldb, c + col, ldc,
                 accumulate, ahead, stride);
            if (ahead) ahead += k / G2_TILE_STEPS * stride;
        }
}

INLINE void panel_tile(const int rows, int64_t k, int64_t diagonal, const float *a, int64_t rs, int64_t ks, REST) {
    if (!KNOWN) columns(rows, PERHAPS, k, diagonal, a, rs, ks, b, ldb, c, ldc, accumulate, ahead, stride);
    else if (ahead) columns(rows, SOMETHING, k, diagonal, a, rs, ks, b, ldb, c, ldc, accumulate, ahead, stride);
    else columns(rows, NOTHING, k, diagonal, a, rs, ks, b, ldb, c, ldc, accumulate, NULL, 0);
}

#if G2_TILE_ROWS == 14
#define EACH_ROW_COUNT(CASE) \
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) \
    CASE(12) CASE(13) CASE(14)
#else
#define EACH_ROW_COUNT(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#endif

/* One function a row count and a way of reading `a`: a sliver, of a packed panel always, or rows where they are. */
#define TILE_FUNCTIONS(ROWS)                                                                             \
    FUNCTION void sliver_##ROWS(int64_t k, const float *a, REST) {                                       \
        (void)ldb;                                                                                       \
        panel_tile(ROWS, k, 0, a, 1, ROWS, b, G2_PANEL, c, ldc, accumulate, ahead, stride);              \
    }                                                                                                    \
    FUNCTION void strided_##ROWS(int64_t k, const float *a, int64_t rs, REST) {                          \
        if (KNOWN && ldb == G2_PANEL)                                                                    \
            panel_tile(ROWS, k, 0, a, rs, 1, b, G2_PANEL, c, ldc, accumulate, ahead, stride);            \
        else                                                                                             \
            panel_tile(ROWS, k, 0, a, rs, 1, b, ldb, c, ldc, accumulate, ahead, stride);                 \
    }
EACH_ROW_COUNT(TILE_FUNCTIONS)

FUNCTION void NAMED(gemm_tile)(int64_t m, int64_t k, const float *a, int64_t rs, int64_t ks, REST) {
#define SLIVER(ROWS) \
    case ROWS: sliver_##ROWS(k, a, b, ldb, c, ldc, accumulate, ahead, stride); return;
#define STRIDED(ROWS) \
    case ROWS: strided_##ROWS(k, a, rs, b, ldb, c, ldc, accumulate, ahead, stride); return;
    if (rs == 1 && ks == m && ldb == G2_PANEL) switch (m) { EACH_ROW_COUNT(SLIVER) }
    else switch (m) { EACH_ROW_COUNT(STRIDED) }
}

/* G2_VL vectors to columns that are ldb apart.  The empty statement keeps the compiler from counting on with a pointer
 * for each, most of which would wait on the stack. */
INLINE void store_turned(vf r[G2_VL], float *to, int64_t ldb) {
    v_transpose(r);
    UNROLL for (int j = 0; j < G2_VL; j++, to += ldb) {
        __asm__("" : "+r"(to));
        v_store(to, r[j]);
    }
}

/* Squares of G2_VL rows and columns, turned in registers.  Where b has no gaps, as a sliver has none, a
 * store may run into what the next one writes: whole vectors all the way but for the end. */
FUNCTION void NAMED(transpose)(const float *a, int64_t lda, int64_t h, int64_t k, float *b, int64_t ldb) {
    const int64_t end = (k - 1) * ldb + h;
    for (int64_t i = 0; i < h; i += G2_VL) {
        const int64_t rows = h - i < G2_VL ? h - i : G2_VL;
        const int may_run_over = rows == G2_VL || (ldb == h && i == 0);
        const float *row[G2_VL]; /* the last one again where there are no more: it goes where nothing is kept */
        for (int64_t j = 0; j < G2_VL; j++) row[j] = a + (i + (j < rows ? j : rows - 1)) * lda;
        int64_t p = 0;
        vf r[G2_VL];
        if (rows < 3) { /* a position or two of keys */
            for (int64_t n = 0; n < rows; n++) {
                const float *from = row[n];
                float *to = b + i + n;
                for (p = 0; p < k; p++, to += ldb) *to = from[p];
            }
            continue;
        }
        if (may_run_over)
            for (; p + G2_VL <= k && (p + G2_VL - 1) * ldb + i + G2_VL <= end; p += G2_VL) {
                UNROLL for (int j = 0; j < G2_VL; j++) r[j] = v_load(row[j] + p);
                store_turned(r, b + p * ldb + i, ldb);
            }
        for (; p < k; p += G2_VL) { /* what is left: some columns, or rows that have others beside them */
            const int64_t columns = k - p < G2_VL ? k - p : G2_VL;
            float *to = b + p * ldb + i;
            UNROLL for (int j = 0; j < G2_VL; j++)
                r[j] = columns == G2_VL ? v_load(row[j] + p) : v_load_head(row[j] + p, columns);
            v_transpose(r);
            UNROLL for (int j = 0; j < G2_VL; j++) {
                if (j >= columns) break;
                if (may_run_over && (p + j) * ldb + i + G2_VL <= end) v_store(to + j * ldb, r[j]);
                else v_store_head(to + j * ldb, r[j], rows);
            }
        }
    }
}

INLINE void activate(const int kind, const int n, vf *x) {
    switch (kind) {
    case G2_GELU_TANH: each_gelu_tanh(n, x); return;
    case G2_GELU_ERF: each_gelu_erf(n, x); return;
    case G2_RELU: each_relu(n, x);
    }
}

/* n vectors of a row, a constant, the last of which has `there` numbers; bias and residual may be NULL. */
INLINE void finish_vectors(const int kind, const int n, int64_t there, const float *sums, const float *bias,
                           const float *residual, float *out) {
    vectors v;
    EACH v[i] = v_load(sums + i * G2_VL);
    if (bias) EACH v[i] = v[i] + (there < G2_VL ? v_load_head(bias, there) : v_load(bias + i * G2_VL));
    activate(kind, n, v);
    if (residual) EACH v[i] = v[i] + (there < G2_VL ? v_load_head(residual, there) : v_load(residual + i * G2_VL));
    EACH {
        if (there < G2_VL) v_store_head(out, v[i], there);
        else v_store(out + i * G2_VL, v[i]);
    }
}

INLINE void finish(const int kind, const g2_epilogue *e, const float *tile, int64_t m, int64_t n,
                   int64_t row, int64_t col) {
    enum { TOGETHER = G2_PANEL / G2_VL < SIDE_BY_SIDE ? G2_PANEL / G2_VL : SIDE_BY_SIDE };
    const float *bias = e->bias ? e->bias + col : NULL;
    for (int64_t i = 0; i < m; i++, tile += G2_PANEL) {
        float *out = (e->out_rows ? e->out_rows[row + i] : e->out + (row + i) * e->ld_out) + col;
        const float *residual = e->residual ? e->residual + (row + i) * e->ld_residual + col : NULL;
        int64_t j = 0;
#define FINISH(VECTORS, THERE)                                                                     \
    finish_vectors(kind, VECTORS, THERE, tile + j, bias ? bias + j : NULL, residual ? residual + j : NULL, out + j)
        for (; j + TOGETHER * G2_VL <= n; j += TOGETHER * G2_VL) FINISH(TOGETHER, G2_VL);
        for (; j + G2_VL <= n; j += G2_VL) FINISH(1, G2_VL);
        if (j < n) FINISH(1, n - j);
#undef FINISH
    }
}

FUNCTION void NAMED(gemm_epilogue)(const g2_epilogue *e, const float *tile, int64_t m, int64_t n,
                                   int64_t row, int64_t col) {
    switch (e->activation) {
    case G2_GELU_TANH: finish(G2_GELU_TANH, e, tile, m, n, row, col); return;
    case G2_GELU_ERF: finish(G2_GELU_ERF, e, tile, m, n, row, col); return;
    case G2_RELU: finish(G2_RELU, e, tile, m, n, row, col); return;
    default: finish(G2_LINEAR, e, tile, m, n, row, col);
    }
}
