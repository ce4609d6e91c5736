// x · Φ(x), and its derivative; beside gelu.py, which says what they are.
#pragma once

#include "vectors.h"

namespace hasten {

constexpr float TWICE_ROOT = 1.5957691216057308f; // 2 √(2/π)
constexpr float CUBE = 0.044715f;
constexpr float FLAT = 10.0f; // from here on, the derivative is 0 or 1

struct Normal {
    floats below, density; // Φ(x) and φ(x)
};

// Φ(x) = ½ + x · P(x²) in the middle, and of what lies outside e^(-x²/2) · Q(1/(1 + 0.3 |x|)): both polynomials are our
// own least-squares fits, with a relative error of 2e-9 and 6e-8.
inline Normal normal(floats x) {
    floats square = x * x;
    floats size = x < 0.0f ? -x : x;
    floats bell = exp_below_88(square * -0.5f);
    floats w = 1.0f / (1.0f + 0.3f * size);
    floats tail = all(0.03842549026f);
    tail = tail * w - 0.16939519346f;
    tail = tail * w + 0.22913242877f;
    tail = tail * w - 0.07704547793f;
    tail = tail * w + 0.14290678501f;
    tail = tail * w + 0.09452591836f;
    tail = tail * w + 0.12196049839f;
    tail = tail * w + 0.11948208511f;
    tail = (tail * w + 7.49559558e-6f) * bell;
    floats middle = all(-7.32638364e-6f);
    middle = middle * square + 1.12665708e-4f;
    middle = middle * square - 1.18561625e-3f;
    middle = middle * square + 9.97307245e-3f;
    middle = middle * square - 6.64903298e-2f;
    middle = middle * square + 3.98942292e-1f;
    middle = middle * x + 0.5f;
    floats outside = x < 0.0f ? tail : 1.0f - tail;
    return {size < 1.1f ? middle : outside, bell * 0.3989422804f};
}

inline floats exact(floats x) { return x * normal(x).below; }

inline floats exact_backward(floats gradient, floats x) {
    Normal found = normal(x);
    floats slope = x * found.density; // 0 · ∞ far out
    return gradient * (found.below + (found.density > 0.0f ? slope : floats{}));
}

// ½ (1 + tanh u) is 1 / (1 + e^(-2u)).
inline floats by_tanh(floats x) { return x / (1.0f + exp(-TWICE_ROOT * x * (1.0f + CUBE * x * x))); }

inline floats by_tanh_backward(floats gradient, floats x) {
    x = x > FLAT ? all(FLAT) : x;
    x = x < -FLAT ? all(-FLAT) : x;
    floats square = x * x;
    floats rest = exp(-TWICE_ROOT * x * (1.0f + CUBE * square));
    floats share = 1.0f / (1.0f + rest); // and 1 - share is rest * share, without cancellation
    floats inner = TWICE_ROOT * (1.0f + 3.0f * CUBE * square);
    return gradient * (share + x * (share * rest) * share * inner);
}

} // namespace hasten
