// Kernels of the sparsifying methods and of EDEN. Encoders take a Source; decoders check everything before they
// touch `out`, and return an error number (0: fine; see `what_is_wrong` in the Python wrapper).
#pragma once

#include <cstddef>
#include <cstdint>

#include "halves.hpp"
#include "isa.hpp"
#include "source.hpp"

namespace grace {

// How DGC estimates its threshold (grace_dl/kernels/reference/sparse.py, Sampling).
struct Sampling {
    std::uint64_t rank, samples, start, stride, word;
    double lower, upper;
    int iterations;
    bool resample;
};

// What dgc_step returns in place of a count.
constexpr std::uint64_t not_finite = ~std::uint64_t(0);

}  // namespace grace

#define GRACE_DECLARE_SPARSE(T)                                                                                       \
    GRACE_DECLARE(void, topk_encode, const Source<T>& s, std::uint64_t k, void* values, Kind kind,                    \
                  std::uint8_t* index, int threads)                                                                   \
    GRACE_DECLARE(std::uint64_t, dgc_encode, const Source<T>& s, std::uint64_t k, const Sampling& sampling,           \
                  void* values, Kind kind, std::uint8_t* index, int threads)                                          \
    GRACE_DECLARE(std::uint64_t, dgc_step, T* m, T* v, const T* g, T mu, bool nesterov, T scale, std::size_t n,       \
                  std::uint64_t k, const Sampling& sampling, void* values, Kind kind, std::uint8_t* index,            \
                  int threads)                                                                                        \
    GRACE_DECLARE(std::uint64_t, threshold_find, const Source<T>& s, T threshold, int threads)                        \
    GRACE_DECLARE(bool, threshold_emit, const Source<T>& s, T threshold, std::uint64_t k, void* values, Kind kind,    \
                  std::uint8_t* index, int threads)                                                                   \
    GRACE_DECLARE(int, sparse_add, T* out, std::uint64_t d, void* values, Kind kind, std::uint64_t k,                 \
                  std::uint64_t count, const std::uint8_t* index, T alpha, int threads)                               \
    GRACE_DECLARE(int, dgc_commit, T* v, T* m, std::uint64_t d, void* values, Kind kind, std::uint64_t k,             \
                  std::uint64_t count, const std::uint8_t* index, int threads)                                        \
    GRACE_DECLARE(int, sparse_zero, T* out, std::uint64_t d, std::uint64_t k, std::uint64_t count,                    \
                  const std::uint8_t* index, int threads)                                                             \
    GRACE_DECLARE(void, randomk_encode, const Source<T>& s, std::uint64_t word, bool scaled, T* values,               \
                  std::uint64_t k, int threads)                                                                       \
    GRACE_DECLARE(void, randomk_add, T* out, std::uint64_t d, const T* values, std::uint64_t k, std::uint64_t word,   \
                  T alpha, int threads)                                                                               \
    GRACE_DECLARE(void, dgc_correct, T* m, T* v, const T* g, T mu, bool nesterov, T scale, std::size_t n, int threads) \
    GRACE_DECLARE(bool, dgc_dense, T* mean, T* m, T mu, bool nesterov, std::size_t n, int threads)                    \
    GRACE_DECLARE(double, square_sum, const T* x, std::size_t n, int threads)                                         \
    GRACE_DECLARE(void, eden_encode, const Source<T>& s, int bits, const double* centroids, std::uint64_t word,       \
                  std::uint8_t* codes, T* scales, int threads)                                                        \
    GRACE_DECLARE(bool, eden_add, T* out, std::size_t n, const std::uint8_t* codes, const T* scales, int bits,        \
                  const double* centroids, std::uint64_t word, T alpha, int threads)

GRACE_DECLARE_SPARSE(float)
GRACE_DECLARE_SPARSE(double)

GRACE_DECLARE(void, clear, void* data, std::size_t bytes, int threads)
GRACE_DECLARE(void, encode_indices, const std::int64_t* indices, std::uint64_t count, std::uint64_t d,
              std::uint64_t k, std::uint8_t* out)
GRACE_DECLARE(int, decode_indices, const std::uint8_t* index, std::uint64_t d, std::uint64_t k, std::uint64_t count,
              std::int64_t* out, int threads)
