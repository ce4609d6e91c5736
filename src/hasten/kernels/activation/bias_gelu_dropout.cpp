// dropout(gelu(x + bias)) and its derivatives; bias_gelu_dropout.py describes them.
#include "gelu.h"

using namespace hasten;

namespace {

constexpr int64_t PARTS = 64; // of the rows, summed separately, so that the order does not depend on the number of threads

// threshold: elements with a random number below it are dropped; 0 drops nothing. scale: factor of the others.
struct Dropout {
    uint64_t seed;
    uint32_t threshold;
    float scale;
};

// splitmix64 (Steele, Lea and Flood, 2014).
inline uint64_t mixed(uint64_t state) {
    state += 0x9E3779B97F4A7C15u;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    return state ^ (state >> 31);
}

// The finalizer of MurmurHash3 (Appleby): each bit of the result depends on all bits.
inline words hashed(words numbers) {
    numbers = (numbers ^ (numbers >> 16)) * 0x85EBCA6Bu;
    numbers = (numbers ^ (numbers >> 13)) * 0xC2B2AE35u;
    return numbers ^ (numbers >> 16);
}

// compute(at, vector, factors) for each vector of a row. The random numbers are a function of seed, row and column alone.
template <class Compute> inline void along_dropping(int64_t row, int64_t width, Dropout dropout, Compute compute) {
    uint64_t key = mixed(mixed(dropout.seed) ^ (uint64_t)row);
    along(width, [&](int64_t at, auto vector) {
        floats factor = all(dropout.scale);
        if (dropout.threshold) {
            words columns = (words)lanes() + (uint32_t)at;
            words random = hashed(hashed(columns ^ (uint32_t)key) + (uint32_t)(key >> 32));
            factor = random >= dropout.threshold ? factor : floats{};
        }
        compute(at, vector, factor);
    });
}

template <class Number, class Form>
void forward(const Number *x, const float *bias, Number *y, int64_t rows, int64_t width, Dropout dropout, Form form) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_A_THREAD)
    for (int64_t row = 0; row < rows; row++)
        along_dropping(row, width, dropout, [&](int64_t at, auto vector, floats factor) {
            floats found = form(vector.load(x + row * width + at) + vector.load(bias + at));
            vector.store(y + row * width + at, found * factor);
        });
}

// sums: PARTS rows of zeros; the first row is the result.
template <class Number, class Form>
void backward(const Number *gradient, const Number *x, const float *bias, Number *to, float *sums, int64_t rows,
              int64_t width, Dropout dropout, Form form) {
    bool many = rows * width > WORTH_A_THREAD;
#pragma omp parallel for schedule(static) if (many)
    for (int64_t part = 0; part < PARTS; part++)
        for (int64_t row = rows * part / PARTS; row < rows * (part + 1) / PARTS; row++)
            along_dropping(row, width, dropout, [&](int64_t at, auto vector, floats factor) {
                int64_t here = row * width + at;
                floats shifted = vector.load(x + here) + vector.load(bias + at);
                floats found = form(vector.load(gradient + here) * factor, shifted);
                vector.store(to + here, found);
                float *sum = sums + part * width + at;
                vector.store(sum, vector.load(sum) + found);
            });
    for (int64_t part = 1; part < PARTS; part++)
        each(width, sums, [](floats a, floats b) { return a + b; }, sums, sums + part * width);
}

} // namespace

#define FORM(number, name, form, compute)                                                                              \
    extern "C" void form##_##name(const number *x, const float *bias, number *y, int64_t rows, int64_t width,          \
                                  int64_t seed, int64_t threshold, float scale) {                                      \
        forward(x, bias, y, rows, width, {(uint64_t)seed, (uint32_t)threshold, scale}, compute);                       \
    }                                                                                                                  \
    extern "C" void form##_backward_##name(const number *gradient, const number *x, const float *bias, number *to,     \
                                           float *sums, int64_t rows, int64_t width, int64_t seed, int64_t threshold,  \
                                           float scale) {                                                              \
        backward(gradient, x, bias, to, sums, rows, width, {(uint64_t)seed, (uint32_t)threshold, scale},               \
                 compute##_backward);                                                                                  \
    }

FORM(float, float32, exact, exact)
FORM(float, float32, tanh, by_tanh)
FORM(bfloat16, bfloat16, exact, exact)
FORM(bfloat16, bfloat16, tanh, by_tanh)
