// Keys: magnitudes as integers, which sort as the magnitudes do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "float_bits.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace grace {
namespace GRACE_ISA {
namespace {

constexpr std::uint32_t lanes = 16;  // elements compared at a time

inline std::int32_t key(float v) { return cast_bits<std::int32_t>(v) & 0x7fffffff; }
inline std::int64_t key(double v) { return cast_bits<std::int64_t>(v) & 0x7fffffffffffffff; }

// Which of 16 elements have a key above `floor`.
inline std::uint32_t above16(const float* v, std::int32_t floor) {
#if defined(__AVX2__)
    const __m256i limit = _mm256_set1_epi32(floor), mask = _mm256_set1_epi32(0x7fffffff);
    __m256i a = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v)), mask);
    __m256i b = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + 8)), mask);
    a = _mm256_cmpgt_epi32(a, limit), b = _mm256_cmpgt_epi32(b, limit);
    return std::uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(a))) |
           std::uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(b))) << 8;
#elif defined(__SSE2__)
    const __m128i limit = _mm_set1_epi32(floor), mask = _mm_set1_epi32(0x7fffffff);
    std::uint32_t bits = 0;
    for (int q = 0; q < 4; ++q) {
        __m128i a = _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v + 4 * q)), mask);
        bits |= std::uint32_t(_mm_movemask_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(a, limit)))) << (4 * q);
    }
    return bits;
#else
    std::uint32_t bits = 0;
    for (int j = 0; j < 16; ++j) bits |= std::uint32_t(key(v[j]) > floor) << j;
    return bits;
#endif
}

inline std::uint32_t above16(const double* v, std::int64_t floor) {
#if defined(__AVX2__)
    const __m256i limit = _mm256_set1_epi64x(floor), mask = _mm256_set1_epi64x(0x7fffffffffffffff);
    std::uint32_t bits = 0;
    for (int q = 0; q < 4; ++q) {
        __m256i a = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + 4 * q)), mask);
        bits |= std::uint32_t(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(a, limit)))) << (4 * q);
    }
    return bits;
#else
    std::uint32_t bits = 0;
    for (int j = 0; j < 16; ++j) bits |= std::uint32_t(key(v[j]) > floor) << j;
    return bits;
#endif
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
