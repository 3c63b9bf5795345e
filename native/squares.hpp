// A power of two that keeps the squares of float64 numbers in range.
#pragma once

#include <cmath>

namespace grace {
namespace GRACE_ISA {

static inline double squares_factor(float) { return 1.0; }

static inline double squares_factor(double top) {
    const double big = std::ldexp(1.0, 500), small = std::ldexp(1.0, -500);
    if (!(top > big || (top < small && top > 0))) return 1.0;
    int exponent = 0;
    std::frexp(top, &exponent);
    exponent = exponent > 1000 ? 1000 : exponent < -1000 ? -1000 : exponent;
    return std::ldexp(1.0, -exponent);
}

}  // namespace GRACE_ISA
}  // namespace grace
