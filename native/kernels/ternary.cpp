// TernGrad: five trits in a byte. Byte j of a group of 256 holds elements j, j + 256, … j + 1024 of its 1280, so that
// packing is arithmetic on whole vectors.
#include "methods/ternary.hpp"

#include <cmath>

#include "combine.hpp"
#include "encoder_input.hpp"
#include "parallel.hpp"
#include "random.hpp"
#include "reduce.hpp"
#include "scratch.hpp"
#include "squares.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

constexpr std::size_t width = 256, group = 5 * width, groups_grain = 25 * group;

struct TernaryBuffers {
    ScratchBuffer block_sums, block_maxima;
};

template <class T>
double sum_squares(const EncoderInput<T>& s, double factor, T& top, int threads) {
    std::size_t blocks = (s.n + tree_block - 1) / tree_block;
    double* sums = scratch<TernaryBuffers>().block_sums.get<double>(blocks);
    T* tops = scratch<TernaryBuffers>().block_maxima.get<T>(blocks);
    parallel(s.n, grain, threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[tile];
        for (std::size_t i = begin; i < end; i += tile) {
            std::size_t m = end - i < tile ? end - i : tile;
            const T* v = load(s, i, m, buffer);
            tops[i / tile] = max_abs(v, m);
            if (factor == 1.0)
                sums[i / tile] = tree<tile>(m, [v](std::size_t j) { return double(v[j]) * double(v[j]); });
            else
                sums[i / tile] = tree<tile>(m, [v, factor](std::size_t j) {
                    double y = double(v[j]) * factor;
                    return y * y;
                });
        }
    });
    top = max_abs(tops, blocks);
    return tree_sum(sums, blocks);
}

// Trits of v, one added, and with error feedback what they leave.
template <bool ef, class T>
inline void decide(const T* __restrict v, Progression random, std::size_t n, T scale, u8* __restrict digit, T* __restrict x) {
    for (std::uint32_t i = 0; i < std::uint32_t(n); ++i) {
        const std::int32_t kept = uniform<T>(random.next()) * scale < magnitude(v[i]) ? 1 : 0;
        const std::int32_t trit = v[i] < T(0) ? -kept : kept;
        digit[i] = u8(trit + 1);
        if (ef) x[i] = v[i] - T(trit) * scale;
    }
}

template <class T>
void ternary_encode_(const EncoderInput<T>& s, double clip, u64 word, u8* codes, T* result, int threads) {
    T top;
    double sum = sum_squares(s, 1.0, top, threads), factor = squares_factor(top);
    if (factor != 1.0) sum = sum_squares(s, factor, top, threads);
    const T bound = T(clip * (std::sqrt(sum / double(s.n)) / factor));
    const T scale = bound < top ? bound : top;
    *result = scale;
    parallel(s.n, groups_grain, threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[group];
        alignas(64) u8 digit[group];
        for (std::size_t i = begin; i < end; i += group) {
            std::size_t m = end - i < group ? end - i : group, w = m < group ? (m + 4) / 5 : width;
            const T* v = load(s, i, m, buffer);
            for (std::size_t t = 0; t < m; t += width) {
                const std::size_t k = m - t < width ? m - t : width;
                prefetch(s, i + group + t, k);
                progress(word, i + t, k, [=, &s, &digit](Progression random, std::size_t from, std::size_t count) {
                    const std::size_t at = t + from;
                    if (s.ef) decide<true>(v + at, random, count, scale, digit + at, s.x + i + at);
                    else decide<false>(v + at, random, count, scale, digit + at, s.x + i + at);
                });
            }
            for (std::size_t j = m; j < 5 * w; ++j) digit[j] = 0;
            u8* __restrict c = codes + i / 5;
            for (std::size_t j = 0; j < w; ++j)
                c[j] = u8(digit[j] + 3 * digit[j + w] + 9 * digit[j + 2 * w] + 27 * digit[j + 3 * w] + 81 * digit[j + 4 * w]);
        }
    });
}

template <class T>
inline void add_trits(T* __restrict out, const u8* __restrict trit, std::size_t n, T scale) {
    for (std::size_t j = 0; j < n; ++j) out[j] += T(std::int32_t(trit[j]) - 1) * scale;
}

// Adds begin..end, which begins a group; false if the payload is invalid there.
template <class T>
bool ternary_range(T* out, const u8* codes, T scale, std::size_t begin, std::size_t end) {
    alignas(64) u8 trit[group];
    u8 most = 0;
    for (std::size_t i = begin; i < end; i += group) {
        std::size_t m = end - i < group ? end - i : group, w = m < group ? (m + 4) / 5 : width;
        const u8* __restrict c = codes + i / 5;
        prefetch_codes(c, w);
        for (std::size_t j = 0; j < w; ++j) most = c[j] > most ? c[j] : most;
        for (std::size_t j = 0; j < w; ++j) {
            u16 rest = c[j];
            for (int k = 0; k < 5; ++k) {
                u16 third = u16((rest * 171u) >> 9);  // rest / 3, exact below 512
                trit[j + std::size_t(k) * w] = u8(rest - 3 * third);
                rest = third;
            }
        }
        add_trits(out + i, trit, m, scale);
    }
    return most <= 242;
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                      \
    void ternary_encode(const EncoderInput<T>& s, double clip, u64 word, u8* codes, T* scale, int threads) { \
        ternary_encode_(s, clip, word, codes, scale, threads);                                               \
    }                                                                                                        \
    bool ternary_add(T* out, const u8* codes, T scale, std::size_t n, int threads) {                         \
        return add_pieces(n, groups_grain, threads, [=](std::size_t begin, std::size_t end) {                \
            return ternary_range(out, codes, scale, begin, end);                                             \
        });                                                                                                  \
    }                                                                                                        \
    bool ternary_combine(T* out, const u8* const* codes, const T* scales, std::size_t ranks, T divisor,      \
                         std::size_t n, int threads) {                                                       \
        return combine_pieces(out, n, groups_grain, ranks, divisor, threads,                                 \
                              [=](std::size_t rank, std::size_t begin, std::size_t end) {                    \
                                  return ternary_range(out, codes[rank], scales[rank], begin, end);          \
                              });                                                                            \
    }

GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
