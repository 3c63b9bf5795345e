// TernGrad (Wen 2017): five trits in a byte.
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                              \
    GRACE_DECLARE(void, ternary_encode, const EncoderInput<T>& s, double clip, u64 word, u8* codes, T* scale, int threads) \
    /* Adds into `out`; false if the payload was invalid, which is decoded to something harmless. */                       \
    GRACE_DECLARE(bool, ternary_add, T* out, const u8* codes, T scale, size_t n, int threads)                              \
    /* Overwrites `out` with the sum over ranks, over `divisor`; false as above. */                                        \
    GRACE_DECLARE(bool, ternary_combine, T* out, const u8* const* codes, const T* scales, size_t ranks, T divisor,         \
                  size_t n, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
