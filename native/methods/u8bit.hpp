// 8-bit codes of a dynamic tree (Dettmers 2016), given as a table of magnitudes.
#pragma once

#include "isa.hpp"
#include "types.hpp"

// `entries`: of the search, by cell (kernels/u8bit.cpp).
#define GRACE_DECLARE_BOTH(T, Entry)                                                                                \
    GRACE_DECLARE(void, u8bit_encode, const EncoderInput<T>& s, const T* values, const Entry* entries, u8* codes,   \
                  T* scale, int threads)                                                                            \
    GRACE_DECLARE(void, u8bit_add, T* out, const u8* codes, T scale, const T* values, size_t n, int threads)        \
    /* Overwrites `out` with the sum over ranks, over `divisor`. */                                                 \
    GRACE_DECLARE(void, u8bit_combine, T* out, const u8* const* codes, const T* scales, const T* values,            \
                  size_t ranks, T divisor, size_t n, int threads)

GRACE_DECLARE_BOTH(float, std::int32_t)
GRACE_DECLARE_BOTH(double, std::int64_t)
#undef GRACE_DECLARE_BOTH
