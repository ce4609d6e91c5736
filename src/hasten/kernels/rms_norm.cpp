// x / √(mean of x² + eps) · weight, and its derivatives; beside rms_norm.py, which says what they are.
#include "vectors.h"

#include <cmath>

using namespace hasten;

namespace {

constexpr float SMALL = 0x1p-80f; // of what is so large that its squares are no floats

template <class Number> float scaled_inverse(const Number *row, int64_t width, float eps, float scale) {
    floats squares{};
    along(width, [&](int64_t at, auto lanes) {
        floats x = lanes.load(row + at) * scale;
        squares = squares + x * x;
    });
    return scale / std::sqrt(sum(squares) / width + (double)eps * scale * scale);
}

template <class Number> float inverse_of(const Number *row, int64_t width, float eps) {
    float found = scaled_inverse(row, width, eps, 1.0f);
    return found > 0.0f ? found : scaled_inverse(row, width, eps, SMALL); // or it holds NaN
}

template <class Number>
void forward(const Number *x, const float *weight, Number *y, float *inverse, int64_t rows, int64_t width, float eps) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_A_THREAD)
    for (int64_t row = 0; row < rows; row++) {
        const Number *from = x + row * width;
        Number *to = y + row * width;
        float found = inverse_of(from, width, eps);
        along(width, [&](int64_t at, auto lanes) {
            lanes.store(to + at, lanes.load(from + at) * found * lanes.load(weight + at));
        });
        inverse[row] = found;
    }
}

template <class Number>
void row_backward(const Number *gradient, const Number *x, float inverse, const float *weight, Number *to,
                  float *of_weight, int64_t width) {
    floats slopes{};
    along(width, [&](int64_t at, auto lanes) {
        floats given = lanes.load(gradient + at);
        floats unit = lanes.load(x + at) * inverse;
        slopes = slopes + given * lanes.load(weight + at) * unit;
        lanes.store(of_weight + at, lanes.load(of_weight + at) + given * unit);
    });
    float slope = sum(slopes) / width;
    along(width, [&](int64_t at, auto lanes) {
        floats unit = lanes.load(x + at) * inverse;
        lanes.store(to + at, (lanes.load(gradient + at) * lanes.load(weight + at) - unit * slope) * inverse);
    });
}

// parts: room for the gradient of the weight from each part of the rows. They and not the threads decide the order of
// summation.
template <class Number>
void backward(const Number *gradient, const Number *x, const float *inverse, const float *weight, Number *to,
              float *of_weight, float *parts, int64_t count, int64_t rows, int64_t width) {
#pragma omp parallel for schedule(static) if (rows * width > WORTH_A_THREAD)
    for (int64_t part = 0; part < count; part++) {
        float *weights = parts + part * width;
        memset(weights, 0, width * sizeof *weights);
        for (int64_t row = rows * part / count; row < rows * (part + 1) / count; row++) {
            int64_t at = row * width;
            row_backward(gradient + at, x + at, inverse[row], weight, to + at, weights, width);
        }
    }
    sum_of_rows(parts, count, width, of_weight);
}

} // namespace

#define OPERATOR(number, name)                                                                                         \
    extern "C" void forward_##name(const number *x, const float *weight, number *y, float *inverse, int64_t rows,      \
                                   int64_t width, float eps) {                                                         \
        forward(x, weight, y, inverse, rows, width, eps);                                                              \
    }                                                                                                                  \
    extern "C" void backward_##name(const number *gradient, const number *x, const float *inverse,                     \
                                    const float *weight, number *to, float *of_weight, float *parts, int64_t count,    \
                                    int64_t rows, int64_t width) {                                                     \
        backward(gradient, x, inverse, weight, to, of_weight, parts, count, rows, width);                              \
    }

OPERATOR(float, float32)
OPERATOR(bfloat16, bfloat16)
