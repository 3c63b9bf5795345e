// Loops over the thread pool.
#pragma once

#include "threads.hpp"

namespace grace {
namespace GRACE_ISA {

// Waking a helper costs about what 64k elements cost, so smaller inputs stay on the calling thread.
constexpr std::size_t serial_below = 65536;

// body(0) ... body(count - 1), on at most `threads` threads.
template <class Body>
inline void each(std::size_t count, int threads, Body body) {
    run(count, threads, [](void* raw, std::size_t index) { (*static_cast<Body*>(raw))(index); }, &body);
}

// body(begin, end) over [0, n) in pieces of `grain` elements, on at most `threads` threads.
template <class Body>
inline void each_piece(std::size_t n, std::size_t grain, int threads, Body body) {
    each((n + grain - 1) / grain, threads, [&body, n, grain](std::size_t index) {
        const std::size_t begin = index * grain;
        body(begin, begin + grain < n ? begin + grain : n);
    });
}

// The same, on one thread if there are few elements.
template <class Body>
inline void parallel(std::size_t n, std::size_t grain, int threads, Body body) {
    if (n) each_piece(n, grain, n < serial_below ? 1 : threads, body);
}

// A tensor cut into runs of whole tiles, several per thread so that a late thread delays the others little.
struct Chunks {
    std::size_t n, count = 1, length;

    Chunks(std::size_t elements, int threads) : n(elements) {
        if (threads > 64) threads = 64;
        if (n >= serial_below && threads > 1) count = std::size_t(threads) * 4;
        length = (n + count - 1) / count;
        constexpr std::size_t most = std::size_t(1) << 31;  // offsets within a chunk fit 32 bits
        if (length > most) length = most;
        length = (length + 1023) / 1024 * 1024;
        if (length == 0) length = 1024;
        count = (n + length - 1) / length;
        if (count == 0) count = 1;
    }

    std::size_t begin(std::size_t c) const { return c * length; }
    std::size_t end(std::size_t c) const { return (c + 1) * length < n ? (c + 1) * length : n; }
};

}  // namespace GRACE_ISA
}  // namespace grace
