// Computes vectors of numbers in float32, whatever their storage type, on all threads of torch's pool.
//
// It uses the vector types of gcc and clang, which become the processor's instructions, and OpenMP, whose library torch has
// loaded already. More threads are used only where their work takes longer than waking them.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace hasten {

// A vector is one register: gcc keeps wider vectors in memory, and is four times slower.
#if defined(__AVX512F__)
constexpr int64_t WIDTH = 16;
#elif defined(__AVX__)
constexpr int64_t WIDTH = 8;
#else
constexpr int64_t WIDTH = 4;
#endif
constexpr int64_t UNROLLED = 4 * WIDTH;     // hides the latency of one vector behind the others
constexpr int64_t WORTH_A_THREAD = 1 << 15; // numbers

typedef float floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t words __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t halves __attribute__((vector_size(2 * WIDTH)));

struct bfloat16 {
    uint16_t bits;
};

inline floats all(float number) { return number - floats{}; }

inline floats load(const float *from) {
    floats found;
    memcpy(&found, from, sizeof found);
    return found;
}

inline floats load(const bfloat16 *from) {
    halves found;
    memcpy(&found, from, sizeof found);
#ifdef __AVX512F__ // gcc would widen half a register at a time
    return (floats)((words)_mm512_cvtepu16_epi32((__m256i)found) << 16);
#else
    return (floats)(__builtin_convertvector(found, words) << 16);
#endif
}

inline void store(float *to, floats numbers) { memcpy(to, &numbers, sizeof numbers); }

// Rounds to nearest, ties to even; NaN stays NaN. The processor's own instruction rounds denormal numbers to 0.
inline void store(bfloat16 *to, floats numbers) {
#ifdef __AVX512BF16__
    __m256bh found = _mm512_cvtneps_pbh((__m512)numbers);
#else
    words bits = (words)numbers;
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    rounded = numbers == numbers ? rounded : (bits >> 16) | 0x40;
    halves found = __builtin_convertvector(rounded, halves);
#endif
    memcpy(to, &found, sizeof found);
}

// The first `count` numbers, and zeros.
template <class Number> inline floats load_some(const Number *from, int64_t count) {
    Number held[WIDTH] = {};
    memcpy(held, from, count * sizeof(Number));
    return load(held);
}

template <class Number> inline void store_some(Number *to, floats numbers, int64_t count) {
    Number held[WIDTH];
    store(held, numbers);
    memcpy(to, held, count * sizeof(Number));
}

// table[index % 16], lane by lane.
inline floats looked_up(const float *table, ints index) {
#if defined(__AVX512F__)
    return (floats)_mm512_permutexvar_ps((__m512i)index, (__m512)load(table));
#elif defined(__AVX2__)
    __m256 low = _mm256_permutevar8x32_ps((__m256)load(table), (__m256i)index);
    __m256 high = _mm256_permutevar8x32_ps((__m256)load(table + WIDTH), (__m256i)index);
    return (floats)_mm256_blendv_ps(low, high, (__m256)(index << 28));
#else
    floats found;
    for (int64_t lane = 0; lane < WIDTH; lane++)
        found[lane] = table[index[lane] & 15];
    return found;
#endif
}

// For |rest| up to ½ log 2. Coefficients: Cephes, expf.
inline floats exp_near_0(floats rest) {
    floats sum = all(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    return sum * (rest * rest) + rest + 1.0f;
}

// e^x within 1.1 units in the last place, for x up to 88. NaN stays NaN; results below the smallest normal number are 0.
inline floats exp_below_88(floats x) {
    floats clipped = x < -87.33654f ? all(-87.33654f) : x;
    floats shifted = clipped * 1.44269504f + 12582912.0f; // rounds: the last bits are the whole exponent of 2
    floats n = shifted - 12582912.0f;
    floats rest = clipped - n * 0.693359375f;
    rest = rest + n * 2.12194440e-4f;
    floats found = exp_near_0(rest) * (floats)(((ints)shifted - 0x4b400000 + 127) << 23);
    return x < -87.33654f ? floats{} : found;
}

// out[i] = compute(in[i], ...), on all threads. Inputs and output may be the same memory.
template <class Out, class Compute, class... In> void each(int64_t count, Out *out, Compute compute, const In *...in) {
    int64_t blocks = count / UNROLLED;
#pragma omp parallel for schedule(static) if (count > WORTH_A_THREAD)
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t at = block * UNROLLED; at < (block + 1) * UNROLLED; at += WIDTH)
            store(out + at, compute(load(in + at)...));
    for (int64_t at = blocks * UNROLLED; at < count; at += WIDTH) {
        int64_t left = count - at < WIDTH ? count - at : WIDTH;
        store_some(out + at, compute(load_some(in + at, left)...), left);
    }
}

