// Casts to float16 and bfloat16, and e4m3 with a scale per block. Rounding is to nearest even throughout.
#include "methods/cast.hpp"

#include <cfloat>
#include <cmath>

#include "combine.hpp"
#include "encoder_input.hpp"
#include "float16.hpp"
#include "parallel.hpp"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace grace {
namespace GRACE_ISA {
namespace {

// How a value is brought into range and back; `limit` is the largest finite number there.
template <class T>
struct Range {
    T scale, unscale, limit;
};

// Finite numbers beyond the limit become the limit; infinities and NaN stay.
template <class T>
inline float limited(T v, Range<T> range) {
    constexpr T infinity = T(__builtin_huge_val());
    const T y = v * range.scale, a = magnitude(y);
    const T bound = y < T(0) ? -range.limit : range.limit;
    return float(((a > range.limit) & (a < infinity)) ? bound : y);
}

// A 16-bit format by its conversions.
template <u16 (*narrow)(float), float (*widen)(u16)>
struct Format {
    // The codes of v and, with error feedback, the residual, all in registers.
    template <bool ef, class T>
    static void encode(const T* __restrict v, std::size_t n, Range<T> range, u16* __restrict out, T* __restrict x) {
        for (std::size_t i = 0; i < n; ++i) {
            const u16 h = narrow(limited(v[i], range));
            out[i] = h;
            if (ef) x[i] = v[i] - T(widen(h)) * range.unscale;
        }
    }
    template <class T>
    static void add(const u16* __restrict h, std::size_t n, T* __restrict out) {
        for (std::size_t i = 0; i < n; ++i) out[i] += T(widen(h[i]));
    }
};

using BFloat16 = Format<to_bfloat16, from_bfloat16>;

struct Float16 : Format<to_float16, from_float16> {
#ifdef __F16C__  // the processor's own conversions
    using Format::add;
    using Format::encode;
    template <bool ef>
    static void encode(const float* v, std::size_t n, Range<float> range, u16* out, float* x) {
        const __m256 scale = _mm256_set1_ps(range.scale), unscale = _mm256_set1_ps(range.unscale);
        const __m256 limit = _mm256_set1_ps(range.limit), infinity = _mm256_set1_ps(__builtin_huge_valf());
        const __m256 sign = _mm256_set1_ps(-0.0f);
        const std::size_t whole = n & ~std::size_t(7);
        for (std::size_t i = 0; i < whole; i += 8) {
            const __m256 value = _mm256_loadu_ps(v + i), y = _mm256_mul_ps(value, scale), a = _mm256_andnot_ps(sign, y);
            const __m256 beyond = _mm256_and_ps(_mm256_cmp_ps(a, limit, _CMP_GT_OQ), _mm256_cmp_ps(a, infinity, _CMP_LT_OQ));
            const __m256 bound = _mm256_or_ps(limit, _mm256_and_ps(sign, y));
            const __m128i h = _mm256_cvtps_ph(_mm256_blendv_ps(y, bound, beyond), 0);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), h);
            if (ef) _mm256_storeu_ps(x + i, _mm256_sub_ps(value, _mm256_mul_ps(_mm256_cvtph_ps(h), unscale)));
        }
        encode<ef, float>(v + whole, n - whole, range, out + whole, x + whole);
    }
    static void add(const u16* h, std::size_t n, float* out) {
        const std::size_t whole = n & ~std::size_t(7);
        for (std::size_t i = 0; i < whole; i += 8) {
            const __m256 value = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(h + i)));
            _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(out + i), value));
        }
        add<float>(h + whole, n - whole, out + whole);
    }
#endif
};

template <class T, class To>
void cast_encode_(const EncoderInput<T>& s, Range<T> range, u16* out, int threads) {
    parallel(s.n, grain, threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[tile];
        for (std::size_t i = begin; i < end; i += tile) {
            std::size_t m = end - i < tile ? end - i : tile;
            const T* v = load(s, i, m, buffer);
            if (s.ef) To::template encode<true>(v, m, range, out + i, s.x + i);
            else To::template encode<false>(v, m, range, out + i, s.x + i);
        }
    });
}

template <class T, class To>
void cast_add_(T* out, const u16* payload, std::size_t n, int threads) {
    parallel(n, grain, threads, [=](std::size_t begin, std::size_t end) { To::add(payload + begin, end - begin, out + begin); });
}

constexpr float e4m3_max = 448.0f;

inline u8 to_e4m3(float f) {  // |f| <= 448
    u32 u = cast_bits<u32>(f), sign = (u >> 24) & 0x80u;
    u &= 0x7fffffffu;
    // Below 2^-6 the spacing is 2^-9, which is that of numbers next to 2^14.
    u32 small = cast_bits<u32>(cast_bits<float>(u) + 16384.0f) - 0x46800000u;
    u32 normal = (u + 0x7ffffu + ((u >> 20) & 1u) - 0x3c000000u) >> 20;
    return u8(sign | ((u < 0x3c800000u ? small : normal) & 0x7fu));
}

