// Natural compression (Horvath 2019): stochastic rounding to powers of two.
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                            \
    GRACE_DECLARE(void, natural_encode, const EncoderInput<T>& s, u64 word, u8* codes, std::int16_t* bases, int threads) \
    GRACE_DECLARE(void, natural_add, T* out, const u8* codes, const std::int16_t* bases, size_t n, int threads)          \
    /* Overwrites `out` with the sum over ranks, over `divisor`. */                                                      \
    GRACE_DECLARE(void, natural_combine, T* out, const u8* const* codes, const std::int16_t* const* bases,               \
                  size_t ranks, T divisor, size_t n, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
