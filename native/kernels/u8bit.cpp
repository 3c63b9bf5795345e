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

// Shares from 2^-21 to 1 are cut into cells by exponent and six bits of mantissa; smaller ones count as 2^-21, which no
// middle lies below. No cell holds two of the 127 middles, so a cell's entry tells everything: above the `fine` bits that a
// cell leaves of a share and one more, how many middles lie below the cell, and in those bits a number to which the share's
// own must be added: they carry exactly if the share exceeds the middle inside.
template <class T>
struct Cells {
    using B = typename Bits<T>::type;
    static constexpr int fine = sizeof(T) == 4 ? 17 : 46;
    static constexpr B one = B(sizeof(T) == 4 ? 127 : 1023) << (fine + 6);
    static constexpr B least = one - (B(21 * 64) << fine);
};

// Values times the scale by code, negative ones in the upper half.
template <class T>
inline void both_signs(const T* values, T scale, T* both) {
    for (int c = 0; c < 128; ++c) both[c] = values[c] * scale, both[c + 128] = -values[c] * scale;
}

// The codes of a tile, and the residual to x unless that is null.
template <class T>
inline void encode(const T* __restrict v, std::size_t n, T divisor, const typename Bits<T>::type* entries, const T* both,
                   u8* __restrict codes, T* __restrict x) {
    using B = typename Bits<T>::type;
    constexpr B rest = (B(1) << Cells<T>::fine) - 1;
    alignas(64) B bits[tile];
    for (std::size_t j = 0; j < n; ++j) {
        B y = cast_bits<B>(magnitude(v[j]) / divisor);
        y = y > Cells<T>::least ? y : Cells<T>::least;
        bits[j] = (y < Cells<T>::one ? y : Cells<T>::one) - Cells<T>::least;
    }
    for (std::size_t j = 0; j < n; ++j)
        bits[j] = (entries[bits[j] >> Cells<T>::fine] + (bits[j] & rest)) >> (Cells<T>::fine + 1);
    for (std::size_t j = 0; j < n; ++j) codes[j] = u8(bits[j] | (v[j] < T(0) ? 128 : 0));
    if (x)
        for (std::size_t j = 0; j < n; ++j) x[j] = v[j] - both[codes[j]];
}

template <class T>
void u8bit_encode_(const EncoderInput<T>& s, const T* values, const typename Bits<T>::type* entries, u8* codes, T* scale,
                   int threads) {
    const T top = top_of(s, threads), divisor = top > T(0) ? top : T(1);
    *scale = top;
    alignas(64) T decoded[256];
    both_signs(values, top, decoded);
    const T* both = decoded;
    parallel(s.n, grain, threads, [=, &s](std::size_t begin, std::size_t end) {
        alignas(64) T buffer[tile];
        for (std::size_t i = begin; i < end; i += tile) {
            std::size_t m = end - i < tile ? end - i : tile;
            const T* v = load(s, i, m, buffer);
            prefetch(s, i + tile, m);
            encode(v, m, divisor, entries, both, codes + i, s.ef ? s.x + i : nullptr);
        }
    });
}

template <class T>
bool u8bit_range(T* out, const u8* codes, T scale, const T* values, std::size_t begin, std::size_t end) {
    alignas(64) T both[256];
    both_signs(values, scale, both);
    for (std::size_t i = begin; i < end; i += tile) {
        const std::size_t m = end - i < tile ? end - i : tile;
        prefetch_codes(codes + i, m);
        for (std::size_t j = i; j < i + m; ++j) out[j] += both[codes[j]];
    }
    return true;
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                                  \
    void u8bit_encode(const EncoderInput<T>& s, const T* values, const typename Bits<T>::type* entries, u8* codes, T* scale,\
                      int threads) {                                                                                     \
        u8bit_encode_(s, values, entries, codes, scale, threads);                                                        \
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
