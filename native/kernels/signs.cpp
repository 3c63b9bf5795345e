// One bit an element, set where negative, lowest bit first.
#include "methods/signs.hpp"

#include <atomic>
#include <cmath>

#include "combine.hpp"
#include "encoder_input.hpp"
#include "parallel.hpp"
#include "random.hpp"
#include "reduce.hpp"
#include "scratch.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace grace {
namespace GRACE_ISA {
namespace {

struct SignBuffers {
    ScratchBuffer sums, negative_sums, positive_sums, negative_counts;  // a number per block
};

// Eight bytes of 0 or 1 into the bits of one byte.
inline u8 gather_bits(const u8* ones) {
    u64 word;
    std::memcpy(&word, ones, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return u8((word * 0x0102040810204080ull) >> 56);
}

template <class T>
inline void pack_tail(const T* v, std::size_t n, u8* out) {
    u8 byte = 0;
    for (std::size_t j = 0; j < n; ++j) byte = u8(byte | (v[j] < T(0)) << j);
    if (n) *out = byte;
}

template <class T>
inline void pack_negative(const T* v, std::size_t n, u8* out) {
    alignas(64) u8 ones[tile];
    std::size_t whole = n & ~std::size_t(7);
    for (std::size_t i = 0; i < whole; ++i) ones[i] = v[i] < T(0);
    for (std::size_t i = 0; i < whole; i += 8) out[i / 8] = gather_bits(ones + i);
    pack_tail(v + whole, n - whole, out + whole / 8);
}

#ifdef __AVX2__
inline void pack_negative(const float* v, std::size_t n, u8* out) {
    const __m256 zero = _mm256_setzero_ps();
    std::size_t whole = n & ~std::size_t(7);
    for (std::size_t i = 0; i < whole; i += 8)
        out[i / 8] = u8(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(v + i), zero, _CMP_LT_OQ)));
    pack_tail(v + whole, n - whole, out + whole / 8);
}
inline void pack_negative(const double* v, std::size_t n, u8* out) {
    const __m256d zero = _mm256_setzero_pd();
    std::size_t whole = n & ~std::size_t(7);
    for (std::size_t i = 0; i < whole; i += 8) {
        int a = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(v + i), zero, _CMP_LT_OQ));
        int b = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(v + i + 4), zero, _CMP_LT_OQ));
        out[i / 8] = u8(a | b << 4);
    }
    pack_tail(v + whole, n - whole, out + whole / 8);
}
#endif

// x becomes v, after what is owed for the last step left it.
template <class T>
inline void settle(const EncoderInput<T>& s, T low, T high, std::size_t begin, std::size_t n) {
    T* __restrict x = s.x + begin;
    if (!s.g) {
        for (std::size_t i = 0; i < n; ++i) x[i] = x[i] - (x[i] < T(0) ? low : high);
        return;
    }
    const T* __restrict g = s.g + begin;
    const T beta = s.beta, gamma = s.gamma;
    if (beta == T(1) && gamma == T(1))
        for (std::size_t i = 0; i < n; ++i) x[i] = (x[i] - (x[i] < T(0) ? low : high)) + g[i];
    else
        for (std::size_t i = 0; i < n; ++i) x[i] = beta * (x[i] - (x[i] < T(0) ? low : high)) + gamma * g[i];
}

// visit(tile number, v, size) for every tile, whose signs are packed on the way.
template <class T, class Visit>
inline void encode_tiles(const EncoderInput<T>& s, const T* owed, u8* bits, int threads, Visit visit) {
    const T low = owed ? owed[0] : T(0), high = owed ? owed[1] : T(0);
    parallel(s.n, grain, threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[tile];
        for (std::size_t i = begin; i < end; i += tile) {
            const std::size_t m = end - i < tile ? end - i : tile;
            const T* v = s.x + i;
            if (owed) settle(s, low, high, i, m);
            else v = load(s, i, m, buffer);
            pack_negative(v, m, bits + i / 8);
            visit(i / tile, v, m);
        }
    });
}

