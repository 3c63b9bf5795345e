// Dense and quantising kernels. Encoders take a Source; decoders add into `out` and return whether the payload was
// valid (an invalid one is decoded to something harmless).
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.hpp"
#include "source.hpp"

namespace grace {
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
}  // namespace grace

#define GRACE_DECLARE_DENSE(T)                                                                                        \
    GRACE_DECLARE(void, axpby, T* x, const T* g, T beta, T gamma, std::size_t n, int threads)                         \
    GRACE_DECLARE(void, average, T* out, const T* const* parts, std::size_t count, T divisor, std::size_t n,          \
                  int threads)                                                                                        \
    GRACE_DECLARE(void, cast_encode, const Source<T>& s, bool brain, T scale, T unscale, T limit, u16* out,           \
                  int threads)                                                                                        \
    GRACE_DECLARE(void, cast_add, T* out, const u16* payload, bool brain, std::size_t n, int threads)                 \
    GRACE_DECLARE(void, fp8_encode, const Source<T>& s, std::size_t block, u8* codes, T* scales, int threads)         \
    GRACE_DECLARE(bool, fp8_add, T* out, const u8* codes, const T* scales, std::size_t n, std::size_t block,          \
                  int threads)                                                                                        \
    GRACE_DECLARE(void, block_encode, const Source<T>& s, std::size_t block, int levels, int bits, bool l2, u64 word, \
                  u8* codes, T* scales, int threads)                                                                  \
    GRACE_DECLARE(bool, block_add, T* out, const u8* codes, const T* scales, std::size_t n, std::size_t block,        \
                  int levels, int bits, int threads)                                                                  \
    GRACE_DECLARE(void, u8bit_encode, const Source<T>& s, const T* values, const T* middle, const u8* starts,         \
                  u8* codes, T* scale, int threads)                                                                   \
    GRACE_DECLARE(void, u8bit_add, T* out, const u8* codes, T scale, const T* values, std::size_t n, int threads)     \
    GRACE_DECLARE(void, natural_encode, const Source<T>& s, u64 word, u8* codes, std::int16_t* bases, int threads)    \
    GRACE_DECLARE(void, natural_add, T* out, const u8* codes, const std::int16_t* bases, std::size_t n, int threads)  \
    GRACE_DECLARE(void, ternary_encode, const Source<T>& s, double clip, u64 word, u8* codes, T* scale, int threads)  \
    GRACE_DECLARE(bool, ternary_add, T* out, const u8* codes, T scale, std::size_t n, int threads)                    \
    GRACE_DECLARE(void, sign_encode, const Source<T>& s, u64 word, u8* bits, u8* flag, int threads)                   \
    GRACE_DECLARE(void, two_add, T* out, const u8* bits, T low, T high, std::size_t n, int threads)                   \
    GRACE_DECLARE(void, sign_vote, T* out, const u8* const* ballots, std::size_t count, u64 word, std::size_t n,      \
                  int threads)                                                                                        \
    /* With `owed`: owed[x < 0 ? 0 : 1] leaves x first, x becomes v, and `owed` what is sent of it. */                \
    GRACE_DECLARE(void, scaled_sign_encode, const Source<T>& s, T* owed, u8* bits, T* scale, int threads)             \
    GRACE_DECLARE(void, onebit_encode, const Source<T>& s, T* owed, u8* bits, T* means, int threads)

GRACE_DECLARE_DENSE(float)
GRACE_DECLARE_DENSE(double)

// Whether no element has all exponent bits set; `mask` holds those bits of an element of `size` bytes. Elements go to `copy`
// on the way, if given; if one is not finite, some may not.
GRACE_DECLARE(bool, all_finite, const void* x, void* copy, std::size_t n, int size, std::uint64_t mask, int threads)
