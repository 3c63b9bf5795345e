// Top-k, and all elements above a fixed threshold.
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                               \
    GRACE_DECLARE(void, topk_encode, const EncoderInput<T>& s, u64 k, void* values, Dtype dtype, u8* index, int threads)    \
    /* A threshold's payload is as long as there are hits: the caller allocates between finding and emitting. */            \
    GRACE_DECLARE(u64, threshold_find, const EncoderInput<T>& s, T threshold, int threads)                                  \
    GRACE_DECLARE(bool, threshold_emit, const EncoderInput<T>& s, T threshold, u64 k, void* values, Dtype dtype, u8* index, \
                  int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
