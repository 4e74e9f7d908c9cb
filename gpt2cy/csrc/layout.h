/* SPDX-License-Identifier: Apache-2.0
 *
 * Moving numbers into and out of the layouts of table.h.  No arithmetic but one addition
 * (g2_embed), so one version serves every instruction set.  All static: each extension module
 * that includes this has its own copy. */
#ifndef G2_LAYOUT_H
#define G2_LAYOUT_H

#include <string.h>

#include "table.h"

/* Element [k, n] of a packed float32 matrix. */
static inline float *g2_element(const g2_packed *w, int64_t k, int64_t n) {
    return (float *)w->data + (n / G2_PANEL * w->k + k) * G2_PANEL + n % G2_PANEL;
}

/* Rows k0 .. k0 + rows - 1 and columns n0 .. n0 + columns - 1 of a packed matrix from `other`, or, with
 * `out` set, into it.  Strides count floats; columns past N are never touched. */
static inline void g2_copy_packed(const g2_packed *w, int64_t k0, int64_t rows, int64_t n0, int64_t columns,
                                  float *other, int64_t row_stride, int64_t column_stride, int out) {
    for (int64_t n = 0; n < columns;) {
        int64_t at = (n0 + n) % G2_PANEL, width = G2_PANEL - at;
        if (width > columns - n) width = columns - n;
        float *panel = g2_element(w, k0, n0 + n), *beside = other + n * column_stride;
        for (int64_t k = 0; k < rows; k++, panel += G2_PANEL, beside += row_stride) {
            if (column_stride == 1) memcpy(out ? beside : panel, out ? panel : beside, (size_t)width * sizeof(float));
            else if (out) for (int64_t j = 0; j < width; j++) beside[j * column_stride] = panel[j];
            else for (int64_t j = 0; j < width; j++) panel[j] = beside[j * column_stride];
        }
        n += width;
    }
}

/* Columns n0 .. n0 + columns - 1 of a packed matrix from rows of `other`, [columns, K], each `stride` floats behind
 * the one before. */
static inline void g2_pack_transposed(const g2_table *table, const g2_packed *w, int64_t n0, int64_t columns,
                                      const float *other, int64_t stride) {
    for (int64_t n = 0, width; n < columns; n += width) {
        int64_t at = (n0 + n) % G2_PANEL;
        width = G2_PANEL - at < columns - n ? G2_PANEL - at : columns - n;
        table->transpose(other + n * stride, stride, width, w->k, g2_element(w, 0, n0 + n), G2_PANEL);
    }
}

/* Keys and values of rows first .. first + n - 1 of a sequence, from qkv[rows, 3 C] (the columns after
 * the queries), into the blocks: those of heads head .. head + n_heads - 1.  keys as in g2_attention, for head 0. */
static inline void g2_append(const g2_table *table, const g2_sequence *s, const float *qkv, int64_t width,
                             int64_t head_dim, int64_t keys, int64_t head, int64_t n_heads, int64_t first, int64_t n) {
    const int64_t begin = head * head_dim, end = begin + n_heads * head_dim;
    for (int64_t done = 0, run; done < n; done += run) { /* a run of positions within one block */
        int64_t position = s->position + first + done, at = position % G2_BLOCK;
        run = G2_BLOCK - at < n - done ? G2_BLOCK - at : n - done;
        float *block = s->blocks[position / G2_BLOCK] + keys;
        float *values = block + width * G2_BLOCK;
        const float *row = qkv + (s->row + first + done) * 3 * width;
        table->transpose(row + width + begin, 3 * width, run, end - begin, block + begin * G2_BLOCK + at, G2_BLOCK);
        for (int64_t i = 0; i < run; i++)
            for (int64_t c = begin; c < end; c += head_dim)
                memcpy(values + c * G2_BLOCK + (at + i) * head_dim, row + i * 3 * width + 2 * width + c,
                       (size_t)head_dim * sizeof(float));
    }
}

/* Asks for the lines that an epilogue will write: rows row .. row + m - 1, columns col .. col + 31. */
static inline void g2_expect(const g2_epilogue *e, int64_t m, int64_t row, int64_t col) {
    for (int64_t i = row; i < row + m; i++) {
        float *out = (e->out_rows ? e->out_rows[i] : e->out + i * e->ld_out) + col;
        __builtin_prefetch(out, 1), __builtin_prefetch(out + G2_LINE, 1);
    }
}

/* A table of rows, plain ([rows, C]: panel_stride 32 C, row_stride C, column_stride 1) or packed as the
 * right matrix of a product (column_stride 32). */
typedef struct {
    const float *data;
    int64_t panel_stride, row_stride, column_stride;
} g2_rows;

static inline const float *g2_row(const g2_rows *t, int64_t row) {
    return t->data + row / G2_PANEL * t->panel_stride + row % G2_PANEL * t->row_stride;
}

/* x[c] = token[c], or token[c] + position[c] where there is a position. */
static inline void g2_embed(const g2_rows *tokens, int64_t id, const g2_rows *positions, int64_t position,
                            int64_t width, float *x) {
    const float *token = g2_row(tokens, id);
    if (tokens->column_stride == 1) memcpy(x, token, (size_t)width * sizeof(float));
    else for (int64_t c = 0; c < width; c++) x[c] = token[c * tokens->column_stride];
    if (positions) {
        const float *add = g2_row(positions, position);
        for (int64_t c = 0; c < width; c++) x[c] = x[c] + add[c * positions->column_stride];
    }
}

#endif
