// Comparing magnitudes with two limits, one for positive and one for negative elements, 16 or 64 at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "magnitude_keys.hpp"
#include "types.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// A value for the positive elements and one for the negative: [0] and [1].
template <class N>
struct PerSign {
    N values[2];
    N& operator[](int negative) { return values[negative]; }
    const N& operator[](int negative) const { return values[negative]; }
};

// Which of 16 elements have a key above the limit of their sign.
inline std::uint32_t above16(const float* v, const PerSign<std::int32_t>& limit) {
#if defined(__AVX2__)
    const __m256 up = _mm256_castsi256_ps(_mm256_set1_epi32(limit[0])), down = _mm256_castsi256_ps(_mm256_set1_epi32(limit[1]));
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    std::uint32_t bits = 0;
    for (int q = 0; q < 2; ++q) {
        const __m256 a = _mm256_loadu_ps(v + 8 * q);
        const __m256i least = _mm256_castps_si256(_mm256_blendv_ps(up, down, a));
        const __m256i more = _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_castps_si256(a), mask), least);
        bits |= std::uint32_t(_mm256_movemask_ps(_mm256_castsi256_ps(more))) << (8 * q);
    }
    return bits;
#elif defined(__SSE2__)
    const __m128i up = _mm_set1_epi32(limit[0]), change = _mm_set1_epi32(limit[0] ^ limit[1]), mask = _mm_set1_epi32(0x7fffffff);
    std::uint32_t bits = 0;
    for (int q = 0; q < 4; ++q) {
        const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(v + 4 * q));
        const __m128i least = _mm_xor_si128(up, _mm_and_si128(change, _mm_srai_epi32(a, 31)));
        const __m128i more = _mm_cmpgt_epi32(_mm_and_si128(a, mask), least);
        bits |= std::uint32_t(_mm_movemask_ps(_mm_castsi128_ps(more))) << (4 * q);
    }
    return bits;
#else
    std::uint32_t bits = 0;
    for (int j = 0; j < 16; ++j) bits |= std::uint32_t(key(v[j]) > limit[cast_bits<std::int32_t>(v[j]) < 0]) << j;
    return bits;
#endif
}

inline std::uint32_t above16(const double* v, const PerSign<std::int64_t>& limit) {
    std::uint32_t bits = 0;
#if defined(__AVX2__)
    const __m256d up = _mm256_castsi256_pd(_mm256_set1_epi64x(limit[0])), down = _mm256_castsi256_pd(_mm256_set1_epi64x(limit[1]));
    const __m256i mask = _mm256_set1_epi64x(0x7fffffffffffffff);
    for (int q = 0; q < 4; ++q) {
        const __m256d a = _mm256_loadu_pd(v + 4 * q);
        const __m256i least = _mm256_castpd_si256(_mm256_blendv_pd(up, down, a));
        const __m256i more = _mm256_cmpgt_epi64(_mm256_and_si256(_mm256_castpd_si256(a), mask), least);
        bits |= std::uint32_t(_mm256_movemask_pd(_mm256_castsi256_pd(more))) << (4 * q);
    }
#else
    for (int j = 0; j < 16; ++j) bits |= std::uint32_t(key(v[j]) > limit[cast_bits<std::int64_t>(v[j]) < 0]) << j;
#endif
    return bits;
}

inline std::uint32_t negative16(const float* v) {
    std::uint32_t bits = 0;
#if defined(__SSE2__)
    for (int q = 0; q < 4; ++q) bits |= std::uint32_t(_mm_movemask_ps(_mm_loadu_ps(v + 4 * q))) << (4 * q);
#else
    for (int j = 0; j < 16; ++j) bits |= std::uint32_t(cast_bits<std::int32_t>(v[j]) < 0) << j;
#endif
    return bits;
}
inline std::uint32_t negative16(const double* v) {
    std::uint32_t bits = 0;
#if defined(__SSE2__)
    for (int q = 0; q < 8; ++q) bits |= std::uint32_t(_mm_movemask_pd(_mm_loadu_pd(v + 2 * q))) << (2 * q);
#else
    for (int j = 0; j < 16; ++j) bits |= std::uint32_t(cast_bits<std::int64_t>(v[j]) < 0) << j;
#endif
    return bits;
}

template <class T, class B>
inline u64 above(const T* v, const PerSign<B>& limit) {
    u64 bits = 0;
    for (int q = 0; q < 4; ++q) bits |= u64(above16(v + 16 * q, limit)) << (16 * q);
    return bits;
}
template <class T>
inline u64 negatives(const T* v) {
    u64 bits = 0;
    for (int q = 0; q < 4; ++q) bits |= u64(negative16(v + 16 * q)) << (16 * q);
    return bits;
}

// All bits set where an element's key is above the limit of its sign. In bits, because compilers leave choices between
// numbers to branches, which cannot be predicted here.
template <class B>
inline B above_limit(B bits, B up, B down) {
    const B negative = -B(bits < 0);
    return -B((bits & B(~(B(1) << (8 * sizeof(B) - 1)))) > (up ^ ((up ^ down) & negative)));
}

// Elements above their limit, zero elsewhere.
template <class T, class B>
inline void keep_above(const T* __restrict v, size_t n, B up, B down, T* __restrict selected) {
    for (size_t j = 0; j < n; ++j) {
        const B bits = cast_bits<B>(v[j]);
        selected[j] = cast_bits<T>(B(bits & above_limit(bits, up, down)));
    }
}

// x minus the mean of its sign, where x is above its limit.
template <class T, class B>
inline void subtract_means(T* x, size_t n, B up, B down, T high, T low) {
    const B mean = cast_bits<B>(high), other = mean ^ cast_bits<B>(low);
    for (size_t j = 0; j < n; ++j) {
        const B bits = cast_bits<B>(x[j]);
        x[j] = x[j] - cast_bits<T>(B((mean ^ (other & -B(bits < 0))) & above_limit(bits, up, down)));
    }
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
