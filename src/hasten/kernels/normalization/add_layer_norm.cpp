// A residual sum and LayerNorm, forward and backward; add_layer_norm.py describes them.
#include "vectors.h"

#include <cmath>

using namespace hasten;

namespace {

struct Moments {
    float mean, inverse; // 1/√(variance + eps)
};

// total: the sum of the row. The deviations sum to the rounding error of the mean.
template <class Number> Moments moments(const Number *row, int64_t width, float eps, float total) {
    float mean = total / width;
    floats first{}, second{};
    along(width, [&](int64_t at, auto lanes) {
        floats off = lanes.kept(lanes.load(row + at) - mean);
        first = first + off;
        second = second + off * off;
    });
    float left = sum(first) / width;
    double variance = sum(second) / width - left * left;
    variance = variance < 0.0 ? 0.0 : std::isinf(variance) ? NAN : variance; // not a silent 0 where squares overflow
    return {mean + left, (float)(1 / std::sqrt(variance + (double)eps))};
}

// residual: null for LayerNorm alone; then no sum is written.
template <class Number>
void forward(const Number *x, const Number *residual, const float *weight, const float *bias, Number *total,
             Number *normed, float *mean, float *inverse, int64_t rows, int64_t width, float eps) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_A_THREAD)
    for (int64_t row = 0; row < rows; row++) {
        const Number *from = x + row * width;
        floats held{};
        if (residual) {
            Number *to = total + row * width;
            const Number *other = residual + row * width;
            along(width, [&](int64_t at, auto lanes) {
                floats both = lanes.load(from + at) + lanes.load(other + at);
                lanes.store(to + at, both);
                held = held + both; // not rounded like the stored sum; the deviations correct that
            });
            from = to;
        } else
            along(width, [&](int64_t at, auto lanes) { held = held + lanes.load(from + at); });
        Moments found = moments(from, width, eps, sum(held));
        Number *to = normed + row * width;
        along(width, [&](int64_t at, auto lanes) {
            __builtin_prefetch(x + (row + 1) * width + at); // load the next row while this one is computed
            if (residual)
                __builtin_prefetch(residual + (row + 1) * width + at);
            floats unit = (lanes.load(from + at) - found.mean) * found.inverse;
            lanes.store(to + at, unit * lanes.load(weight + at) + lanes.load(bias + at));
        });
        mean[row] = found.mean;
        inverse[row] = found.inverse;
    }
}

// onto: another gradient of x to add, or null.
template <class Number>
void row_backward(const Number *gradient, const Number *onto, const Number *x, float mean, float inverse,
                  const float *weight, Number *to, float *of_weight, float *of_bias, int64_t width) {
    floats first{}, second{};
    along(width, [&](int64_t at, auto lanes) {
        floats given = lanes.load(gradient + at);
        floats unit = lanes.kept((lanes.load(x + at) - mean) * inverse);
        floats weighted = given * lanes.load(weight + at);
        first = first + weighted;
        second = second + weighted * unit;
        lanes.store(of_weight + at, lanes.load(of_weight + at) + given * unit);
        lanes.store(of_bias + at, lanes.load(of_bias + at) + given);
    });
    float level = sum(first) / width, slope = sum(second) / width;
    along(width, [&](int64_t at, auto lanes) {
        floats unit = (lanes.load(x + at) - mean) * inverse;
        floats found = (lanes.load(gradient + at) * lanes.load(weight + at) - level - unit * slope) * inverse;
        lanes.store(to + at, onto ? found + lanes.load(onto + at) : found);
    });
}

// parts: memory for the gradients of weight and bias from each part of the rows. The parts, not the threads, decide the
// order of summation.
template <class Number>
void backward(const Number *gradient, const Number *onto, const Number *x, const float *mean, const float *inverse,
              const float *weight, Number *to, float *of_weight, float *of_bias, float *parts, int64_t count,
              int64_t rows, int64_t width) {
    float *of_biases = parts + count * width;
#pragma omp parallel for schedule(static) if (rows * width > WORTH_A_THREAD)
    for (int64_t part = 0; part < count; part++) {
        float *weights = parts + part * width, *biases = of_biases + part * width;
        memset(weights, 0, width * sizeof *weights);
        memset(biases, 0, width * sizeof *biases);
        for (int64_t row = rows * part / count; row < rows * (part + 1) / count; row++) {
            int64_t at = row * width;
            row_backward(gradient + at, onto ? onto + at : nullptr, x + at, mean[row], inverse[row], weight, to + at,
                         weights, biases, width);
        }
    }
    sum_of_rows(parts, count, width, of_weight);
    sum_of_rows(of_biases, count, width, of_bias);
}

} // namespace

#define OPERATOR(number, name)                                                                                         \
    extern "C" void forward_##name(const number *x, const number *residual, const float *weight, const float *bias,    \
                                   number *total, number *normed, float *mean, float *inverse, int64_t rows,           \
                                   int64_t width, float eps) {                                                         \
        forward(x, residual, weight, bias, total, normed, mean, inverse, rows, width, eps);                            \
    }                                                                                                                  \
    extern "C" void backward_##name(const number *gradient, const number *onto, const number *x, const float *mean,    \
                                    const float *inverse, const float *weight, number *to, float *of_weight,           \
                                    float *of_bias, float *parts, int64_t count, int64_t rows, int64_t width) {        \
        backward(gradient, onto, x, mean, inverse, weight, to, of_weight, of_bias, parts, count, rows, width);         \
    }

OPERATOR(float, float32)
OPERATOR(bfloat16, bfloat16)
