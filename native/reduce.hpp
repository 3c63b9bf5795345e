// Sums by a fixed tree, so that threads and instruction set never change a bit: blocks of 1024 (zero padded) summed
// by halving, three times in the precision the values come in, then in float64; then the same over the block sums
// (grace_dl/kernels/reference/reduce.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "parallel.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

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

// Three halvings of the rows i, i + part, ... at once, without going through memory. (Written out: a loop over the
// rows would be vectorised instead of the one over i.)
template <std::size_t part, class F>
static inline auto eight(F f, std::size_t i) {
    return ((f(i) + f(i + 4 * part)) + (f(i + 2 * part) + f(i + 6 * part))) +
           ((f(i + part) + f(i + 5 * part)) + (f(i + 3 * part) + f(i + 7 * part)));
}

// The sum of `n` <= width values f(0..n), padded with zeros.
template <std::size_t width, class F>
static inline double tree(std::size_t n, F f) {
    using T = std::decay_t<decltype(f(0))>;
    static_assert(width >= 64, "the first three halvings are taken together");
    constexpr std::size_t part = width / 8;
    alignas(64) double y[part];
    if (n == width) {
        for (std::size_t i = 0; i < part; ++i) y[i] = double(eight<part>(f, i));
    } else {
        alignas(64) T padded[width];
        for (std::size_t i = 0; i < n; ++i) padded[i] = f(i);
        for (std::size_t i = n; i < width; ++i) padded[i] = T(0);
        for (std::size_t i = 0; i < part; ++i) y[i] = double(eight<part>([&padded](std::size_t j) { return padded[j]; }, i));
    }
    return halve(y, part);
}

struct SumsBySign {
    double low, high, below;  // sums of the negative and of the other numbers, how many are negative
};

// Sums of eight rows of v times `factor`, of its negative and of its other numbers, and how many are negative.
template <std::size_t part, class T>
static inline std::int32_t eight_by_sign(const T* v, T factor, double* lows, double* highs) {
    auto low = [v, factor](std::size_t i) { return v[i] < T(0) ? v[i] * factor : T(0); };
    auto high = [v, factor](std::size_t i) { return v[i] < T(0) ? T(0) : v[i] * factor; };
    auto negative = [v](std::size_t i) { return std::int32_t(v[i] < T(0)); };
    std::int32_t below = 0;
    for (std::size_t i = 0; i < part; ++i) {
        lows[i] = double(eight<part>(low, i));
        highs[i] = double(eight<part>(high, i));
        below += eight<part>(negative, i);
    }
    return below;
}

#ifdef __AVX2__
// The same in registers, which compilers do not find.
template <std::size_t part>
static inline std::int32_t eight_by_sign(const float* v, float factor, double* lows, double* highs) {
    const __m256 zero = _mm256_setzero_ps(), scale = _mm256_set1_ps(factor);
    __m256i count = _mm256_setzero_si256();
    for (std::size_t i = 0; i < part; i += 8) {
        __m256 low[8], high[8];
        for (std::size_t k = 0; k < 8; ++k) {
            const __m256 value = _mm256_loadu_ps(v + i + k * part);
            const __m256 below = _mm256_min_ps(value, zero);  // +0 for -0: its sign tells what is negative
            count = _mm256_add_epi32(count, _mm256_srli_epi32(_mm256_castps_si256(below), 31));
            low[k] = _mm256_mul_ps(below, scale);
            high[k] = _mm256_mul_ps(_mm256_max_ps(zero, value), scale);
        }
        auto sum = [](const __m256* y) {
            return _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(y[0], y[4]), _mm256_add_ps(y[2], y[6])),
                                 _mm256_add_ps(_mm256_add_ps(y[1], y[5]), _mm256_add_ps(y[3], y[7])));
        };
        auto put = [](double* to, __m256 y) {
            _mm256_storeu_pd(to, _mm256_cvtps_pd(_mm256_castps256_ps128(y)));
            _mm256_storeu_pd(to + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(y, 1)));
        };
        put(lows + i, sum(low));
        put(highs + i, sum(high));
    }
    std::int32_t counts[8], below = 0;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(counts), count);
    for (std::int32_t c : counts) below += c;
    return below;
}
#endif

// The sums of v times `factor` by sign, each as `tree` would give it.
template <std::size_t width, class T>
static inline SumsBySign tree_by_sign(const T* v, std::size_t n, T factor) {
    constexpr std::size_t part = width / 8;
    alignas(64) T padded[width];
    if (n < width) {
        for (std::size_t i = 0; i < n; ++i) padded[i] = v[i];
        for (std::size_t i = n; i < width; ++i) padded[i] = T(0);
        v = padded;
    }
    alignas(64) double lows[part], highs[part];
    const std::int32_t below = eight_by_sign<part>(v, factor, lows, highs);
    return {halve(lows, part), halve(highs, part), double(below)};
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