inline float from_e4m3(u8 c) {
    u32 u = u32(c & 0x7fu) << 20, sign = u32(c & 0x80u) << 24;
    return cast_bits<float>(cast_bits<u32>(cast_bits<float>(u) * 0x1p120f) | sign);
}

// The largest scale a block may have: 448 times it is still finite.
template <class T>
T fp8_limit() {
    const T limit = (sizeof(T) == 4 ? T(FLT_MAX) : T(DBL_MAX)) / T(e4m3_max);
    return limit * T(e4m3_max) < T(__builtin_huge_val()) ? limit : std::nextafter(limit, T(0));
}

// A whole number of blocks, about `grain` elements.
inline std::size_t fp8_piece(std::size_t block) { return block * (grain / block ? grain / block : 1); }

template <class T>
void fp8_encode_(const EncoderInput<T>& s, std::size_t block, u8* codes, T* scales, int threads) {
    const T limit = fp8_limit<T>();
    parallel(s.n, fp8_piece(block), threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[tile];
        for (std::size_t i = begin; i < end; i += block) {
            std::size_t m = end - i < block ? end - i : block;
            const T* __restrict v = load(s, i, m, buffer);
            T scale = max_abs(v, m) / T(e4m3_max);
            scale = scale > limit ? limit : scale;
            const T divisor = scale > T(0) ? scale : T(1);
            scales[i / block] = scale;
            u8* __restrict c = codes + i;
            for (std::size_t j = 0; j < m; ++j) {
                T y = v[j] / divisor;
                y = y > T(e4m3_max) ? T(e4m3_max) : y < T(-e4m3_max) ? T(-e4m3_max) : y;
                c[j] = to_e4m3(float(y));
            }
            if (s.ef) {
                T* __restrict x = s.x + i;
                for (std::size_t j = 0; j < m; ++j) x[j] = buffer[j] - T(from_e4m3(c[j])) * scale;
            }
        }
    });
}

// Adds begin..end, a whole number of blocks unless it ends the tensor; false if the payload is invalid there.
template <class T>
bool fp8_range(T* out, const u8* codes, const T* scales, std::size_t block, std::size_t begin, std::size_t end) {
    const T limit = fp8_limit<T>();
    bool good = true;
    for (std::size_t i = begin; i < end; i += block) {
        std::size_t m = end - i < block ? end - i : block;
        const T scale = scales[i / block];
        good &= scale >= T(0) && scale <= limit;
        T* __restrict o = out + i;
        const u8* __restrict c = codes + i;
        prefetch_codes(c, m);
        u8 bad = 0;
        for (std::size_t j = 0; j < m; ++j) bad = u8(bad | ((c[j] & 0x7fu) == 0x7fu));
        good &= !bad;
        for (std::size_t j = 0; j < m; ++j) o[j] += T(from_e4m3(c[j])) * scale;
    }
    return good;
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                           \
    void cast_encode(const EncoderInput<T>& s, bool bfloat, T scale, T unscale, T limit, u16* out, int threads) { \
        if (bfloat) cast_encode_<T, BFloat16>(s, {scale, unscale, limit}, out, threads);                          \
        else cast_encode_<T, Float16>(s, {scale, unscale, limit}, out, threads);                                  \
    }                                                                                                             \
    void cast_add(T* out, const u16* payload, bool bfloat, std::size_t n, int threads) {                          \
        if (bfloat) cast_add_<T, BFloat16>(out, payload, n, threads);                                             \
        else cast_add_<T, Float16>(out, payload, n, threads);                                                     \
    }                                                                                                             \
    void fp8_encode(const EncoderInput<T>& s, std::size_t block, u8* codes, T* scales, int threads) {             \
        fp8_encode_(s, block, codes, scales, threads);                                                            \
    }                                                                                                             \
    bool fp8_add(T* out, const u8* codes, const T* scales, std::size_t n, std::size_t block, int threads) {       \
        return add_pieces(n, fp8_piece(block), threads, [=](std::size_t begin, std::size_t end) {                 \
            return fp8_range(out, codes, scales, block, begin, end);                                              \
        });                                                                                                       \
    }                                                                                                             \
    bool fp8_combine(T* out, const u8* const* codes, const T* const* scales, std::size_t ranks, T divisor,        \
                     std::size_t n, std::size_t block, int threads) {                                             \
        return combine_pieces(out, n, fp8_piece(block), ranks, divisor, threads,                                  \
                              [=](std::size_t rank, std::size_t begin, std::size_t end) {                         \
                                  return fp8_range(out, codes[rank], scales[rank], block, begin, end);            \
                              });                                                                                 \
    }

GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
