// Operations on dense tensors that many methods need.
#include "methods/basic.hpp"

#include <atomic>

#include "encoder_input.hpp"
#include "nontemporal.hpp"
#include "packing.hpp"
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

// Whether all exponents are below `least`. Adding `bias` sets an element's highest bit where its exponent is not.
template <class U>
bool below_(const U* x, U* copy, std::size_t n, U mask, U least, int threads) {
    constexpr U highest = U(U(1) << (8 * sizeof(U) - 1));
    const U bias = U(highest - least);
    std::atomic<bool> finite{true};
    const bool nontemporal = n * sizeof(U) >= nontemporal_above;
    parallel(n, grain, threads, [&, x, copy, mask, bias, nontemporal](std::size_t begin, std::size_t end) {
        if (!finite.load(std::memory_order_relaxed)) return;
        U bad = 0;
        for (std::size_t i = begin; i < end; i += tile) {
            const std::size_t stop = end - i < tile ? end : i + tile;
            for (std::size_t j = i; j < stop; ++j) bad |= U((x[j] & mask) + bias);
            if (copy) write(copy, i, stop, nontemporal, [x](std::size_t j) { return x[j]; });
        }
        if (bad & highest) finite.store(false, std::memory_order_relaxed);
    });
    return finite.load();
}

// The magnitude of the largest element, as its bits: these sort like numbers, and NaN above infinity.
template <class U>
u64 largest_(const U* x, std::size_t n, int threads) {
    std::atomic<u64> most{0};
    parallel(n, grain, threads, [&, x](std::size_t begin, std::size_t end) {
        constexpr U magnitude = U(~U(0)) >> 1;
        U top = 0;
        for (std::size_t i = begin; i < end; ++i) {
            const U one = x[i] & magnitude;
            top = one > top ? one : top;
        }
        for (u64 seen = most.load(); seen < top && !most.compare_exchange_weak(seen, top);) {}
    });
    return most.load();
}

template <class T>
bool divide_(T* x, T divisor, std::size_t n, int threads) {
    using U = typename Bits<T>::type;
    constexpr U infinity = U(sizeof(T) == 4 ? 0x7f800000 : 0x7ff0000000000000);
    std::atomic<bool> finite{true};
    parallel(n, grain, threads, [&, x](std::size_t begin, std::size_t end) {
        U bad = 0;
        for (std::size_t i = begin; i < end; ++i) {
            x[i] /= divisor;
            bad |= U((cast_bits<U>(x[i]) & infinity) == infinity);
        }
        if (bad) finite.store(false, std::memory_order_relaxed);
    });
    return finite.load();
}

template <class T>
bool scales_within_(const T* scales, T most, std::size_t n) {
    bool good = true;
    for (std::size_t i = 0; i < n; ++i) good &= scales[i] >= T(0) && scales[i] <= most;
    return good;
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
    bool divide(T* x, T divisor, size_t n, int threads) { return divide_(x, divisor, n, threads); }                 \
    bool scales_within(const T* scales, T most, size_t n) { return scales_within_(scales, most, n); }               \
    double square_sum(const T* x, size_t n, int threads) { return square_sum_(x, n, threads); }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

bool exponents_below(const void* x, void* copy, size_t n, int size, u64 mask, u64 least, int threads) {
    if (size == 2) return below_(static_cast<const u16*>(x), static_cast<u16*>(copy), n, u16(mask), u16(least), threads);
    if (size == 4) return below_(static_cast<const u32*>(x), static_cast<u32*>(copy), n, u32(mask), u32(least), threads);
    return below_(static_cast<const u64*>(x), static_cast<u64*>(copy), n, mask, least, threads);
}

u64 largest(const void* x, size_t n, int size, int threads) {
    if (size == 2) return largest_(static_cast<const u16*>(x), n, threads);
    if (size == 4) return largest_(static_cast<const u32*>(x), n, threads);
    return largest_(static_cast<const u64*>(x), n, threads);
}

bool codes_within(const u8* codes, size_t n, int bits, u32 mask, u32 most, int threads) {
    std::atomic<bool> valid{true};
    const u8* last = codes + (n * size_t(bits) + 7) / 8;
    // Pieces begin at whole bytes, since `grain` is a multiple of 8.
    parallel(n, grain, threads, [=, &valid](size_t begin, size_t end) {
        bool good = true;
        if (bits == 8) {
            u8 top = 0;
            for (size_t i = begin; i < end; ++i) {
                const u8 code = u8(codes[i] & mask);
                top = code > top ? code : top;
            }
            good = top <= most;
        } else {
            std::int32_t some[tile];
            BitReader reader(codes + begin * size_t(bits) / 8, last, bits);
            for (size_t i = begin; i < end; i += tile) {
                const size_t m = end - i < tile ? end - i : tile;
                reader.get(some, m);
                u32 top = 0;
                for (size_t j = 0; j < m; ++j) {
                    const u32 code = u32(some[j]) & mask;
                    top = code > top ? code : top;
                }
                good &= top <= most;
            }
        }
        if (!good) valid.store(false, std::memory_order_relaxed);
    });
    return valid.load();
}

void clear(void* data, size_t bytes, int threads) {
    const bool nontemporal = bytes >= nontemporal_above;
    parallel(bytes, size_t(1) << 20, threads, [=](size_t begin, size_t end) {
        write(static_cast<u8*>(data), begin, end, nontemporal, [](size_t) { return u8(0); });
    });
}

}  // namespace GRACE_ISA
}  // namespace grace
