// INCEPTIONN (Li 2018): elements in four classes by exponent, whose sizes depend on the data.
#pragma once

#include "faults.hpp"
#include "isa.hpp"
#include "types.hpp"

namespace grace {
constexpr size_t inceptionn_piece = 32768;
}

#define GRACE_DECLARE_BOTH(T)                                                                                                 \
    /* Write the tags and, for every `inceptionn_piece` elements, where their part of the three classes begins; the totals */ \
    /* follow, by which the caller allocates. Under error feedback v is left in x. */                                         \
    GRACE_DECLARE(void, inceptionn_find, const EncoderInput<T>& s, T bound, u8* tags, u64* starts, int threads)               \
    GRACE_DECLARE(void, inceptionn_emit, const EncoderInput<T>& s, T bound, const u64* starts, u8* small,                     \
                  std::int16_t* medium, T* raw, int threads)                                                                  \
    GRACE_DECLARE(Fault, inceptionn_add, T* out, size_t n, const u8* tags, const u8* small, u64 smalls,                       \
                  const std::int16_t* medium, u64 mediums, const T* raw, u64 raws, T bound, T alpha, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH

// Every check of `inceptionn_add`.
GRACE_DECLARE(Fault, inceptionn_check, size_t n, const u8* tags, u64 smalls, u64 mediums, u64 raws, int threads)
