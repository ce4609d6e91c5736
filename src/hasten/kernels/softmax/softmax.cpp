// e^x / Σ e^x of each row and its derivative; softmax.py describes them.
#include "vectors.h"
#include <vector>

using namespace hasten;

namespace {

// Memory for a row in float32: the output's, or this thread's own.
inline float *room(float *out, int64_t) { return out; }

inline float *room(bfloat16 *, int64_t width) {
    thread_local std::vector<float> kept;
    kept.resize(width);
    return kept.data();
}

template <class Number> void forward(const Number *in, Number *out, int64_t rows, int64_t width) {
    each_row(rows, width, [=](int64_t row) {
        const Number *x = in + row * width;
        float *powers = room(out + row * width, width);
        float top = greatest(width, x); // an infinite maximum makes a row of NaN: ∞ - ∞
        map(width, powers, [=](floats each) { return exp_below_88(each - top); }, x);
        float share = 1.0f / sum(width, [](floats each) { return each; }, 0.0f, powers);
        map(width, out + row * width, [=](floats each) { return each * share; }, powers);
    });
}

template <class Number>
void backward(const Number *gradient, const Number *out, Number *to, int64_t rows, int64_t width) {
    each_row(rows, width, [=](int64_t row) {
        const Number *g = gradient + row * width, *y = out + row * width;
        float mean = sum(width, [](floats g, floats y) { return g * y; }, 0.0f, g, y);
        map(width, to + row * width, [=](floats g, floats y) { return (g - mean) * y; }, g, y);
    });
}

} // namespace

#define OPERATOR(number, name)                                                                                         \
    extern "C" void forward_##name(const number *x, number *y, int64_t rows, int64_t width) {                          \
        forward(x, y, rows, width);                                                                                    \
    }                                                                                                                  \
    extern "C" void backward_##name(const number *gradient, const number *y, number *to, int64_t rows,                 \
                                    int64_t width) {                                                                   \
        backward(gradient, y, to, rows, width);                                                                        \
    }

OPERATOR(float, float32)
OPERATOR(bfloat16, bfloat16)