// n bits to `low` where set and `high` elsewhere: added to `out`, or written.
template <class T, bool add>
inline void expand(const u8* bits, std::size_t n, T low, T high, T* __restrict out) {
    std::size_t i = 0;
#ifdef __AVX2__
    if constexpr (sizeof(T) == 4) {
        const __m256i place = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        const __m256 lows = _mm256_set1_ps(low), highs = _mm256_set1_ps(high);
        for (; i + 8 <= n; i += 8) {
            __m256i one = _mm256_and_si256(_mm256_set1_epi32(bits[i / 8]), place);
            __m256 set = _mm256_castsi256_ps(_mm256_cmpeq_epi32(one, place));
            __m256 value = _mm256_blendv_ps(highs, lows, set);
            _mm256_storeu_ps(out + i, add ? _mm256_add_ps(_mm256_loadu_ps(out + i), value) : value);
        }
    }
#endif
    for (; i + 8 <= n; i += 8) {
        const int byte = bits[i / 8];
        T value[8];
        for (int j = 0; j < 8; ++j) value[j] = byte & (1 << j) ? low : high;
        for (int j = 0; j < 8; ++j) out[i + j] = add ? out[i + j] + value[j] : value[j];
    }
    for (; i < n; ++i) {
        T value = bits[i / 8] >> (i & 7) & 1 ? low : high;
        out[i] = add ? out[i] + value : value;
    }
}

template <class T>
void two_add_(T* out, const u8* bits, T low, T high, std::size_t n, int threads) {
    parallel(n, grain, threads, [=](std::size_t begin, std::size_t end) {
        expand<T, true>(bits + begin / 8, end - begin, low, high, out + begin);
    });
}

template <class T>
void sign_encode_(const EncoderInput<T>& s, u64 word, u8* bits, u8* flag, int threads) {
    std::atomic<bool> any{false};
    parallel(s.n, grain, threads, [&, bits, word](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[tile];
        alignas(64) T coins[tile];
        u32 random[tile];
        bool seen = false;
        for (std::size_t i = begin; i < end; i += tile) {
            std::size_t m = end - i < tile ? end - i : tile;
            const T* v = load(s, i, m, buffer);
            std::size_t zeros = 0;
            for (std::size_t j = 0; j < m; ++j) zeros += v[j] == T(0);
            seen |= zeros != m;
            if (s.ef && s.g) std::memcpy(s.x + i, v, m * sizeof(T));
            if (zeros) {
                draws(word, i, m, random);
                for (std::size_t j = 0; j < m; ++j)
                    coins[j] = v[j] == T(0) ? (random[j] >> 31 ? T(-1) : T(1)) : v[j];
                v = coins;
            }
            pack_negative(v, m, bits + i / 8);
        }
        if (seen) any.store(true, std::memory_order_relaxed);
    });
    *flag = any.load() ? 1 : 0;
}

// Votes are counted in bit planes: 64 elements at a time, one plane a binary digit of the count.
template <class T>
void sign_vote_(T* out, const u8* const* ballots, std::size_t count, u64 word, std::size_t n, int threads) {
    int planes = 0;
    while (count >> planes) ++planes;
    const std::size_t half = count / 2;
    const bool even = count % 2 == 0;
    parallel(n, grain, threads, [=](std::size_t begin, std::size_t end) {
        u8 result[tile / 8];
        u32 random[64];
        for (std::size_t i = begin; i < end; i += tile) {
            std::size_t m = end - i < tile ? end - i : tile, bytes = (m + 7) / 8;
            for (std::size_t b = 0; b < bytes; b += 8) {
                std::size_t width = bytes - b < 8 ? bytes - b : 8;
                u64 plane[64] = {};
                for (std::size_t r = 0; r < count; ++r) {
                    u64 carry = 0;
                    std::memcpy(&carry, ballots[r] + i / 8 + b, width);
                    for (int k = 0; carry && k < planes; ++k) {
                        u64 sum = plane[k] ^ carry;
                        carry &= plane[k];
                        plane[k] = sum;
                    }
                }
                u64 more = 0, same = ~u64(0);
                for (int k = planes - 1; k >= 0; --k) {
                    if (half >> k & 1) {
                        same &= plane[k];
                    } else {
                        more |= same & plane[k];
                        same &= ~plane[k];
                    }
                }
                if (even && same) {
                    draws(word, i + 8 * b, 8 * width, random);
                    u8 coin[8] = {};
                    for (std::size_t j = 0; j < 8 * width; ++j) coin[j / 8] = u8(coin[j / 8] | (random[j] >> 31) << (j & 7));
                    u64 coins = 0;
                    std::memcpy(&coins, coin, 8);
                    more |= same & coins;
                }
                std::memcpy(result + b, &more, width);
            }
            expand<T, false>(result, m, T(-1), T(1), out + i);
        }
    });
}

// What values are multiplied by before they are summed: eight of them then never overflow. Should the whole sum still do
// so, it is taken again of much smaller numbers.
constexpr double eighth = 0x1p-3, shrunk = 0x1p-67;

