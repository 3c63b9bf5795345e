// One byte an element: the nearest number of a dynamic tree, times the largest magnitude.
#include "methods/u8bit.hpp"

#include "combine.hpp"
#include "encoder_input.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

struct U8bitBuffers {
    ScratchBuffer maxima;  // the largest magnitude of each piece
};

template <class T>
T top_of(const EncoderInput<T>& s, int threads) {
    std::size_t pieces = (s.n + grain - 1) / grain;
    T* tops = scratch<U8bitBuffers>().maxima.get<T>(pieces);
    parallel(s.n, grain, threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[tile];
        T top = T(0);
        for (std::size_t i = begin; i < end; i += tile) {
            std::size_t m = end - i < tile ? end - i : tile;
            top = larger(top, max_abs(load(s, i, m, buffer), m));
        }
        tops[begin / grain] = top;
    });
    return max_abs(tops, pieces);
}

// Numbers from 2^-21 to 1 cut by exponent and six bits of mantissa; the ones below share the first cell.
constexpr std::int32_t cells = 21 * 64;

inline std::int32_t cell(float y) {
    std::int32_t c = (cast_bits<std::int32_t>(y) >> 17) - ((127 - 21) << 6);
    c = c > 0 ? c : 0;
    return c < cells ? c : cells;
}
inline std::int32_t cell(double y) {
    std::int64_t c = (cast_bits<std::int64_t>(y) >> 46) - ((1023 - 21) << 6);
    c = c > 0 ? c : 0;
    return std::int32_t(c < cells ? c : cells);
}

template <class T>
void u8bit_encode_(const EncoderInput<T>& s, const T* values, const T* middle, const u8* starts, u8* codes, T* scale,
                   int threads) {
    const T top = top_of(s, threads), divisor = top > T(0) ? top : T(1);
    *scale = top;
    parallel(s.n, grain, threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[tile];
        alignas(64) T share[tile];
        alignas(64) std::int32_t place[tile];
        for (std::size_t i = begin; i < end; i += tile) {
            std::size_t m = end - i < tile ? end - i : tile;
            const T* __restrict v = load(s, i, m, buffer);
            for (std::size_t j = 0; j < m; ++j) {
                T y = magnitude(v[j]) / divisor;
                share[j] = y;
                place[j] = cell(y);
            }
            // How many of the 127 middles lie below: so many below the cell, and at most one inside.
            for (std::size_t j = 0; j < m; ++j) {
                std::int32_t at = starts[place[j]];
                place[j] = at + (middle[at] < share[j] ? 1 : 0);
            }
            u8* __restrict c = codes + i;
            for (std::size_t j = 0; j < m; ++j) c[j] = u8(place[j] | (v[j] < T(0) ? 128 : 0));
            if (s.ef) {
                T* __restrict x = s.x + i;
                for (std::size_t j = 0; j < m; ++j) {
                    T value = values[place[j]];
                    x[j] = buffer[j] - (buffer[j] < T(0) ? -value : value) * top;
                }
            }
        }
    });
}

template <class T>
bool u8bit_range(T* out, const u8* codes, T scale, const T* values, std::size_t begin, std::size_t end) {
    alignas(64) T both[256];
    for (int c = 0; c < 128; ++c) both[c] = values[c] * scale, both[c + 128] = -values[c] * scale;
    for (std::size_t i = begin; i < end; i += tile) {
        const std::size_t m = end - i < tile ? end - i : tile;
        prefetch_codes(codes + i, m);
        for (std::size_t j = i; j < i + m; ++j) out[j] += both[codes[j]];
    }
    return true;
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                                  \
    void u8bit_encode(const EncoderInput<T>& s, const T* values, const T* middle, const u8* starts, u8* codes, T* scale, \
                      int threads) {                                                                                     \
        u8bit_encode_(s, values, middle, starts, codes, scale, threads);                                                 \
    }                                                                                                                    \
    void u8bit_add(T* out, const u8* codes, T scale, const T* values, std::size_t n, int threads) {                      \
        add_pieces(n, grain, threads, [=](std::size_t begin, std::size_t end) {                                          \
            return u8bit_range(out, codes, scale, values, begin, end);                                                   \
        });                                                                                                              \
    }                                                                                                                    \
    void u8bit_combine(T* out, const u8* const* codes, const T* scales, const T* values, std::size_t ranks, T divisor,   \
                       std::size_t n, int threads) {                                                                     \
        combine_pieces(out, n, grain, ranks, divisor, threads, [=](std::size_t rank, std::size_t begin, std::size_t end) { \
            return u8bit_range(out, codes[rank], scales[rank], values, begin, end);                                      \
        });                                                                                                              \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
