#include <atomic>

#include "dense.hpp"
#include "parallel.hpp"

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
bool finite_(const U* x, std::size_t n, U mask, int threads) {
    std::atomic<bool> finite{true};
    parallel(n, grain, threads, [&, x, mask](std::size_t begin, std::size_t end) {
        if (!finite.load(std::memory_order_relaxed)) return;
        U bad = 0;
        for (std::size_t i = begin; i < end; ++i) bad |= U((x[i] & mask) == mask);
        if (bad) finite.store(false, std::memory_order_relaxed);
    });
    return finite.load();
}

}  // namespace

void axpby(float* x, const float* g, float beta, float gamma, std::size_t n, int threads) {
    axpby_(x, g, beta, gamma, n, threads);
}
void axpby(double* x, const double* g, double beta, double gamma, std::size_t n, int threads) {
    axpby_(x, g, beta, gamma, n, threads);
}

bool all_finite(const void* x, std::size_t n, int size, std::uint64_t mask, int threads) {
    if (size == 2) return finite_(static_cast<const std::uint16_t*>(x), n, std::uint16_t(mask), threads);
    if (size == 4) return finite_(static_cast<const std::uint32_t*>(x), n, std::uint32_t(mask), threads);
    return finite_(static_cast<const std::uint64_t*>(x), n, mask, threads);
}

}  // namespace GRACE_ISA
}  // namespace grace