// Sums are taken of numbers times `factor` while signs are packed. With `owed`, x holds v afterwards.
template <class T>
double sum_magnitudes(const EncoderInput<T>& s, const T* owed, u8* bits, T factor, int threads) {
    std::size_t blocks = (s.n + tree_block - 1) / tree_block;
    double* sums = scratch<SignBuffers>().sums.get<double>(blocks);
    encode_tiles(s, owed, bits, threads, [=](std::size_t block, const T* v, std::size_t m) {
        sums[block] = tree<tile>(m, [v, factor](std::size_t j) { return magnitude(v[j]) * factor; });
    });
    return tree_sum(sums, blocks);
}

template <class T>
SumsBySign sums_by_sign(const EncoderInput<T>& s, const T* owed, u8* bits, T factor, int threads) {
    std::size_t blocks = (s.n + tree_block - 1) / tree_block;
    SignBuffers& buffers = scratch<SignBuffers>();
    double* lows = buffers.negative_sums.get<double>(blocks);
    double* highs = buffers.positive_sums.get<double>(blocks);
    double* counts = buffers.negative_counts.get<double>(blocks);
    encode_tiles(s, owed, bits, threads, [=](std::size_t block, const T* v, std::size_t m) {
        const SumsBySign sums = tree_by_sign<tile>(v, m, factor);
        lows[block] = sums.low, highs[block] = sums.high, counts[block] = sums.below;
    });
    double below = 0;
    for (std::size_t b = 0; b < blocks; ++b) below += counts[b];
    return {tree_sum(lows, blocks), tree_sum(highs, blocks), below};
}

// Where v is found again once it was encoded.
template <class T>
EncoderInput<T> encoded(const EncoderInput<T>& s, const T* owed) {
    return owed ? EncoderInput<T>{s.x, nullptr, T(1), T(1), s.n, false} : s;
}

template <class T>
void scaled_sign_encode_(const EncoderInput<T>& s, T* owed, u8* bits, T* scale, int threads) {
    double total = sum_magnitudes<T>(s, owed, bits, T(eighth), threads), mean = total / double(s.n) / eighth;
    if (!std::isfinite(total))
        mean = sum_magnitudes<T>(encoded<T>(s, owed), nullptr, bits, T(shrunk), threads) / double(s.n) / shrunk;
    *scale = T(mean);
    if (owed) owed[0] = -T(mean), owed[1] = T(mean);
}

template <class T>
void onebit_encode_(const EncoderInput<T>& s, T* owed, u8* bits, T* means, int threads) {
    SumsBySign sums = sums_by_sign<T>(s, owed, bits, T(eighth), threads);
    double below = sums.below > 0 ? sums.below : 1, above = double(s.n) - sums.below;
    if (above < 1) above = 1;
    double low = sums.low / below / eighth, high = sums.high / above / eighth;
    if (!std::isfinite(sums.low) || !std::isfinite(sums.high)) {
        SumsBySign small = sums_by_sign<T>(encoded<T>(s, owed), nullptr, bits, T(shrunk), threads);
        if (!std::isfinite(sums.low)) low = small.low / below / shrunk;
        if (!std::isfinite(sums.high)) high = small.high / above / shrunk;
    }
    means[0] = T(low), means[1] = T(high);
    if (owed) owed[0] = T(low), owed[1] = T(high);
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                         \
    void two_add(T* out, const u8* bits, T low, T high, std::size_t n, int threads) {                           \
        two_add_(out, bits, low, high, n, threads);                                                             \
    }                                                                                                           \
    void two_combine(T* out, const u8* const* bits, const T* lows, const T* highs, std::size_t ranks,           \
                     T divisor, std::size_t n, int threads) {                                                   \
        combine_pieces(out, n, grain, ranks, divisor, threads,                                                  \
                       [=](std::size_t rank, std::size_t begin, std::size_t end) {                              \
                           expand<T, true>(bits[rank] + begin / 8, end - begin, lows[rank], highs[rank],        \
                                           out + begin);                                                        \
                           return true;                                                                         \
                       });                                                                                      \
    }                                                                                                           \
    void sign_encode(const EncoderInput<T>& s, u64 word, u8* bits, u8* flag, int threads) {                     \
        sign_encode_(s, word, bits, flag, threads);                                                             \
    }                                                                                                           \
    void sign_vote(T* out, const u8* const* ballots, std::size_t count, u64 word, std::size_t n, int threads) { \
        sign_vote_(out, ballots, count, word, n, threads);                                                      \
    }                                                                                                           \
    void scaled_sign_encode(const EncoderInput<T>& s, T* owed, u8* bits, T* scale, int threads) {               \
        scaled_sign_encode_(s, owed, bits, scale, threads);                                                     \
    }                                                                                                           \
    void onebit_encode(const EncoderInput<T>& s, T* owed, u8* bits, T* means, int threads) {                    \
        onebit_encode_(s, owed, bits, means, threads);                                                          \
    }

GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
