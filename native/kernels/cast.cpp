// Casts to float16 and bfloat16, and e4m3 with a scale per block. Rounding is to nearest even throughout.
#include <atomic>
#include <cfloat>
#include <cmath>

#include "dense.hpp"
#include "parallel.hpp"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace grace {
namespace GRACE_ISA {
namespace {

inline u16 to_half(float f) {
    u32 u = cast_bits<u32>(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    // Below 2^-14 the spacing is 2^-24, which is that of numbers next to one half: let an addition round.
    u32 small = cast_bits<u32>(cast_bits<float>(u) + 0.5f) - 0x3f000000u;
    u32 normal = (u + 0xfffu + ((u >> 13) & 1u) - 0x38000000u) >> 13;
    u32 special = 0x7c00u | (u > 0x7f800000u ? 0x200u : 0u);
    return u16(sign | (u >= 0x7f800000u ? special : u < 0x38800000u ? small : normal));
}

inline float from_half(u16 h) {
    u32 u = u32(h & 0x7fffu) << 13, sign = u32(h & 0x8000u) << 16;
    u32 finite = cast_bits<u32>(cast_bits<float>(u) * 5192296858534827628530496329220096.0f);  // 2^112
    return cast_bits<float>(sign | (u >= 0x0f800000u ? u | 0x7f800000u : finite));
}

inline u16 to_brain(float f) {
    u32 u = cast_bits<u32>(f);
    u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return u16((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

inline float from_brain(u16 h) { return cast_bits<float>(u32(h) << 16); }

struct Half {
    static void narrow(const float* __restrict f, std::size_t n, u16* __restrict out) {
        std::size_t i = 0;
#ifdef __F16C__
        for (; i + 8 <= n; i += 8)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(f + i), 0));
#endif
        for (; i < n; ++i) out[i] = to_half(f[i]);
    }
    static void widen(const u16* __restrict h, std::size_t n, float* __restrict out) {
        std::size_t i = 0;
#ifdef __F16C__
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(h + i))));
#endif
        for (; i < n; ++i) out[i] = from_half(h[i]);
    }
};

struct Brain {
    static void narrow(const float* __restrict f, std::size_t n, u16* __restrict out) {
        for (std::size_t i = 0; i < n; ++i) out[i] = to_brain(f[i]);
    }
    static void widen(const u16* __restrict h, std::size_t n, float* __restrict out) {
        for (std::size_t i = 0; i < n; ++i) out[i] = from_brain(h[i]);
    }
};

// Finite numbers beyond the limit become the limit; infinities and NaN stay.
template <class T>
inline void limited(const T* __restrict v, std::size_t n, T scale, T limit, float* __restrict out) {
    constexpr T infinity = T(__builtin_huge_val());
    for (std::size_t i = 0; i < n; ++i) {
        T y = v[i] * scale, a = magnitude(y);
        T bound = y < T(0) ? -limit : limit;
        out[i] = float((a > limit) & (a < infinity) ? bound : y);
    }
}

template <class T, class Kind>
void cast_encode_(const Source<T>& s, T scale, T unscale, T limit, u16* out, int threads) {
    parallel(s.n, grain, threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[tile];
        alignas(64) float narrow[tile];
        for (std::size_t i = begin; i < end; i += tile) {
            std::size_t m = end - i < tile ? end - i : tile;
            const T* v = load(s, i, m, buffer);
            limited(v, m, scale, limit, narrow);
            Kind::narrow(narrow, m, out + i);
            if (s.ef) {
                Kind::widen(out + i, m, narrow);
                T* x = s.x + i;
                for (std::size_t j = 0; j < m; ++j) x[j] = buffer[j] - T(narrow[j]) * unscale;
            }
        }
    });
}

template <class T, class Kind>
void cast_add_(T* out, const u16* payload, std::size_t n, int threads) {
    parallel(n, grain, threads, [=](std::size_t begin, std::size_t end) {
        alignas(64) float wide[tile];
        for (std::size_t i = begin; i < end; i += tile) {
            std::size_t m = end - i < tile ? end - i : tile;
            Kind::widen(payload + i, m, wide);
            T* o = out + i;
            for (std::size_t j = 0; j < m; ++j) o[j] += T(wide[j]);
        }
    });
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
    return cast_bits<float>(cast_bits<u32>(cast_bits<float>(u) * 1329227995784915872903807060280344576.0f) | sign);  // 2^120
}

// The largest scale a block may have: 448 times it is still finite.
template <class T>
T fp8_limit() {
    const T limit = (sizeof(T) == 4 ? T(FLT_MAX) : T(DBL_MAX)) / T(e4m3_max);
    return limit * T(e4m3_max) < T(__builtin_huge_val()) ? limit : std::nextafter(limit, T(0));
}

template <class T>
void fp8_encode_(const Source<T>& s, std::size_t block, u8* codes, T* scales, int threads) {
    const T limit = fp8_limit<T>();
    parallel(s.n, block * (grain / block ? grain / block : 1), threads, [=, &s](std::size_t begin, std::size_t end) {
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

template <class T>
bool fp8_add_(T* out, const u8* codes, const T* scales, std::size_t n, std::size_t block, int threads) {
    const T limit = fp8_limit<T>();
    std::atomic<bool> valid{true};
    parallel(n, block * (grain / block ? grain / block : 1), threads, [=, &valid](std::size_t begin, std::size_t end) {
        bool good = true;
        for (std::size_t i = begin; i < end; i += block) {
            std::size_t m = end - i < block ? end - i : block;
            const T scale = scales[i / block];
            good &= scale >= T(0) && scale <= limit;
            T* __restrict o = out + i;
            const u8* __restrict c = codes + i;
            u8 bad = 0;
            for (std::size_t j = 0; j < m; ++j) bad = u8(bad | ((c[j] & 0x7fu) == 0x7fu));
            good &= !bad;
            for (std::size_t j = 0; j < m; ++j) o[j] += T(from_e4m3(c[j])) * scale;
        }
        if (!good) valid.store(false, std::memory_order_relaxed);
    });
    return valid.load();
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                             \
    void cast_encode(const Source<T>& s, bool brain, T scale, T unscale, T limit, u16* out, int threads) {          \
        if (brain) cast_encode_<T, Brain>(s, scale, unscale, limit, out, threads);                                  \
        else cast_encode_<T, Half>(s, scale, unscale, limit, out, threads);                                         \
    }                                                                                                               \
    void cast_add(T* out, const u16* payload, bool brain, std::size_t n, int threads) {                             \
        if (brain) cast_add_<T, Brain>(out, payload, n, threads);                                                   \
        else cast_add_<T, Half>(out, payload, n, threads);                                                          \
    }                                                                                                               \
    void fp8_encode(const Source<T>& s, std::size_t block, u8* codes, T* scales, int threads) {                     \
        fp8_encode_(s, block, codes, scales, threads);                                                              \
    }                                                                                                               \
    bool fp8_add(T* out, const u8* codes, const T* scales, std::size_t n, std::size_t block, int threads) {         \
        return fp8_add_(out, codes, scales, n, block, threads);                                                     \
    }

GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
