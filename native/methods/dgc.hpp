// Deep gradient compression (Lin 2018): momentum correction, selection above a sampled threshold.
#pragma once

#include "faults.hpp"
#include "isa.hpp"
#include "types.hpp"

namespace grace {

// How the threshold is estimated (grace_dl/kernels/reference/sparse.py, Sampling).
struct Sampling {
    u64 rank, samples, start, stride, word;
    double lower, upper;
    int iterations;
    bool resample;
};

// What dgc_step returns in place of a count.
constexpr u64 not_finite = ~u64(0);

}  // namespace grace

#define GRACE_DECLARE_BOTH(T)                                                                                               \
    GRACE_DECLARE(u64, dgc_encode, const EncoderInput<T>& s, u64 k, const Sampling& sampling, void* values, Dtype dtype,    \
                  u8* index, int threads)                                                                                   \
    /* Correct and select; returns how many. If an element of g reaches `limit` or is not finite: `not_finite`, with m and */ \
    /* v as they were, to rounding. */                                                                                      \
    GRACE_DECLARE(u64, dgc_step, T* m, T* v, const T* g, T mu, bool nesterov, T scale, T limit, size_t n, u64 k,            \
                  const Sampling& sampling, void* values, Dtype dtype, u8* index, int threads)                              \
    /* Subtract from v what was sent, and clear its momentum (m may be null). */                                            \
    GRACE_DECLARE(Fault, dgc_commit, T* v, T* m, u64 d, void* values, Dtype dtype, u64 k, u64 count, const u8* index,       \
                  int threads)                                                                                              \
    GRACE_DECLARE(void, dgc_correct, T* m, T* v, const T* g, T mu, bool nesterov, T scale, size_t n, int threads)           \
    /* Momentum of a parameter that is sent dense, after the average; false, and nothing changed, if that is not finite. */ \
    GRACE_DECLARE(bool, dgc_dense, T* mean, T* m, T mu, bool nesterov, size_t n, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
