#include <atomic>

#include "dense.hpp"
#include "parallel.hpp"
#include "stream.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

template <class T>
void axpby_(T* x, const T* g, T beta, T gamma, std::size_t n, int threads) {
    parallel(n, grain, threads, [=](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) x[i] = beta * x[i] + gamma * g[i];
    });
}

template <class U>
bool finite_(const U* x, U* copy, std::size_t n, U mask, int threads) {
    std::atomic<bool> finite{true};
    const bool past = n * sizeof(U) >= streamed_above;
    parallel(n, grain, threads, [&, x, copy, mask, past](std::size_t begin, std::size_t end) {
        if (!finite.load(std::memory_order_relaxed)) return;
        U bad = 0;
        for (std::size_t i = begin; i < end; i += tile) {
            const std::size_t stop = end - i < tile ? end : i + tile;
            for (std::size_t j = i; j < stop; ++j) bad |= U((x[j] & mask) == mask);
            if (copy) write(copy, i, stop, past, [x](std::size_t j) { return x[j]; });
        }
        if (bad) finite.store(false, std::memory_order_relaxed);
    });
    return finite.load();
}

template <class T>
void average_(T* out, const T* const* parts, std::size_t count, T divisor, std::size_t n, int threads) {
    const bool past = n * sizeof(T) >= streamed_above;
    parallel(n, grain, threads, [=](std::size_t begin, std::size_t end) {
        const T *first = parts[0], *second = parts[count > 1];
        if (count == 1) return write(out, begin, end, past, [=](std::size_t i) { return first[i] / divisor; });
        T sums[tile];
        for (std::size_t i = begin; i < end; i += tile) {
            const std::size_t m = end - i < tile ? end - i : tile;
            for (std::size_t j = 0; j < m; ++j) sums[j] = first[i + j] + second[i + j];
            for (std::size_t r = 2; r < count; ++r)
                for (std::size_t j = 0; j < m; ++j) sums[j] += parts[r][i + j];
            for (std::size_t j = 0; j < m; ++j) out[i + j] = sums[j] / divisor;
        }
    });
}

}  // namespace

void axpby(float* x, const float* g, float beta, float gamma, std::size_t n, int threads) {
    axpby_(x, g, beta, gamma, n, threads);
}
void axpby(double* x, const double* g, double beta, double gamma, std::size_t n, int threads) {
    axpby_(x, g, beta, gamma, n, threads);
}

void average(float* out, const float* const* parts, std::size_t count, float divisor, std::size_t n, int threads) {
    average_(out, parts, count, divisor, n, threads);
}
void average(double* out, const double* const* parts, std::size_t count, double divisor, std::size_t n, int threads) {
    average_(out, parts, count, divisor, n, threads);
}

bool all_finite(const void* x, void* copy, std::size_t n, int size, std::uint64_t mask, int threads) {
    using std::uint16_t, std::uint32_t, std::uint64_t;
    if (size == 2)
        return finite_(static_cast<const uint16_t*>(x), static_cast<uint16_t*>(copy), n, uint16_t(mask), threads);
    if (size == 4)
        return finite_(static_cast<const uint32_t*>(x), static_cast<uint32_t*>(copy), n, uint32_t(mask), threads);
    return finite_(static_cast<const uint64_t*>(x), static_cast<uint64_t*>(copy), n, mask, threads);
}

}  // namespace GRACE_ISA
}  // namespace grace
