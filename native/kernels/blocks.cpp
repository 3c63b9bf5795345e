// Stochastic rounding to evenly spaced levels, one scale a block (int8, int4, QSGD).
#include "methods/blocks.hpp"

#include <cfloat>
#include <cmath>

#include "combine.hpp"
#include "encoder_input.hpp"
#include "packing.hpp"
#include "parallel.hpp"
#include "random.hpp"
#include "reduce.hpp"
#include "scratch.hpp"
#include "squares.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

using i32 = std::int32_t;

struct BlockBuffers {
    ScratchBuffer values;   // of a block that is longer than a tile
    ScratchBuffer squares;  // of a block, padded to a power of two
};

// A whole number of blocks and of bytes, about `grain` elements.
inline std::size_t piece(std::size_t block, int bits) {
    std::size_t unit = block * std::size_t(bits) % 8 ? block * 8 : block;
    return unit * (grain / unit ? grain / unit : 1);
}

template <class T>
T euclidean(const T* v, std::size_t n, std::size_t block, T top) {
    std::size_t width = 1;
    while (width < block) width *= 2;
    double factor = squares_factor(top), sum;
    auto square = [v, factor](std::size_t i) {
        double y = double(v[i]) * factor;
        return y * y;
    };
    if (width == 128 && n == 128) {
        sum = tree<128>(n, square);
    } else {
        double* y = scratch<BlockBuffers>().squares.get<double>(width);
        for (std::size_t i = 0; i < n; ++i) y[i] = square(i);
        for (std::size_t i = n; i < width; ++i) y[i] = 0.0;
        sum = halve(y, width);
    }
    double norm = std::sqrt(sum) / factor, most = sizeof(T) == 4 ? double(FLT_MAX) : DBL_MAX;
    T scale = T(norm < most ? norm : most);
    return scale > top ? scale : top;
}

template <class T>
constexpr T largest = sizeof(T) == 4 ? T(FLT_MAX) : T(DBL_MAX);

// What a block is computed with. Blocks so small that inverses overflow are lifted by a power of two meanwhile.
template <class T>
struct Block {
    T lift, lower, inverse, step;  // `levels` steps are finite
    Block(T scale, T levels) {
        using B = typename Bits<T>::type;
        constexpr bool narrow = sizeof(T) == 4;
        const bool tiny = scale < T(narrow ? 0x1p-60 : 0x1p-500);
        lift = tiny ? T(narrow ? 0x1p64 : 0x1p512) : T(1);
        lower = T(1) / lift;
        const T size = scale * lift;
        inverse = levels / (size > T(0) ? size : T(1));
        step = size / levels;
        if (step * levels > largest<T>) step = cast_bits<T>(B(cast_bits<B>(step) - 1));
    }
};

// The codes of a block, `levels` added, and with error feedback what they leave, all in registers. Most blocks are not
// lifted, which saves two multiplications by one.
template <bool ef, bool lifted, class T, class Code>
inline void quantise(const T* __restrict v, Progression random, std::size_t n, Block<T> by, i32 levels, Code* __restrict codes,
                     T* __restrict x) {
    const T most = T(levels);
    for (std::uint32_t i = 0; i < std::uint32_t(n); ++i) {
        T y = (lifted ? magnitude(v[i]) * by.lift : magnitude(v[i])) * by.inverse;
        y = y < most ? y : most;
        const i32 whole = i32(y);
        const i32 up = whole + (uniform<T>(random.next()) < y - T(whole) ? 1 : 0);
        const i32 q = v[i] < T(0) ? -up : up;
        codes[i] = Code(q + levels);
        if (ef) x[i] = v[i] - (lifted ? T(q) * by.step * by.lower : T(q) * by.step);
    }
}

template <class T, class Code>
inline void quantise_block(const EncoderInput<T>& s, const T* v, std::size_t begin, std::size_t n, Block<T> by, int levels, u64 word,
                           Code* codes) {
    progress(word, begin, n, [=, &s](Progression random, std::size_t from, std::size_t count) {
        const T* values = v + from;
        T* x = s.x + begin + from;
        const bool lifted = by.lift != T(1);
        if (s.ef && !lifted) quantise<true, false>(values, random, count, by, levels, codes + from, x);
        else if (s.ef) quantise<true, true>(values, random, count, by, levels, codes + from, x);
        else quantise<false, true>(values, random, count, by, levels, codes + from, x);
    });
}

inline void pack4(const u8* __restrict code, std::size_t n, u8* __restrict out) {
    for (std::size_t i = 0; i < n / 2; ++i) out[i] = u8(code[2 * i] | code[2 * i + 1] << 4);
    if (n % 2) out[n / 2] = code[n - 1];
}

