// The functions of gelu.h for all numbers of a tensor.
#include "gelu.h"

using namespace hasten;

#define OPERATOR(number, name)                                                                                         \
    extern "C" void exact_##name(const number *x, number *y, int64_t count) { each(count, y, exact, x); }              \
    extern "C" void tanh_##name(const number *x, number *y, int64_t count) { each(count, y, by_tanh, x); }             \
    extern "C" void exact_backward_##name(const number *gradient, const number *x, number *to, int64_t count) {        \
        each(count, to, exact_backward, gradient, x);                                                                  \
    }                                                                                                                  \
    extern "C" void tanh_backward_##name(const number *gradient, const number *x, number *to, int64_t count) {         \
        each(count, to, by_tanh_backward, gradient, x);                                                                \
    }

OPERATOR(float, float32)
OPERATOR(bfloat16, bfloat16)
