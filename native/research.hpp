// Kernels of INCEPTIONN, SketchML and AdaQ: methods whose payload is shaped by the data. Encoders take a Source; decoders
// check everything before they touch `out`, and return an error number (0: fine), which the Python wrappers name.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.hpp"
#include "source.hpp"

// INCEPTIONN's two steps: `inceptionn_find` writes the tags and, for every `inceptionn_piece` elements, where their part of
// the three classes begins; the caller allocates by the totals, which stand behind the last piece, and
// `inceptionn_emit` fills. Under error feedback the first step leaves v in x.
namespace grace {
constexpr std::size_t inceptionn_piece = 32768;
}

#define GRACE_DECLARE_RESEARCH(T)                                                                                     \
    GRACE_DECLARE(void, inceptionn_find, const Source<T>& s, T bound, std::uint8_t* tags, std::uint64_t* starts,      \
                  int threads)                                                                                        \
    GRACE_DECLARE(void, inceptionn_emit, const Source<T>& s, T bound, const std::uint64_t* starts,                    \
                  std::uint8_t* small, std::int16_t* medium, T* raw, int threads)                                     \
    GRACE_DECLARE(int, inceptionn_add, T* out, std::size_t n, const std::uint8_t* tags, const std::uint8_t* small,    \
                  std::uint64_t smalls, const std::int16_t* medium, std::uint64_t mediums, const T* raw,              \
                  std::uint64_t raws, T bound, T alpha, int threads)                                                  \
    GRACE_DECLARE(void, sketch_encode, const Source<T>& s, int bits, std::uint8_t* codes, T* means, int threads)      \
    GRACE_DECLARE(int, sketch_add, T* out, std::size_t n, const std::uint8_t* codes, const T* means, int bits,        \
                  T alpha, int threads)                                                                               \
    GRACE_DECLARE(void, adaq_encode, const Source<T>& s, double ratio, std::uint64_t slots, T* means,                 \
                  std::int32_t* counts, std::uint8_t* index, std::uint8_t* signs, int threads)                        \
    GRACE_DECLARE(int, adaq_add, T* out, std::uint64_t d, std::uint64_t slots, std::uint64_t positive,                \
                  std::uint64_t negative, const T* means, const std::uint8_t* index, const std::uint8_t* signs,       \
                  T alpha, int threads)

GRACE_DECLARE_RESEARCH(float)
GRACE_DECLARE_RESEARCH(double)
