// The cosine transform of up to 64 numbers, by Lee's algorithm in double precision, on a vector of rows or columns at once.
//
// Every operation is rounded as in the reference (grace_dl/kernels/reference/dct.py). Of 64 numbers, two halvings are taken in
// one pass and the last four in registers, since loads and stores take longer than the arithmetic.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace grace {
namespace GRACE_ISA {
namespace {

using std::size_t;

#if defined(__AVX2__)
constexpr size_t lanes = 4;
#else
constexpr size_t lanes = 2;
#endif
constexpr size_t side = 64;

typedef double Pack __attribute__((vector_size(lanes * sizeof(double))));

inline Pack pack_at(const double* from) {
    Pack pack;
    std::memcpy(&pack, from, sizeof pack);
    return pack;
}
inline void put_pack(double* to, Pack pack) { std::memcpy(to, &pack, sizeof pack); }

inline void transpose(Pack* p) {
#if defined(__AVX2__)
    const __m256d a = _mm256_unpacklo_pd(p[0], p[1]), b = _mm256_unpackhi_pd(p[0], p[1]);
    const __m256d c = _mm256_unpacklo_pd(p[2], p[3]), d = _mm256_unpackhi_pd(p[2], p[3]);
    p[0] = _mm256_permute2f128_pd(a, c, 0x20), p[1] = _mm256_permute2f128_pd(b, d, 0x20);
    p[2] = _mm256_permute2f128_pd(a, c, 0x31), p[3] = _mm256_permute2f128_pd(b, d, 0x31);
#else
    for (size_t i = 0; i < lanes; ++i)
        for (size_t j = 0; j < i; ++j) {
            const double one = p[i][j];
            p[i][j] = p[j][i], p[j][i] = one;
        }
#endif
}

// 1 / (2 cos((2 i + 1) pi / 2 n)), for i < n / 2.
template <size_t n>
inline const double* factors_of(const double* factors) {
    return factors + n / 2 - 1;
}

// The sums of v[j] cos((2 j + 1) k pi / 2 N) over j; `t` is overwritten.
template <size_t N>
void cosines(Pack* __restrict v, Pack* __restrict t, const double* factors) {
    if constexpr (N > 1) {
        constexpr size_t h = N / 2;
        const double* f = factors_of<N>(factors);
        for (size_t i = 0; i < h; ++i) {
            const Pack a = v[i], b = v[N - 1 - i];
            t[i] = a + b, t[h + i] = (a - b) * f[i];
        }
        cosines<h>(t, v, factors);
        cosines<h>(t + h, v + h, factors);
        for (size_t i = 0; i < h; ++i) {
            v[2 * i] = t[i];
            v[2 * i + 1] = i + 1 < h ? t[h + i] + t[h + i + 1] : t[h + i];
        }
    }
}

// The sums of v[k] cos((2 j + 1) k pi / 2 N) over k; `t` is overwritten.
template <size_t N>
void elements(Pack* __restrict v, Pack* __restrict t, const double* factors) {
    if constexpr (N > 1) {
        constexpr size_t h = N / 2;
        const double* f = factors_of<N>(factors);
        for (size_t i = 0; i < h; ++i) {
            t[i] = v[2 * i];
            t[h + i] = i ? v[2 * i + 1] + v[2 * i - 1] : v[1];
        }
        elements<h>(t, v, factors);
        elements<h>(t + h, v + h, factors);
        for (size_t i = 0; i < h; ++i) {
            const Pack even = t[i], odd = t[h + i] * f[i];
            v[i] = even + odd, v[N - 1 - i] = even - odd;
        }
    }
}

// The same of 4, 8 and 16 in registers.
[[gnu::always_inline]] inline void cosines4(Pack& a, Pack& b, Pack& c, Pack& d, const double* factors) {
    const double half = *factors_of<2>(factors), *f = factors_of<4>(factors);
    const Pack e = a + d, g = b + c, p = (a - d) * f[0], q = (b - c) * f[1], last = (p - q) * half;
    a = e + g, b = p + q + last, c = (e - g) * half, d = last;
}

[[gnu::always_inline]] inline void elements4(Pack& a, Pack& b, Pack& c, Pack& d, const double* factors) {
    const double half = *factors_of<2>(factors), *f = factors_of<4>(factors);
    const Pack even = c * half, odd = (d + b) * half;
    const Pack p = a + even, q = a - even, r = (b + odd) * f[0], s = (b - odd) * f[1];
    a = p + r, b = q + s, c = q - s, d = p - r;
}

[[gnu::always_inline]] inline void cosines8(Pack* v, const double* factors) {
    const double* f = factors_of<8>(factors);
    Pack a = v[0] + v[7], b = v[1] + v[6], c = v[2] + v[5], d = v[3] + v[4];
    Pack p = (v[0] - v[7]) * f[0], q = (v[1] - v[6]) * f[1], r = (v[2] - v[5]) * f[2], s = (v[3] - v[4]) * f[3];
    cosines4(a, b, c, d, factors);
    cosines4(p, q, r, s, factors);
    v[0] = a, v[2] = b, v[4] = c, v[6] = d;
    v[1] = p + q, v[3] = q + r, v[5] = r + s, v[7] = s;
}

[[gnu::always_inline]] inline void elements8(Pack* v, const double* factors) {
    const double* f = factors_of<8>(factors);
    Pack a = v[0], b = v[2], c = v[4], d = v[6];
    Pack p = v[1], q = v[3] + v[1], r = v[5] + v[3], s = v[7] + v[5];
    elements4(a, b, c, d, factors);
    elements4(p, q, r, s, factors);
    p *= f[0], q *= f[1], r *= f[2], s *= f[3];
    v[0] = a + p, v[1] = b + q, v[2] = c + r, v[3] = d + s;
    v[7] = a - p, v[6] = b - q, v[5] = c - r, v[4] = d - s;
}

inline void cosines16(Pack* v, const double* factors) {
    const double* f = factors_of<16>(factors);
    Pack even[8], odd[8];
    for (size_t i = 0; i < 8; ++i) even[i] = v[i] + v[15 - i], odd[i] = (v[i] - v[15 - i]) * f[i];
    cosines8(even, factors);
    cosines8(odd, factors);
    for (size_t i = 0; i < 8; ++i) v[2 * i] = even[i], v[2 * i + 1] = i < 7 ? odd[i] + odd[i + 1] : odd[i];
}

inline void elements16(Pack* v, const double* factors) {
    const double* f = factors_of<16>(factors);
    Pack even[8], odd[8];
    for (size_t i = 0; i < 8; ++i) even[i] = v[2 * i], odd[i] = i ? v[2 * i + 1] + v[2 * i - 1] : v[1];
    elements8(even, factors);
    elements8(odd, factors);
    for (size_t i = 0; i < 8; ++i) {
        const Pack one = odd[i] * f[i];
        v[i] = even[i] + one, v[15 - i] = even[i] - one;
    }
}

// Coefficients of 64, times `other`, and the first times `first`.
inline void cosines64(Pack* __restrict v, Pack* __restrict t, const double* factors, double first, double other) {
    const double *f = factors_of<64>(factors), *g = factors_of<32>(factors);
    for (size_t i = 0; i < 16; ++i) {
        const Pack a = v[i], b = v[31 - i], c = v[32 + i], d = v[63 - i];
        const Pack p = a + d, q = b + c, r = (a - d) * f[i], s = (b - c) * f[31 - i];
        t[i] = p + q, t[16 + i] = (p - q) * g[i];
        t[32 + i] = r + s, t[48 + i] = (r - s) * g[i];
    }
    for (size_t i = 0; i < 64; i += 16) cosines16(t + i, factors);
    for (size_t i = 0; i < 15; ++i) {
        const Pack odd = t[48 + i] + t[49 + i];
        v[4 * i] = t[i] * (i ? other : first);
        v[4 * i + 1] = (t[32 + i] + odd) * other;
        v[4 * i + 2] = (t[16 + i] + t[17 + i]) * other;
        v[4 * i + 3] = (odd + t[33 + i]) * other;
    }
    v[60] = t[15] * other, v[61] = (t[47] + t[63]) * other, v[62] = t[31] * other, v[63] = t[63] * other;
}

// Elements from 64 coefficients, which are first scaled so.
inline void elements64(Pack* __restrict v, Pack* __restrict t, const double* factors, double first, double other) {
    const double *f = factors_of<64>(factors), *g = factors_of<32>(factors);
    Pack after2 = v[2] * other, after3 = v[3] * other, before = after3 + v[1] * other;
    t[0] = v[0] * first, t[16] = after2, t[32] = v[1] * other, t[48] = before;
    for (size_t i = 1; i < 16; ++i) {
        const Pack a = v[4 * i] * other, b = v[4 * i + 1] * other, c = v[4 * i + 2] * other, d = v[4 * i + 3] * other;
        const Pack odd = d + b;
        t[i] = a, t[16 + i] = c + after2, t[32 + i] = b + after3, t[48 + i] = odd + before;
        after2 = c, after3 = d, before = odd;
    }
    for (size_t i = 0; i < 64; i += 16) elements16(t + i, factors);
    for (size_t i = 0; i < 16; ++i) {
        const Pack p = t[16 + i] * g[i], q = t[48 + i] * g[i];
        const Pack a = t[i] + p, b = t[i] - p, c = (t[32 + i] + q) * f[i], d = (t[32 + i] - q) * f[31 - i];
        v[i] = a + c, v[63 - i] = a - c;
        v[31 - i] = b + d, v[32 + i] = b - d;
    }
}

// The orthonormal transform of n numbers, or its inverse; `t` is overwritten.
template <bool forward>
void transform(Pack* v, Pack* t, size_t n, const double* factors) {
    if (n == side) {
        const double first = std::sqrt(1.0 / side), other = std::sqrt(2.0 / side);
        return forward ? cosines64(v, t, factors, first, other) : elements64(v, t, factors, first, other);
    }
    const double first = std::sqrt(1.0 / double(n)), other = std::sqrt(2.0 / double(n));
    const auto scale = [&] {
        for (size_t k = 0; k < n; ++k) v[k] *= k ? other : first;
    };
    if (!forward) scale();
    switch (n) {
#define GRACE_SIZE(N) \
    case N: forward ? cosines<N>(v, t, factors) : elements<N>(v, t, factors); break;
        GRACE_SIZE(2) GRACE_SIZE(4) GRACE_SIZE(8) GRACE_SIZE(16) GRACE_SIZE(32)
#undef GRACE_SIZE
        default: break;
    }
    if (forward) scale();
}

// The transform of the columns of y, which has rows of 64.
template <bool forward>
void along_columns(double* y, size_t rows, const double* factors) {
    Pack v[side], t[side];
    for (size_t j = 0; j < side; j += lanes) {
        for (size_t r = 0; r < rows; ++r) v[r] = pack_at(y + r * side + j);
        transform<forward>(v, t, rows, factors);
        for (size_t r = 0; r < rows; ++r) put_pack(y + r * side + j, v[r]);
    }
}

// The transform of some rows.
template <bool forward>
void along_rows(double* y, const unsigned char* list, size_t count, const double* factors) {
    Pack v[side], t[side];
    double spare[side] = {};
    for (size_t i = 0; i < count; i += lanes) {
        double* rows[lanes];
        for (size_t l = 0; l < lanes; ++l) rows[l] = i + l < count ? y + list[i + l] * side : spare;
        for (size_t j = 0; j < side; j += lanes) {
            for (size_t l = 0; l < lanes; ++l) v[j + l] = pack_at(rows[l] + j);
            transpose(v + j);
        }
        transform<forward>(v, t, side, factors);
        for (size_t j = 0; j < side; j += lanes) {
            transpose(v + j);
            for (size_t l = 0; l < lanes; ++l) put_pack(rows[l] + j, v[j + l]);
        }
    }
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
