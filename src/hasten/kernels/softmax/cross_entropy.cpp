// The cross-entropy of each row of scores and its gradient; cross_entropy.py describes them.
#include "vectors.h"
#include <cmath>

using namespace hasten;

namespace {

constexpr int64_t BLOCK = 1024; // numbers that are still in the first cache when they are read again

struct Exponentials {
    float top;  // the maximum of x
    double sum; // of all e^(x - top); NaN where an x is NaN or ∞
};

// In one pass over memory: the sum so far is rescaled where a block has a larger maximum.
// Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
template <class Number> inline Exponentials exponentials(int64_t count, const Number *x) {
    Exponentials found = {-__builtin_inff(), 0};
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t size = count - at < BLOCK ? count - at : BLOCK;
        float top = greatest(size, x + at);
        if (top > found.top) {
            found.sum *= std::exp((double)found.top - top);
            found.top = top;
        }
        float shift = found.top == -__builtin_inff() ? 0.0f : found.top; // where all so far are -∞, each e^x is 0
        found.sum += sum(size, [shift](floats each) { return exp_below_88(each - shift); }, -__builtin_inff(), x + at);
    }
    return found;
}

template <class Number>
void forward(const Number *scores, const int64_t *target, double *losses, double *lse, int64_t rows, int64_t classes,
             int64_t ignored) {
    each_row(rows, classes, [=](int64_t row) {
        losses[row] = lse[row] = 0;
        if (target[row] == ignored)
            return;
        const Number *x = scores + row * classes;
        Exponentials found = exponentials(classes, x);
        lse[row] = found.top + std::log(found.sum); // -∞ for a row of -∞, whose loss is NaN
        losses[row] = lse[row] - load_some(x + target[row], 1)[0];
    });
}

template <class Number>
void backward(const double *gradient, const Number *scores, const int64_t *target, const double *lse, Number *to,
              int64_t rows, int64_t classes, int64_t ignored) {
    each_row(rows, classes, [=](int64_t row) {
        Number *out = to + row * classes;
        if (target[row] == ignored) {
            memset(out, 0, classes * sizeof(Number));
            return;
        }
        const Number *x = scores + row * classes;
        // As two floats: one would lose the last digits of scores far from 0.
        float near = (float)lse[row], rest = (float)(lse[row] - near), factor = (float)gradient[row];
        map(classes, out, [=](floats each) { return exp_below_88((each - near) - rest) * factor; }, x);
        // The target's probability minus 1, without cancellation.
        float exponent = load_some(x + target[row], 1)[0];
        store_some(out + target[row], all((float)(gradient[row] * std::expm1(exponent - lse[row]))), 1);
    });
}

} // namespace

#define OPERATOR(number, name)                                                                                         \
    extern "C" void forward_##name(const number *scores, const int64_t *target, double *losses, double *lse,           \
                                   int64_t rows, int64_t classes, int64_t ignored) {                                   \
        forward(scores, target, losses, lse, rows, classes, ignored);                                                  \
    }                                                                                                                  \
    extern "C" void backward_##name(const number *scores, const double *gradient, const int64_t *target,               \
                                    const double *lse, number *to, int64_t rows, int64_t classes, int64_t ignored) {   \
        backward(gradient, scores, target, lse, to, rows, classes, ignored);                                           \
    }

OPERATOR(float, float32)
OPERATOR(bfloat16, bfloat16)
