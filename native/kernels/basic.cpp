// Operations on dense tensors that many methods need.
#include "methods/basic.hpp"

#include <atomic>

#include "encoder_input.hpp"
#include "nontemporal.hpp"
#include "parallel.hpp"
#include "reduce.hpp"
#include "scratch.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

struct BasicBuffers {
    ScratchBuffer block_sums;
};

template <class T>
void axpby_(T* x, const T* g, T beta, T gamma, std::size_t n, int threads) {
    parallel(n, grain, threads, [=](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) x[i] = beta * x[i] + gamma * g[i];
    });
}

template <class U>
bool finite_(const U* x, U* copy, std::size_t n, U mask, int threads) {
    std::atomic<bool> finite{true};
    const bool nontemporal = n * sizeof(U) >= nontemporal_above;
    parallel(n, grain, threads, [&, x, copy, mask, nontemporal](std::size_t begin, std::size_t end) {
        if (!finite.load(std::memory_order_relaxed)) return;
        U bad = 0;
        for (std::size_t i = begin; i < end; i += tile) {
            const std::size_t stop = end - i < tile ? end : i + tile;
            for (std::size_t j = i; j < stop; ++j) bad |= U((x[j] & mask) == mask);
            if (copy) write(copy, i, stop, nontemporal, [x](std::size_t j) { return x[j]; });
        }
        if (bad) finite.store(false, std::memory_order_relaxed);
    });
    return finite.load();
}

template <class T>
void average_(T* out, const T* const* parts, std::size_t count, T divisor, std::size_t n, int threads) {
    const bool nontemporal = n * sizeof(T) >= nontemporal_above;
    parallel(n, grain, threads, [=](std::size_t begin, std::size_t end) {
        const T *first = parts[0], *second = parts[count > 1];
        if (count == 1) return write(out, begin, end, nontemporal, [=](std::size_t i) { return first[i] / divisor; });
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

template <class T>
double square_sum_(const T* x, size_t n, int threads) {
    const size_t blocks = (n + tree_block - 1) / tree_block;
    double* sums = scratch<BasicBuffers>().block_sums.get<double>(blocks);
    parallel(blocks, 64, n < serial_below ? 1 : threads, [=](size_t begin, size_t end) {
        for (size_t b = begin; b < end; ++b) {
            const T* y = x + b * tree_block;
            const size_t m = n - b * tree_block < tree_block ? n - b * tree_block : tree_block;
            sums[b] = tree<tree_block>(m, [=](size_t i) { return double(y[i]) * double(y[i]); });
        }
    });
    return tree_sum(sums, blocks);
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                             \
    void axpby(T* x, const T* g, T beta, T gamma, size_t n, int threads) { axpby_(x, g, beta, gamma, n, threads); } \
    void average(T* out, const T* const* parts, size_t count, T divisor, size_t n, int threads) {                   \
        average_(out, parts, count, divisor, n, threads);                                                           \
    }                                                                                                               \
    double square_sum(const T* x, size_t n, int threads) { return square_sum_(x, n, threads); }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

bool all_finite(const void* x, void* copy, size_t n, int size, u64 mask, int threads) {
    if (size == 2) return finite_(static_cast<const u16*>(x), static_cast<u16*>(copy), n, u16(mask), threads);
    if (size == 4) return finite_(static_cast<const u32*>(x), static_cast<u32*>(copy), n, u32(mask), threads);
    return finite_(static_cast<const u64*>(x), static_cast<u64*>(copy), n, mask, threads);
}

void clear(void* data, size_t bytes, int threads) {
    const bool nontemporal = bytes >= nontemporal_above;
    parallel(bytes, size_t(1) << 20, threads, [=](size_t begin, size_t end) {
        write(static_cast<u8*>(data), begin, end, nontemporal, [](size_t) { return u8(0); });
    });
}

}  // namespace GRACE_ISA
}  // namespace grace
