// AdaQ (Dryden 2016): the largest share of the positive and of the negative elements, each sent as its mean.
#pragma once

#include "faults.hpp"
#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                             \
    GRACE_DECLARE(void, adaq_encode, const EncoderInput<T>& s, double ratio, u64 slots, T* means, std::int32_t* counts,   \
                  u8* index, u8* signs, int threads)                                                                      \
    GRACE_DECLARE(Fault, adaq_add, T* out, u64 d, u64 slots, u64 positive, u64 negative, const T* means, const u8* index, \
                  const u8* signs, T alpha, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH

// Every check of `adaq_add`.
GRACE_DECLARE(Fault, adaq_check, u64 d, u64 slots, u64 positive, u64 negative, const u8* index, const u8* signs, int threads)
