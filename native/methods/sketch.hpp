// SketchML (Jiang 2018): quantile buckets, each decoded to its mean.
#pragma once

#include "faults.hpp"
#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                \
    GRACE_DECLARE(void, sketch_encode, const EncoderInput<T>& s, int bits, u8* codes, T* means, int threads) \
    GRACE_DECLARE(Fault, sketch_add, T* out, size_t n, const u8* codes, const T* means, int bits, T alpha, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
