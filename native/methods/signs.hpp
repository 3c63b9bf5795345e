// One bit an element: signSGD and its majority vote, EF-signSGD, 1-bit SGD.
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                       \
    GRACE_DECLARE(void, sign_encode, const EncoderInput<T>& s, u64 word, u8* bits, u8* flag, int threads)           \
    GRACE_DECLARE(void, sign_vote, T* out, const u8* const* ballots, size_t count, u64 word, size_t n, int threads) \
    /* With `owed`: owed[x < 0 ? 0 : 1] is first subtracted from x, x becomes v, and `owed` what is sent of it. */  \
    GRACE_DECLARE(void, scaled_sign_encode, const EncoderInput<T>& s, T* owed, u8* bits, T* scale, int threads)     \
    GRACE_DECLARE(void, onebit_encode, const EncoderInput<T>& s, T* owed, u8* bits, T* means, int threads)          \
    /* out += low where a bit is set, high elsewhere. */                                                            \
    GRACE_DECLARE(void, two_add, T* out, const u8* bits, T low, T high, size_t n, int threads)                      \
    /* out = the sum over ranks of what `two_add` adds, over `divisor`. */                                          \
    GRACE_DECLARE(void, two_combine, T* out, const u8* const* bits, const T* lows, const T* highs, size_t ranks,    \
                  T divisor, size_t n, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
