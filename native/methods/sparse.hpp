// Payloads of the sparsifying methods: values at coded indices. Decoders check everything before they touch `out`.
#pragma once

#include "faults.hpp"
#include "isa.hpp"
#include "types.hpp"

#define GRACE_DECLARE_BOTH(T)                                                                                     \
    GRACE_DECLARE(Fault, sparse_add, T* out, u64 d, void* values, Dtype dtype, u64 k, u64 count, const u8* index, \
                  T alpha, int threads)                                                                           \
    /* Overwrites `out` with alpha times the sum over ranks; after a fault its contents are unspecified. */       \
    GRACE_DECLARE(Fault, sparse_combine, T* out, u64 d, const SparsePayload* sent, size_t ranks, T alpha,         \
                  int threads)                                                                                    \
    GRACE_DECLARE(Fault, sparse_zero, T* out, u64 d, u64 k, u64 count, const u8* index, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH

// Every check of `sparse_add`, and that the values are finite.
GRACE_DECLARE(Fault, sparse_check, u64 d, void* values, Dtype dtype, u64 k, u64 count, const u8* index, int threads)
GRACE_DECLARE(void, encode_indices, const std::int64_t* indices, u64 count, u64 d, u64 k, u8* out)
GRACE_DECLARE(Fault, decode_indices, const u8* index, u64 d, u64 k, u64 count, std::int64_t* out, int threads)
