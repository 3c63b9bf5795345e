// Dense and quantising kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.hpp"
#include "source.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                   \
    GRACE_DECLARE(void, axpby, T* x, const T* g, T beta, T gamma, std::size_t n, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)

// Whether no element has all exponent bits set; `mask` holds those bits of an element of `size` bytes.
GRACE_DECLARE(bool, all_finite, const void* x, std::size_t n, int size, std::uint64_t mask, int threads)
