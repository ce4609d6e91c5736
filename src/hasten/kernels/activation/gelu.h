// x · Φ(x) and its derivative; gelu.py describes them.
#pragma once

#include "vectors.h"

#include <cmath>

namespace hasten {

// A function on 0 to END, and 0 beyond, as one polynomial for each sixteenth. The polynomial interpolates the function at
// the zeros of Chebyshev's polynomial of the next degree. It is computed when the library is loaded.
class Pieces {
  public:
    template <class Function> explicit Pieces(Function function) {
        for (int piece = 0; piece < COUNT; piece++) {
            double at[TERMS], slope[TERMS], found[TERMS] = {}; // slope: divided differences; found: of 1, u, u² ...
            for (int term = 0; term < TERMS; term++) {
                at[term] = 0.5 - 0.5 * std::cos((2 * term + 1) * std::acos(-1.0) / (2 * TERMS));
                slope[term] = function((piece + at[term]) * END / COUNT);
            }
            for (int order = 1; order < TERMS; order++)
                for (int term = TERMS - 1; term >= order; term--)
                    slope[term] = (slope[term] - slope[term - 1]) / (at[term] - at[term - order]);
            for (int term = TERMS - 1; term >= 0; term--) { // found = found · (u - at) + slope
                for (int power = TERMS - 1; power > 0; power--)
                    found[power] = found[power - 1] - at[term] * found[power];
                found[0] = slope[term] - at[term] * found[0];
            }
            for (int term = 0; term < TERMS; term++)
                terms[term][piece] = (float)found[term];
        }
    }

    // For numbers that are not negative.
    floats of(floats size) const {
        floats place = size * (COUNT / END);
        ints piece = __builtin_convertvector(place, ints);
        floats u = place - __builtin_convertvector(piece, floats);
        floats sum = looked_up(terms[TERMS - 1], piece);
        for (int term = TERMS - 2; term >= 0; term--)
            sum = sum * u + looked_up(terms[term], piece);
        return size < END ? sum : floats{};
    }

  private:
    static constexpr int COUNT = 16, TERMS = 6;
    static constexpr float END = 6;
    alignas(64) float terms[TERMS][COUNT];
};

// Both variants are x times a factor that rises from 0 to 1. These are the factor at -s, and the variant's derivative
// there. At s they are 1 minus that.
struct Form {
    Pieces share, slope;
};

inline double normal(double s) { return 0.5 * std::erfc(s * std::sqrt(0.5)); }
inline double slope_of_normal(double s) {
    return normal(s) - s * std::exp(-0.5 * s * s) / std::sqrt(2 * std::acos(-1.0));
}

// ½ (1 + tanh u) is 1 / (1 + e^(-2u)).
inline double logistic(double s) {
    return 1 / (1 + std::exp(std::sqrt(8 / std::acos(-1.0)) * (s + 0.044715 * s * s * s)));
}
inline double slope_of_logistic(double s) {
    double inner = std::sqrt(8 / std::acos(-1.0)) * (1 + 3 * 0.044715 * s * s);
    return logistic(s) - s * logistic(s) * (1 - logistic(s)) * inner;
}

static const Form EXACT = {Pieces(normal), Pieces(slope_of_normal)};
static const Form TANH = {Pieces(logistic), Pieces(slope_of_logistic)};

inline floats both_sides(const Pieces &pieces, floats x) {
    floats below = pieces.of(x < 0.0f ? -x : x);
    return x < 0.0f ? below : 1.0f - below;
}

inline floats forward_by(const Form &form, floats x) { return x * both_sides(form.share, x); }
inline floats backward_by(const Form &form, floats gradient, floats x) {
    floats slope = both_sides(form.slope, x);
    return gradient * (x == x ? slope : x);
}

inline floats exact(floats x) { return forward_by(EXACT, x); }
inline floats exact_backward(floats gradient, floats x) { return backward_by(EXACT, gradient, x); }
inline floats by_tanh(floats x) { return forward_by(TANH, x); }
inline floats by_tanh_backward(floats gradient, floats x) { return backward_by(TANH, gradient, x); }

} // namespace hasten
