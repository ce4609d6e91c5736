// A vector of numbers at a time, in float32 whatever they are stored in, over all threads of torch's own pool.
//
// Written in the compiler's vector types (gcc, clang), which become whatever instructions the processor has; and with
// OpenMP, whose library torch has loaded already. A thread is asked for where a thread's work is worth its wake-up.
#pragma once

#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
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

// To the nearest, and to the even one of two that are as near; NaN stays NaN.
inline void store(bfloat16 *to, floats numbers) {
    words bits = (words)numbers;
    words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    rounded = numbers == numbers ? rounded : (bits >> 16) | 0x40;
    halves found = __builtin_convertvector(rounded, halves);
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

// e^x within 1.1 units in the last place; what is smaller than a normal number is 0. Coefficients: Cephes, expf.
inline floats exp(floats x) {
    floats clipped = x < 88.72283f ? x : all(88.72283f);
    clipped = clipped > -87.33654f ? clipped : all(-87.33654f);
    floats shifted = clipped * 1.44269504f + 12582912.0f; // rounds: its last bits are the whole number of halvings
    floats n = shifted - 12582912.0f;
    floats rest = clipped - n * 0.693359375f;
    rest = rest + n * 2.12194440e-4f;
    floats sum = all(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * (rest * rest) + rest + 1.0f;
    // By two factors, as 2^128 is no float.
    ints whole = (ints)shifted - 0x4b400000;
    ints half = whole >> 1;
    floats found = sum * (floats)((half + 127) << 23) * (floats)((whole - half + 127) << 23);
    found = x < -87.33654f ? floats{} : found;
    found = x > 88.72283f ? all(__builtin_inff()) : found;
    return x == x ? found : x;
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

inline float sum(floats numbers) {
    float held[WIDTH];
    store(held, numbers);
    for (int64_t half = WIDTH / 2; half > 0; half /= 2)
        for (int64_t at = 0; at < half; at++)
            held[at] += held[at + half];
    return held[0];
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
        ints places;
        for (int32_t at = 0; at < WIDTH; at++)
            places[at] = at;
        return places < count ? numbers : floats{};
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
