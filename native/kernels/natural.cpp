// One byte an element: sign and power of two, the largest exponent sent per block.
#include "methods/natural.hpp"

#include <cmath>

#include "combine.hpp"
#include "encoder_input.hpp"
#include "parallel.hpp"
#include "random.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// c of 1…127 as the float 2^(c - 127), with a sign; 0 as zero.
inline float power(std::uint32_t code) { return cast_bits<float>((code & 127u) << 23 | (code & 128u) << 24); }

constexpr std::size_t natural_block = 4096, strip = 256;

template <class T>
inline int exponent_of(T top) {
    if (!(top > T(0) && top < T(__builtin_huge_val()))) return 0;
    constexpr int largest = sizeof(T) == 4 ? 127 : 1023;
    int exponent = 0;
    std::frexp(top, &exponent);
    return exponent < largest ? exponent : largest;
}

// v, scaled so that the block's largest power of two is 2^127, to its code (no subnormals are left among those that
// count), and with error feedback what the codes leave.
template <bool ef, class T, class Scale>
inline void natural_codes(const T* __restrict v, Progression random, std::size_t n, Scale scaled, T unit, u32* __restrict code,
                          T* __restrict x) {
    for (std::uint32_t j = 0; j < std::uint32_t(n); ++j) {
        const u32 bits = random.next();
        float y = float(scaled(magnitude(v[j])));
        // Random bits added to the mantissa carry into the exponent with the mantissa as probability.
        std::int32_t c = std::int32_t((cast_bits<u32>(y) + (bits >> 9)) >> 23) - 127;
        std::int32_t low = uniform<float>(bits) < y * 0.5f ? 1 : 0;
        c = y < 2.0f ? low : c;
        c = c < 127 ? c : 127;
        c = c > 0 ? c : 0;
        code[j] = u32(c) | (v[j] < T(0) ? 128u : 0u);
        if (ef) x[j] = v[j] - T(power(code[j])) * unit;
    }
}

template <class T>
void natural_encode_(const EncoderInput<T>& s, u64 word, u8* codes, std::int16_t* bases, int threads) {
    parallel(s.n, grain, threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[natural_block];
        alignas(64) u32 code[strip];  // narrowed apart: vectors of bytes would be wider than registers suffice for
        for (std::size_t i = begin; i < end; i += natural_block) {
            const std::size_t m = end - i < natural_block ? end - i : natural_block;
            const T* v = load(s, i, m, buffer);
            const int exponent = exponent_of(max_abs(v, m)), shift = 127 - exponent;
            bases[i / natural_block] = std::int16_t(exponent);
            // In three factors, because their product may be out of range; where it is not, one does the same.
            const int a = shift / 3, b = (shift - a) / 2;
            const T first = T(std::ldexp(1.0, a)), second = T(std::ldexp(1.0, b)), third = T(std::ldexp(1.0, shift - a - b));
            const T whole = T(std::ldexp(1.0, shift)), unit = T(std::ldexp(1.0, exponent));
            auto once = [=](T y) { return y * whole; };
            auto thrice = [=](T y) { return y * first * second * third; };
            const bool ordinary = shift >= 0 && shift <= 127;
            for (std::size_t t = 0; t < m; t += strip) {
                const std::size_t k = m - t < strip ? m - t : strip;
                prefetch(s, i + t + natural_block, k);
                progress(word, i + t, k, [=, &s, &code](Progression random, std::size_t from, std::size_t count) {
                    const T* values = v + t + from;
                    T* x = s.x + i + t + from;
                    u32* to = code + from;
                    if (ordinary && s.ef) natural_codes<true>(values, random, count, once, unit, to, x);
                    else if (s.ef) natural_codes<true>(values, random, count, thrice, unit, to, x);
                    else natural_codes<false>(values, random, count, thrice, unit, to, x);
                });
                u8* __restrict out = codes + i + t;
                for (std::size_t j = 0; j < k; ++j) out[j] = u8(code[j]);
            }
        }
    });
}

// Adds begin..end, which begins a block.
template <class T>
bool natural_range(T* out, const u8* codes, const std::int16_t* bases, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; i += natural_block) {
        const std::size_t m = end - i < natural_block ? end - i : natural_block;
        const T unit = T(std::ldexp(1.0, bases[i / natural_block]));
        T* __restrict o = out + i;
        const u8* __restrict c = codes + i;
        prefetch_codes(c, m);
        for (std::size_t j = 0; j < m; ++j) o[j] += T(power(c[j])) * unit;
    }
    return true;  // the bases are checked before
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                    \
    void natural_encode(const EncoderInput<T>& s, u64 word, u8* codes, std::int16_t* bases, int threads) { \
        natural_encode_(s, word, codes, bases, threads);                                                   \
    }                                                                                                      \
    void natural_add(T* out, const u8* codes, const std::int16_t* bases, std::size_t n, int threads) {     \
        add_pieces(n, grain, threads, [=](std::size_t begin, std::size_t end) {                            \
            return natural_range(out, codes, bases, begin, end);                                           \
        });                                                                                                \
    }                                                                                                      \
    void natural_combine(T* out, const u8* const* codes, const std::int16_t* const* bases,                 \
                         std::size_t ranks, T divisor, std::size_t n, int threads) {                       \
        combine_pieces(out, n, grain, ranks, divisor, threads,                                             \
                       [=](std::size_t rank, std::size_t begin, std::size_t end) {                         \
                           return natural_range(out, codes[rank], bases[rank], begin, end);                \
                       });                                                                                 \
    }

GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
