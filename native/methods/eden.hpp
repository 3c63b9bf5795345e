// EDEN (Vargaftik 2022): rotation, then 1 to 4 bits a coordinate.
#pragma once

#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                            \
    /* Scales of least squares, or unbiased ones. */                                                                     \
    GRACE_DECLARE(void, eden_encode, const EncoderInput<T>& s, int bits, const double* centroids, bool least_squares,    \
                  u64 word, u8* codes, T* scales, int threads)                                                           \
    /* False, and `out` untouched, if a scale is negative or not finite. */                                              \
    GRACE_DECLARE(bool, eden_add, T* out, size_t n, const u8* codes, const T* scales, int bits, const double* centroids, \
                  u64 word, T alpha, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
