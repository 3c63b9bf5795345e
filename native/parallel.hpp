// parallel(n, grain, threads, body): body(begin, end) over [0, n) in pieces of `grain` elements.
#pragma once

#include "threads.hpp"

namespace grace {
namespace GRACE_ISA {

// Waking a helper costs about what 64k elements cost, so smaller inputs stay on the calling thread.
constexpr std::size_t serial_below = 65536;

template <class Body>
inline void parallel(std::size_t n, std::size_t grain, int threads, Body body) {
    if (n == 0) return;
    struct Context {
        Body* body;
        std::size_t n, grain;
    } context{&body, n, grain};
    Task task = [](void* raw, std::size_t index) {
        auto& c = *static_cast<Context*>(raw);
        std::size_t begin = index * c.grain;
        std::size_t end = begin + c.grain < c.n ? begin + c.grain : c.n;
        (*c.body)(begin, end);
    };
    std::size_t pieces = (n + grain - 1) / grain;
    run(pieces, n < serial_below ? 1 : threads, task, &context);
}

}  // namespace GRACE_ISA
}  // namespace grace
