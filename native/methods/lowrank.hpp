// Low-rank kernels: products of a matrix M = e + g (n x m, never formed in memory) with few vectors.
//
// Factors are P, n rows of `rank` numbers, and Q transposed, `rank` rows of m numbers; rank <= max_rank.
#pragma once

#include "isa.hpp"
#include "types.hpp"

namespace grace {
constexpr int max_rank = 8;
}

#define GRACE_DECLARE_BOTH(T)                                                                              \
    /* p = (e + g) q^T; false if an element of e + g reaches the root of `most`, and perhaps if many together do. */ \
    GRACE_DECLARE(bool, project_rows, const T* e, const T* g, const T* q, T* p, size_t n, size_t m,        \
                  int rank, T most, int threads)                                                           \
    /* q = p^T (e + g); the same */                                                                        \
    GRACE_DECLARE(bool, project_columns, const T* e, const T* g, const T* p, T* q, size_t n,               \
                  size_t m, int rank, T most, int threads)                                                 \
    /* e = (e + g) - p q, out = p_mean q_mean; either may be null, out may be g */                         \
    GRACE_DECLARE(void, settle_factors, T* e, const T* g, const T* p, const T* q, T* out, const T* p_mean, \
                  const T* q_mean, size_t n, size_t m, int rank, int threads)                              \
    /* Each of `count` matrices of `rank` rows of n numbers gets orthonormal rows of the same span. */     \
    GRACE_DECLARE(void, orthonormal_rows, T* rows, size_t count, int rank, size_t n, int threads)          \
    /* Each row is divided by its largest magnitude; false if a row is zero, which stays so. */            \
    GRACE_DECLARE(bool, unit_rows, T* rows, size_t count, size_t n)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
