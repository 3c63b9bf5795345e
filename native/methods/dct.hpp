// The largest coefficients of the cosine transform of chunks of 64 x 64 elements (DeMo).
#pragma once

#include "faults.hpp"
#include "isa.hpp"
#include "types.hpp"

namespace grace {

struct DctLayout {
    size_t kept, columns;              // coefficients sent of a full chunk; of a matrix cut into tiles, its columns, or 0
    size_t rows_of_rest, kept_of_rest;  // of the last chunk if it is not full
    const double* factors;             // 1 / (2 cos((2 i + 1) pi / 2 n)) for n = 2, 4, ... 64
};

struct DctPayload {
    const u8* positions;
    void* values;
    Dtype dtype;
};

}  // namespace grace

GRACE_DECLARE(Fault, dct_check, size_t n, const DctLayout& layout, const DctPayload& payload, int threads)

#define GRACE_DECLARE_BOTH(T)                                                                                            \
    GRACE_DECLARE(void, dct_encode, const EncoderInput<T>& s, const DctLayout& layout, u8* positions, void* values,      \
                  Dtype dtype, int threads)                                                                              \
    /* Adds the sum of several payloads; checks all of them first. */                                                    \
    GRACE_DECLARE(Fault, dct_add, T* out, size_t n, const DctLayout& layout, const DctPayload* payloads, size_t count,   \
                  double alpha, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
