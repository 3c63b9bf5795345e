// Random-k. The indices are drawn from `word` on both ends.
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                           \
    GRACE_DECLARE(void, randomk_encode, const EncoderInput<T>& s, u64 word, bool scaled, T* values, u64 k, int threads) \
    GRACE_DECLARE(void, randomk_add, T* out, u64 d, const T* values, u64 k, u64 word, T alpha, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
