// Operations on dense tensors that many methods need.
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                   \
    GRACE_DECLARE(void, axpby, T* x, const T* g, T beta, T gamma, size_t n, int threads)                        \
    GRACE_DECLARE(void, average, T* out, const T* const* parts, size_t count, T divisor, size_t n, int threads) \
    GRACE_DECLARE(bool, divide, T* x, T divisor, size_t n, int threads)                                         \
    GRACE_DECLARE(bool, scales_within, const T* scales, T most, size_t n)                                       \
    GRACE_DECLARE(double, square_sum, const T* x, size_t n, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH

// Whether the exponent bits of all elements, selected by `mask`, are below `least`: with least = mask, whether all are finite.
// Elements of `size` bytes are copied to `copy` on the way, if given; if the answer is no, some may not be.
GRACE_DECLARE(bool, exponents_below, const void* x, void* copy, size_t n, int size, u64 mask, u64 least, int threads)

// The largest magnitude of n elements of `size` bytes, as its bits.
GRACE_DECLARE(u64, largest, const void* x, size_t n, int size, int threads)

// Whether n packed codes are at most `most` in the bits of `mask`.
GRACE_DECLARE(bool, codes_within, const u8* codes, size_t n, int bits, u32 mask, u32 most, int threads)

GRACE_DECLARE(void, clear, void* data, size_t bytes, int threads)
