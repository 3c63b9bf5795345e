// Elements against two limits, one for each sign, 16 or 64 at a time.
#pragma once

#include <cstring>

#include "keys.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// A number for the positive and one for the negative elements.
template <class N>
struct Both {
    N side[2];
    N& operator[](int s) { return side[s]; }
    const N& operator[](int s) const { return side[s]; }
};

// Which of 16 elements have a key above the limit of their side, and which are negative.
inline std::uint32_t above16(const float* v, const Both<std::int32_t>& limit) {
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

inline std::uint32_t above16(const double* v, const Both<int64_t>& limit) {
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
    for (int j = 0; j < 16; ++j) bits |= std::uint32_t(key(v[j]) > limit[cast_bits<int64_t>(v[j]) < 0]) << j;
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
    for (int j = 0; j < 16; ++j) bits |= std::uint32_t(cast_bits<int64_t>(v[j]) < 0) << j;
#endif
    return bits;
}

template <class T, class B>
inline uint64_t above(const T* v, const Both<B>& limit) {
    uint64_t bits = 0;
    for (int q = 0; q < 4; ++q) bits |= uint64_t(above16(v + 16 * q, limit)) << (16 * q);
    return bits;
}
template <class T>
inline uint64_t negatives(const T* v) {
    uint64_t bits = 0;
    for (int q = 0; q < 4; ++q) bits |= uint64_t(negative16(v + 16 * q)) << (16 * q);
    return bits;
}
// 64 bits to a byte position; what would lie beyond the end is left out.
inline void store(uint8_t* data, size_t bytes, size_t at, uint64_t bits) {
    const size_t n = bytes - at < 8 ? bytes - at : 8;
    uint8_t raw[8];
    for (int b = 0; b < 8; ++b) raw[b] = uint8_t(bits >> (8 * b));
    if (n == 8) std::memcpy(data + at, raw, 8);
    else std::memcpy(data + at, raw, n);
}
inline size_t ones(uint64_t bits) { return size_t(__builtin_popcountll(bits)); }

// All bits set where an element's key is above the limit of its side. In bits, because compilers leave choices between
// numbers to branches, which cannot be predicted here.
template <class B>
inline B goes(B bits, B up, B down) {
    const B negative = -B(bits < 0);
    return -B((bits & B(~(B(1) << (8 * sizeof(B) - 1)))) > (up ^ ((up ^ down) & negative)));
}

// Elements that go, zero elsewhere.
template <class T, class B>
inline void mask(const T* __restrict v, size_t n, B up, B down, T* __restrict kept) {
    for (size_t j = 0; j < n; ++j) {
        const B bits = cast_bits<B>(v[j]);
        kept[j] = cast_bits<T>(B(bits & goes(bits, up, down)));
    }
}

// x minus its side's mean where it goes.
template <class T, class B>
inline void reduce(T* x, size_t n, B up, B down, T high, T low) {
    const B mean = cast_bits<B>(high), other = mean ^ cast_bits<B>(low);
    for (size_t j = 0; j < n; ++j) {
        const B bits = cast_bits<B>(x[j]);
        x[j] = x[j] - cast_bits<T>(B((mean ^ (other & -B(bits < 0))) & goes(bits, up, down)));
    }
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
