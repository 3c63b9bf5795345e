// Sums by a fixed tree, so that threads and instruction set never change a bit: blocks of 1024 (zero padded) summed
// by halving in float64, then the same over the block sums (grace_dl/kernels/reference/reduce.py).
#pragma once

#include <cstddef>

#include "parallel.hpp"

namespace grace {
namespace GRACE_ISA {

constexpr std::size_t tree_block = 1024;

// Sum of y[0..width) by halving, width a power of two; y is overwritten.
static inline double halve(double* y, std::size_t width) {
    while (width > 16) {
        width /= 2;
        for (std::size_t i = 0; i < width; ++i) y[i] += y[i + width];
    }
    if (width == 16) {  // without the loops' overhead, which is most of the cost for short sums
        double z[8];
        for (int i = 0; i < 8; ++i) z[i] = y[i] + y[i + 8];
        for (int i = 0; i < 4; ++i) z[i] += z[i + 4];
        return (z[0] + z[2]) + (z[1] + z[3]);
    }
    while (width > 1) {
        width /= 2;
        for (std::size_t i = 0; i < width; ++i) y[i] += y[i + width];
    }
    return y[0];
}

// The same for `n` <= width values f(0..n), padded with zeros.
template <std::size_t width, class F>
static inline double tree(std::size_t n, F f) {
    static_assert(width >= 64, "the first three halvings are taken together");
    constexpr std::size_t part = width / 8;
    alignas(64) double y[width / 2];
    if (n == width) {
        // Three halvings without going through memory: the pairs are the same.
        for (std::size_t i = 0; i < part; ++i) {
            double a = f(i) + f(i + 4 * part), b = f(i + part) + f(i + 5 * part);
            double c = f(i + 2 * part) + f(i + 6 * part), d = f(i + 3 * part) + f(i + 7 * part);
            y[i] = (a + c) + (b + d);
        }
        return halve(y, part);
    }
    constexpr std::size_t half = width / 2;
    std::size_t both = n > half ? n - half : 0, low = n < half ? n : half;
    for (std::size_t i = 0; i < both; ++i) y[i] = f(i) + f(i + half);
    for (std::size_t i = both; i < low; ++i) y[i] = f(i) + 0.0;
    for (std::size_t i = low; i < half; ++i) y[i] = 0.0;
    return halve(y, half);
}

// The sums of the negative and of the other numbers of v, each as `tree` would give it, with one conversion for both.
template <std::size_t width, class T>
static inline void tree_sides(const T* v, std::size_t n, double& low, double& high) {
    if (n != width) {
        low = tree<width>(n, [v](std::size_t i) { return double(v[i] < T(0) ? v[i] : T(0)); });
        high = tree<width>(n, [v](std::size_t i) { return double(v[i] < T(0) ? T(0) : v[i]); });
        return;
    }
    constexpr std::size_t part = width / 8;
    alignas(64) double lows[part], highs[part];
    for (std::size_t i = 0; i < part; ++i) {
        double l[8], h[8];
        for (std::size_t k = 0; k < 8; ++k) {
            double d = double(v[i + k * part]);
            l[k] = d < 0.0 ? d : 0.0;
            h[k] = d - l[k];
        }
        lows[i] = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
        highs[i] = ((h[0] + h[4]) + (h[2] + h[6])) + ((h[1] + h[5]) + (h[3] + h[7]));
    }
    low = halve(lows, part), high = halve(highs, part);
}

// The sum of an array of block sums (overwritten).
static inline double tree_sum(double* sums, std::size_t n) {
    while (n > 1) {
        std::size_t blocks = (n + tree_block - 1) / tree_block;
        for (std::size_t b = 0; b < blocks; ++b) {
            std::size_t m = n - b * tree_block < tree_block ? n - b * tree_block : tree_block;
            const double* y = sums + b * tree_block;
            sums[b] = tree<tree_block>(m, [=](std::size_t i) { return y[i]; });
        }
        n = blocks;
    }
    return n ? sums[0] : 0.0;
}

}  // namespace GRACE_ISA
}  // namespace grace
