// A vector of numbers at a time, in float32 whatever they are stored in, over all threads of torch's own pool.
//
// Written in the compiler's vector types (gcc, clang), which become whatever instructions the processor has; and with
// OpenMP, whose library torch has loaded already. A thread is asked for where a thread's work is worth its wake-up.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace hasten {

// A vector is one register: gcc keeps what is wider in memory, and is four times as slow.
#if defined(__AVX512F__)
constexpr int64_t WIDTH = 16;
#elif defined(__AVX__)
constexpr int64_t WIDTH = 8;
#else
constexpr int64_t WIDTH = 4;
#endif
constexpr int64_t UNROLLED = 4 * WIDTH;     // hides the latency of one behind the others
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
#ifdef __AVX512F__ // gcc widens by halves of a register
    return (floats)((words)_mm512_cvtepu16_epi32((__m256i)found) << 16);
#else
    return (floats)(__builtin_convertvector(found, words) << 16);
#endif
}

inline void store(float *to, floats numbers) { memcpy(to, &numbers, sizeof numbers); }

// To the nearest, and to the even one of two that are as near; NaN stays NaN. The processor's own instruction takes what is
// no normal number for 0.
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

// The first of them; the others are zeros.
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

// Of half a log 2 at most. Coefficients: Cephes, expf.
inline floats exp_near_0(floats rest) {
    floats sum = all(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    return sum * (rest * rest) + rest + 1.0f;
}

// e^x within 1.1 units in the last place; what is smaller than a normal number is 0.
inline floats exp(floats x) {
    floats clipped = x < 88.72283f ? x : all(88.72283f);
    clipped = clipped > -87.33654f ? clipped : all(-87.33654f);
    floats shifted = clipped * 1.44269504f + 12582912.0f; // rounds: its last bits are the whole number of halvings
    floats n = shifted - 12582912.0f;
    floats rest = clipped - n * 0.693359375f;
    rest = rest + n * 2.12194440e-4f;
    floats sum = exp_near_0(rest);
    // By two factors, as 2^128 is no float.
    ints whole = (ints)shifted - 0x4b400000;
    ints half = whole >> 1;
    floats found = sum * (floats)((half + 127) << 23) * (floats)((whole - half + 127) << 23);
    found = x < -87.33654f ? floats{} : found;
    found = x > 88.72283f ? all(__builtin_inff()) : found;
    return x == x ? found : x;
}

// e^x as above, in fewer steps, of numbers that are no greater than 88; NaN stays NaN.
inline floats exp_below_88(floats x) {
    floats clipped = x < -87.33654f ? all(-87.33654f) : x;
    floats shifted = clipped * 1.44269504f + 12582912.0f;
    floats n = shifted - 12582912.0f;
    floats rest = clipped - n * 0.693359375f;
    rest = rest + n * 2.12194440e-4f;
    floats found = exp_near_0(rest) * (floats)(((ints)shifted - 0x4b400000 + 127) << 23);
    return x < -87.33654f ? floats{} : found;
}

// out[i] = compute(in[i], ...), by vectors. Inputs and output may be the same memory.
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

typedef uint64_t longs __attribute__((vector_size(4 * WIDTH))); // half as many numbers of 64 bits

// The first of them, all sixteen or fewer.
template <class Number> inline floats load_up_to(const Number *from, int64_t count) {
    return count < WIDTH ? load_some(from, count) : load(from);
}

template <class Number> inline void store_up_to(Number *to, floats numbers, int64_t count) {
    count < WIDTH ? store_some(to, numbers, count) : store(to, numbers);
}

// ---- Rows: a matrix by its rows, each of them by one thread.

// row(i) for each of them.
template <class Row> void each_row(int64_t rows, int64_t width, Row row) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_A_THREAD)
    for (int64_t i = 0; i < rows; i++)
        row(i);
}

// out[i] = compute(in[i], ...), by this thread alone.
template <class Out, class Compute, class... In> void map(int64_t count, Out *out, Compute compute, const In *...in) {
    int64_t at = 0;
    for (; at + WIDTH <= count; at += WIDTH)
        store(out + at, compute(load(in + at)...));
    if (at < count)
        store_some(out + at, compute(load_some(in + at, count - at)...), count - at);
}

// The number of each place.
inline ints lanes() {
    ints found;
    for (int32_t at = 0; at < WIDTH; at++)
        found[at] = at;
    return found;
}

// One of all of them.
template <class Join> inline float across(floats numbers, Join join) {
#ifdef __clang__ // makes the same steps of it, and has no shuffle by that name
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
// neutral: what compute is given behind the last, to make what changes nothing.
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

// -∞ for none; NaN is passed over.
template <class Number> inline float greatest(int64_t count, const Number *in) {
    auto greater = [](auto a, auto b) { return b > a ? b : a; };
    return fold(count, -__builtin_inff(), greater, [](floats x) { return x; }, -__builtin_inff(), in);
}

inline float sum(floats numbers) {
    return across(numbers, [](auto a, auto b) { return a + b; });
}

// A vector of a row, and what is left at its end. kept: zeros in the place of what lies behind the end.
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

// The sum of rows, in their order.
inline void sum_of_rows(const float *from, int64_t rows, int64_t width, float *to) {
    memset(to, 0, width * sizeof *to);
    for (int64_t row = 0; row < rows; row++, from += width)
        along(width, [&](int64_t at, auto lanes) { lanes.store(to + at, lanes.load(to + at) + lanes.load(from + at)); });
}

} // namespace hasten
