// The cross-entropy of each row of scores, and its gradient; beside cross_entropy.py, which says what they are.
#include "vectors.h"

using namespace hasten;

namespace {

template <class Number>
void forward(const Number *scores, const int64_t *target, double *losses, double *lse, int64_t rows, int64_t classes,
             int64_t ignored) {
    each_row(rows, classes, [=](int64_t row) {
        losses[row] = lse[row] = 0;
        if (target[row] == ignored)
            return;
        const Number *x = scores + row * classes;
        Exponentials found = exponentials(classes, x);
        // Of -∞ alone it is NaN, as torch has it, and not -∞.
        lse[row] = found.top == -__builtin_inff() ? __builtin_nan("") : found.top + std::log(found.sum);
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
        // In two floats: scores far from 0 would lose their last digits to one.
        float near = (float)lse[row], rest = (float)(lse[row] - near), factor = (float)gradient[row];
        map(classes, out, [=](floats each) { return exp((each - near) - rest) * factor; }, x);
        // The target's share less 1, without cancellation.
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