// The first `count` numbers, at most a whole vector.
template <class Number> inline floats load_up_to(const Number *from, int64_t count) {
    return count < WIDTH ? load_some(from, count) : load(from);
}

// ---- Rows of a matrix; each is computed by one thread.

// row(i) for each row.
template <class Row> void each_row(int64_t rows, int64_t width, Row row) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_A_THREAD)
    for (int64_t i = 0; i < rows; i++)
        row(i);
}

// out[i] = compute(in[i], ...), on this thread.
template <class Out, class Compute, class... In> void map(int64_t count, Out *out, Compute compute, const In *...in) {
    int64_t at = 0;
    for (; at + WIDTH <= count; at += WIDTH)
        store(out + at, compute(load(in + at)...));
    if (at < count)
        store_some(out + at, compute(load_some(in + at, count - at)...), count - at);
}

// 0, 1, 2, ...
inline ints lanes() {
    ints found;
    for (int32_t at = 0; at < WIDTH; at++)
        found[at] = at;
    return found;
}

// Joins the lanes of a vector.
template <class Join> inline float across(floats numbers, Join join) {
#ifdef __clang__ // compiles this to the same steps, and has no __builtin_shuffle
    for (int64_t left = WIDTH / 2; left > 0; left /= 2)
        for (int64_t lane = 0; lane < left; lane++)
            numbers[lane] = join(numbers[lane], numbers[lane + left]);
#else
    for (int32_t half = WIDTH / 2; half > 0; half /= 2)
        numbers = join(numbers, __builtin_shuffle(numbers, lanes() ^ half));
#endif
    return numbers[0];
}

// join(... join(start, compute(in[0], ...)) ..., compute(in[n], ...)), in an order that keeps the processor busy.
// neutral: the input behind the last number, which does not change the result.
template <class Join, class Compute, class... In>
inline float fold(int64_t count, float start, Join join, Compute compute, float neutral, const In *...in) {
    floats found[4] = {all(start), all(start), all(start), all(start)};
    int64_t at = 0;
    for (; at + UNROLLED <= count; at += UNROLLED)
        for (int64_t part = 0; part < 4; part++)
            found[part] = join(found[part], compute(load(in + at + part * WIDTH)...));
    for (; at + WIDTH <= count; at += WIDTH)
        found[0] = join(found[0], compute(load(in + at)...));
    if (at < count) {
        ints there = lanes() < (int32_t)(count - at);
        found[0] = join(found[0], compute((there ? load_some(in + at, count - at) : all(neutral))...));
    }
    floats joined = join(join(found[0], found[1]), join(found[2], found[3]));
    return across(joined, join);
}

template <class Compute, class... In> inline float sum(int64_t count, Compute compute, float neutral, const In *...in) {
    auto add = [](auto a, auto b) { return a + b; };
    return fold(count, 0.0f, add, compute, neutral, in...);
}

// -∞ for no numbers; NaN is ignored.
template <class Number> inline float greatest(int64_t count, const Number *in) {
    auto greater = [](auto a, auto b) { return b > a ? b : a; };
    return fold(count, -__builtin_inff(), greater, [](floats x) { return x; }, -__builtin_inff(), in);
}

inline float sum(floats numbers) {
    return across(numbers, [](auto a, auto b) { return a + b; });
}

// A whole vector of a row, and the rest at its end. kept: zeros behind the end.
struct Whole {
    template <class Number> floats load(const Number *from) const { return hasten::load(from); }
    template <class Number> void store(Number *to, floats numbers) const { hasten::store(to, numbers); }
    floats kept(floats numbers) const { return numbers; }
};

struct Rest {
    int32_t count;
    template <class Number> floats load(const Number *from) const { return load_some(from, count); }
    template <class Number> void store(Number *to, floats numbers) const { store_some(to, numbers, count); }
    floats kept(floats numbers) const {
        return lanes() < count ? numbers : floats{};
    }
};

// compute(at, lanes) for each vector of a row.
template <class Compute> inline void along(int64_t width, Compute compute) {
    int64_t whole = width - width % WIDTH;
    for (int64_t at = 0; at < whole; at += WIDTH)
        compute(at, Whole{});
    if (whole < width)
        compute(whole, Rest{(int32_t)(width - whole)});
}

// The sum of rows, in order.
inline void sum_of_rows(const float *from, int64_t rows, int64_t width, float *to) {
    memset(to, 0, width * sizeof *to);
    for (int64_t row = 0; row < rows; row++, from += width)
        along(width, [&](int64_t at, auto lanes) { lanes.store(to + at, lanes.load(to + at) + lanes.load(from + at)); });
}

} // namespace hasten
