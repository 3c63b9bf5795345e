// Stochastic rounding to evenly spaced levels, one scale a block (int8, int4, QSGD).
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                          \
    GRACE_DECLARE(void, block_encode, const EncoderInput<T>& s, size_t block, int levels, int bits, bool l2, u64 word, \
                  u8* codes, T* scales, int threads)                                                                   \
    /* Adds into `out`; false if the payload was invalid, which is decoded to something harmless. */                   \
    GRACE_DECLARE(bool, block_add, T* out, const u8* codes, const T* scales, size_t n, size_t block, int levels,       \
                  int bits, int threads)                                                                               \
    /* Overwrites `out` with the sum over ranks, over `divisor`; false as above. */                                    \
    GRACE_DECLARE(bool, block_combine, T* out, const u8* const* codes, const T* const* scales, size_t ranks,           \
                  T divisor, size_t n, size_t block, int levels, int bits, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
