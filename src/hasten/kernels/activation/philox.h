// Philox4x32-10: random numbers that are a function of their position, for 64 neighbours of a row at once.
//
// Ten rounds of two products and an exclusive or mix a counter of 128 bits with a key of 64 bits, and return four numbers of
// 32 bits. The key is the seed, and the counter is the number of a row and of a column: column c gets number c % 64 // 16 of
// the counter c // 64 * 16 + c % 16, which suits vectors.
//
// Source: Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"; their library is Random123.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "vectors.h"

namespace hasten {

constexpr int64_t COUNTERS = 16; // for neighbours, at any vector width; each returns four numbers
constexpr int64_t GROUPS = COUNTERS / WIDTH;
constexpr int64_t DRAWN = 4 * COUNTERS;

struct Drawn {
    words of[4 * GROUPS]; // 64 numbers of 32 bits, in order
};

namespace philox {

struct Counters {
    longs of[4];
};

// The lower half of each number times a 32-bit number: one instruction of the processor, which gcc does not find.
inline longs product(longs numbers, uint32_t by) {
#if defined __AVX512F__
    return (longs)_mm512_mul_epu32((__m512i)numbers, _mm512_set1_epi64(by));
#elif defined __AVX2__
    return (longs)_mm256_mul_epu32((__m256i)numbers, _mm256_set1_epi64x(by));
#else
    return (numbers & 0xffffffff) * by;
#endif
}

inline Counters ten_rounds(Counters c, uint64_t seed) {
    uint32_t first = seed, second = seed >> 32;
    for (int round = 0; round < 10; round++, first += 0x9E3779B9u, second += 0xBB67AE85u) {
        longs a = product(c.of[0], 0xD2511F53u), b = product(c.of[2], 0xCD9E8D57u);
        c = {{(b >> 32) ^ c.of[1] ^ first, b, (a >> 32) ^ c.of[3] ^ second, a}};
    }
    return c;
}

} // namespace philox

// The numbers of 64 columns from 64 · block on. Even and odd counters are separate, as products are twice as wide.
inline Drawn drawn(uint64_t seed, uint64_t row, uint64_t block) {
    Drawn found;
    for (int64_t group = 0; group < GROUPS; group++) {
        longs counted = (longs)((words)lanes() + (uint32_t)(block * COUNTERS + group * WIDTH));
        longs none = {}, low = none + (uint32_t)row, high = none + (row >> 32);
        philox::Counters even = philox::ten_rounds({{counted, low, high, none}}, seed);
        philox::Counters odd = philox::ten_rounds({{counted >> 32, low, high, none}}, seed);
        for (int64_t each = 0; each < 4; each++)
            found.of[each * GROUPS + group] = (words)((even.of[each] & 0xffffffff) | (odd.of[each] << 32));
    }
    return found;
}

} // namespace hasten
