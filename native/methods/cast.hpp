// Casts to float16 and bfloat16, and e4m3 (fp8) with a scale per block.
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                      \
    GRACE_DECLARE(void, cast_encode, const EncoderInput<T>& s, bool bfloat, T scale, T unscale, T limit, u16* out, \
                  int threads)                                                                                     \
    GRACE_DECLARE(void, cast_add, T* out, const u16* payload, bool bfloat, size_t n, int threads)                  \
    GRACE_DECLARE(void, fp8_encode, const EncoderInput<T>& s, size_t block, u8* codes, T* scales, int threads)     \
    /* Adds into `out`; false if the payload was invalid, which is decoded to something harmless. */               \
    GRACE_DECLARE(bool, fp8_add, T* out, const u8* codes, const T* scales, size_t n, size_t block, int threads)    \
    /* Overwrites `out` with the sum over ranks, over `divisor`; false as above. */                                \
    GRACE_DECLARE(bool, fp8_combine, T* out, const u8* const* codes, const T* const* scales, size_t ranks,         \
                  T divisor, size_t n, size_t block, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
