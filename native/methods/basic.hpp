// Operations on dense tensors that many methods need.
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                   \
    GRACE_DECLARE(void, axpby, T* x, const T* g, T beta, T gamma, size_t n, int threads)                        \
    GRACE_DECLARE(void, average, T* out, const T* const* parts, size_t count, T divisor, size_t n, int threads) \
    GRACE_DECLARE(double, square_sum, const T* x, size_t n, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH

// Whether no element has all exponent bits set; `mask` holds those bits of an element of `size` bytes. Elements are copied
// to `copy` on the way, if given; if one is not finite, some may not be.
GRACE_DECLARE(bool, all_finite, const void* x, void* copy, size_t n, int size, u64 mask, int threads)

GRACE_DECLARE(void, clear, void* data, size_t bytes, int threads)
