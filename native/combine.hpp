// Decoding the payloads of all ranks for one tensor, in one pass over its memory.
#pragma once

#include <atomic>
#include <cstring>

#include "parallel.hpp"
#include "types.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// Asks for codes that are read soon after `bytes` of them. Payloads take turns after every piece, too soon for the
// processor to notice on its own that each is read in order.
inline void prefetch_codes(const u8* codes, std::size_t bytes) {
    constexpr std::size_t ahead = 4096, line = 64;
    for (std::size_t i = 0; i < bytes; i += line) __builtin_prefetch(codes + ahead + i);
}

// add(begin, end), which returns whether the payload is valid there, over [0, n) in pieces of `length` elements.
template <class Add>
inline bool add_pieces(std::size_t n, std::size_t length, int threads, Add add) {
    std::atomic<bool> valid{true};
    parallel(n, length, threads, [&](std::size_t begin, std::size_t end) {
        if (!add(begin, end)) valid.store(false, std::memory_order_relaxed);
    });
    return valid.load();
}

// out = the sum over ranks, in their order, of what add(rank, begin, end) adds, over `divisor`. A piece stays in the
// cache while all ranks are added to it.
template <class T, class Add>
inline bool combine_pieces(T* out, std::size_t n, std::size_t length, std::size_t ranks, T divisor, int threads, Add add) {
    // Every rank counts, not only every element: a second thread pays earlier than for one payload.
    const int width = n * (ranks ? ranks : 1) < serial_below ? 1 : threads;
    std::atomic<bool> valid{true};
    each_piece(n, length, width, [&](std::size_t begin, std::size_t end) {
        std::memset(out + begin, 0, (end - begin) * sizeof(T));
        bool good = true;
        for (std::size_t rank = 0; rank < ranks; ++rank) good &= add(rank, begin, end);
        if (divisor != T(1))
            for (std::size_t i = begin; i < end; ++i) out[i] /= divisor;
        if (!good) valid.store(false, std::memory_order_relaxed);
    });
    return valid.load();
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
