// Products of bfloat16 matrices that fit the cache of a core, summed in float32.
//
// AVX512-BF16 multiplies pairs: to each of sixteen sums it adds a₀b₀ + a₁b₁. So the right operand is stored as pairs of
// rows, with the two numbers of a column next to each other, and the left operand is read by pairs of columns.
#pragma once

#include "vectors.h"

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)
#define THERE 1
#else
#define THERE 0
#endif

namespace hasten {

// A left operand: pair p of row i is two numbers at at[i * row + p * pair].
struct Left {
    const bfloat16 *at;
    int64_t row, pair;
};

#if THERE
inline floats with_pairs(floats sums, const bfloat16 *pair, floats right) {
    int32_t both;
    memcpy(&both, pair, sizeof both);
    return (floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32(both), (__m512bh)right);
}
#else // never called, as there() is false
inline floats with_pairs(floats sums, const bfloat16 *, floats) { return sums; }
#endif

// A tile of the product, in registers.
template <int ROWS, int VECTORS>
inline void tile(int64_t pairs, Left left, const uint32_t *right, int64_t right_row, float *to, int64_t to_row, bool add) {
    floats sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
        for (int at = 0; at < VECTORS; at++)
            sums[row][at] = add ? load(to + row * to_row + at * WIDTH) : floats{};
    for (int64_t pair = 0; pair < pairs; pair++) {
        floats columns[VECTORS];
#pragma GCC unroll 8
        for (int at = 0; at < VECTORS; at++)
            memcpy(&columns[at], right + pair * right_row + at * WIDTH, sizeof columns[at]);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
            for (int at = 0; at < VECTORS; at++)
                sums[row][at] = with_pairs(sums[row][at], left.at + row * left.row + pair * left.pair, columns[at]);
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
        for (int at = 0; at < VECTORS; at++)
            store(to + row * to_row + at * WIDTH, sums[row][at]);
}

constexpr int64_t TILE_ROWS = 6, TILE_VECTORS = 4; // 24 sums, 4 columns and a pair: of 32 registers

template <int VECTORS>
inline void strip(int64_t rows, int64_t pairs, Left left, const uint32_t *right, int64_t right_row, float *to,
                  int64_t to_row, bool add) {
    int64_t row = 0;
    for (; row + TILE_ROWS <= rows; row += TILE_ROWS)
        tile<TILE_ROWS, VECTORS>(pairs, {left.at + row * left.row, left.row, left.pair}, right, right_row,
                                 to + row * to_row, to_row, add);
    for (; row + 2 <= rows; row += 2)
        tile<2, VECTORS>(pairs, {left.at + row * left.row, left.row, left.pair}, right, right_row, to + row * to_row,
                         to_row, add);
    for (; row < rows; row++)
        tile<1, VECTORS>(pairs, {left.at + row * left.row, left.row, left.pair}, right, right_row, to + row * to_row,
                         to_row, add);
}

// to[rows, columns] = or += left[rows, 2 pairs] right[2 pairs, columns]. columns: a multiple of WIDTH.
inline void multiply(int64_t rows, int64_t columns, int64_t pairs, Left left, const uint32_t *right, int64_t right_row,
                     float *to, int64_t to_row, bool add) {
    int64_t at = 0;
    for (; at + TILE_VECTORS * WIDTH <= columns; at += TILE_VECTORS * WIDTH)
        strip<TILE_VECTORS>(rows, pairs, left, right + at, right_row, to + at, to_row, add);
    for (; at + 2 * WIDTH <= columns; at += 2 * WIDTH)
        strip<2>(rows, pairs, left, right + at, right_row, to + at, to_row, add);
    for (; at < columns; at += WIDTH)
        strip<1>(rows, pairs, left, right + at, right_row, to + at, to_row, add);
}

inline int64_t up(int64_t count) { return (count + WIDTH - 1) / WIDTH * WIDTH; }

// A matrix as right operand: to[p, c] is the pair of rows 2p and 2p + 1 of column c. Zeros follow its last row, up to a
// multiple of WIDTH, and its last column.
inline void pair(const bfloat16 *from, int64_t stride, int64_t rows, int64_t columns, uint32_t *to) {
    int64_t padded_rows = up(rows), padded = up(columns);
    for (int64_t row = 0; row < padded_rows; row += 2, to += padded)
        for (int64_t at = 0; at < padded; at += WIDTH) {
            int64_t left = columns - at < WIDTH ? columns - at : WIDTH;
            floats first = row < rows ? load_up_to(from + row * stride + at, left) : floats{};
            floats second = row + 1 < rows ? load_up_to(from + (row + 1) * stride + at, left) : floats{};
            words both = (words)first >> 16 | (words)second;
            memcpy(to + at, &both, sizeof both);
        }
}

// The transposed matrix as right operand: to[p, r] is the pair of columns 2p and 2p + 1 of row r. columns: even.
inline void turn(const bfloat16 *from, int64_t stride, int64_t rows, int64_t columns, uint32_t *to) {
    int64_t padded = up(rows);
    for (int64_t first = 0; first < padded; first += WIDTH)
        for (int64_t at = 0; at < columns / 2; at++) {
            uint32_t found[WIDTH] = {};
            for (int64_t row = 0; row < WIDTH && first + row < rows; row++)
                memcpy(found + row, from + (first + row) * stride + 2 * at, sizeof *found);
            memcpy(to + at * padded + first, found, sizeof found);
        }
}

} // namespace hasten