template <class T>
void block_encode_(const EncoderInput<T>& s, std::size_t block, int levels, int bits, bool l2, u64 word, u8* codes, T* scales,
                   int threads) {
    const bool bytes = bits == 8, nibbles = bits == 4 && block % 2 == 0;
    // Several small blocks are loaded at once.
    const std::size_t strip = block < tile ? tile / block * block : block;
    parallel(s.n, piece(block, bits), threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T small[tile];
        alignas(64) i32 wide[tile];
        alignas(64) u8 pairs[tile];
        T* buffer = strip <= tile ? small : scratch<BlockBuffers>().values.get<T>(strip);
        BitWriter writer(codes + begin * std::size_t(bits) / 8, bits);
        for (std::size_t i = begin; i < end; i += strip) {
            const std::size_t m = end - i < strip ? end - i : strip;
            const T* v = load(s, i, m, buffer);
            for (std::size_t b = 0; b < m; b += block) {
                const std::size_t k = m - b < block ? m - b : block;
                const T top = max_abs(v + b, k);
                scales[(i + b) / block] = l2 ? euclidean(v + b, k, block, top) : top;
            }
            for (std::size_t t = 0; t < m; t += tile) {
                const std::size_t k = m - t < tile ? m - t : tile;
                for (std::size_t b = 0; b < k; b += block) {
                    const std::size_t w = k - b < block ? k - b : block, at = i + t + b;
                    const Block<T> by(scales[at / block], T(levels));
                    prefetch(s, at + strip, w);
                    if (bytes) quantise_block(s, v + t + b, at, w, by, levels, word, codes + at);
                    else if (nibbles) quantise_block(s, v + t + b, at, w, by, levels, word, pairs + b);
                    else quantise_block(s, v + t + b, at, w, by, levels, word, wide + b);
                }
                if (nibbles) pack4(pairs, k, codes + (i + t) / 2);
                else if (!bytes) writer.put(wide, k);
            }
        }
        if (!bytes && !nibbles) writer.finish();
    });
}

// Adds begin..end, a whole number of blocks unless it ends the tensor; false if the payload is invalid there. Not inlined:
// the compiler's choice of registers then does not depend on the caller.
template <class T>
[[gnu::noinline]] bool block_range(T* out, const u8* codes, const T* scales, std::size_t n, std::size_t block, int levels, int bits,
                                   std::size_t begin, std::size_t end) {
    constexpr T infinity = T(__builtin_huge_val());
    const bool bytes = bits == 8, nibbles = bits == 4 && block % 2 == 0;
    const u8* last = codes + (n * std::size_t(bits) + 7) / 8;
    alignas(64) i32 q[tile];
    BitReader reader(codes + begin * std::size_t(bits) / 8, last, bits);
    bool good = true;
    for (std::size_t i = begin; i < end; i += block) {
        std::size_t m = end - i < block ? end - i : block;
        const T scale = scales[i / block];
        const Block<T> by(scale, T(levels));
        good &= scale >= T(0) && scale < infinity;
        for (std::size_t t = 0; t < m; t += tile) {
            std::size_t k = m - t < tile ? m - t : tile;
            T* __restrict o = out + i + t;
            if (bytes) {
                const u8* __restrict c = codes + i + t;
                prefetch_codes(c, k);
                u8 most = 0;
                for (std::size_t j = 0; j < k; ++j) most = c[j] > most ? c[j] : most;
                good &= most <= 2 * levels;
                for (std::size_t j = 0; j < k; ++j) o[j] += (T(i32(c[j]) - levels) * by.step) * by.lower;
                continue;
            }
            if (nibbles) {
                const u8* __restrict c = codes + (i + t) / 2;
                prefetch_codes(c, k / 2);
                for (std::size_t j = 0; j < k / 2; ++j) q[2 * j] = c[j] & 15, q[2 * j + 1] = c[j] >> 4;
                if (k % 2) q[k - 1] = c[k / 2] & 15;
            } else {
                reader.get(q, k);
            }
            i32 most = 0;
            for (std::size_t j = 0; j < k; ++j) most = q[j] > most ? q[j] : most;
            good &= most <= 2 * levels;
            for (std::size_t j = 0; j < k; ++j) o[j] += (T(q[j] - levels) * by.step) * by.lower;
        }
    }
    return good;
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                                \
    void block_encode(const EncoderInput<T>& s, std::size_t block, int levels, int bits, bool l2, u64 word, u8* codes, \
                      T* scales, int threads) {                                                                        \
        block_encode_(s, block, levels, bits, l2, word, codes, scales, threads);                                       \
    }                                                                                                                  \
    bool block_add(T* out, const u8* codes, const T* scales, std::size_t n, std::size_t block, int levels, int bits,   \
                   int threads) {                                                                                      \
        return add_pieces(n, piece(block, bits), threads, [=](std::size_t begin, std::size_t end) {                    \
            return block_range(out, codes, scales, n, block, levels, bits, begin, end);                                \
        });                                                                                                            \
    }                                                                                                                  \
    bool block_combine(T* out, const u8* const* codes, const T* const* scales, std::size_t ranks, T divisor,           \
                       std::size_t n, std::size_t block, int levels, int bits, int threads) {                          \
        return combine_pieces(out, n, piece(block, bits), ranks, divisor, threads,                                     \
                              [=](std::size_t rank, std::size_t begin, std::size_t end) {                              \
                                  return block_range(out, codes[rank], scales[rank], n, block, levels, bits, begin,    \
                                                     end);                                                             \
                              });                                                                                      \
    }

GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
