// Counter-based randomness: element i's draw is a pure function of a 64-bit word and i (the same in Python:
// grace_dl/kernels/reference/randomness.py).
#pragma once

#include <cstddef>
#include <cstdint>

namespace grace {
namespace GRACE_ISA {

static inline std::uint32_t mix(std::uint32_t h) {
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    h ^= h >> 16;
    return h;
}

// The progression that is hashed, from element `begin` on: start and stride (grace_dl/kernels/reference/randomness.py).
struct Progression {
    std::uint32_t start, stride;
    Progression(std::uint64_t word, std::uint64_t begin)
        : start(std::uint32_t(word)), stride(std::uint32_t(word >> 32) | 1u) {
        start += std::uint32_t(begin) * stride + std::uint32_t(begin >> 32) * 0x9E3779B9u;
    }
    // The draw of the first element; the progression then begins at the second.
    std::uint32_t next() {
        const std::uint32_t h = mix(start);
        start += stride;
        return h;
    }
};

// body(progression, from, count) for the elements begin..begin+n, in pieces whose index has one upper half.
template <class Body>
static inline void progress(std::uint64_t word, std::uint64_t begin, std::size_t n, Body body) {
    for (std::size_t done = 0; done < n;) {
        // A 32-bit counter: a 64-bit one would be narrowed in every vector. Pieces keep it from wrapping.
        std::uint64_t left = (std::uint64_t(1) << 32) - ((begin + done) & 0xffffffffu);
        std::size_t m = left < n - done ? std::size_t(left) : n - done;
        m = m < (1u << 30) ? m : (1u << 30);
        body(Progression(word, begin + done), done, m);
        done += m;
    }
}

static inline std::uint32_t draw(std::uint64_t word, std::uint64_t i) { return Progression(word, i).next(); }

// Uniform among 0 ... limit - 1.
static inline std::size_t draw_below(std::uint64_t word, std::uint64_t i, std::size_t limit) {
    return std::size_t((std::uint64_t(draw(word, i)) * limit) >> 32);
}

// The j-th of a sample that draws one element from each run of `stride`: no period of the tensor can match the sample's.
static inline std::size_t sampled_place(std::size_t j, std::size_t stride) { return j * stride + draw_below(0x5eed, j, stride); }

// draws[j] = draw(word, begin + j) for j < n.
static inline void draws(std::uint64_t word, std::uint64_t begin, std::size_t n, std::uint32_t* out) {
    progress(word, begin, n, [out](Progression random, std::size_t from, std::size_t m) {
        std::uint32_t* __restrict to = out + from;
        for (std::uint32_t j = 0; j < std::uint32_t(m); ++j) to[j] = random.next();
    });
}

// Uniform in [0, 1) with 24 bits, exact in float and double.
template <class T>
static inline T uniform(std::uint32_t h) {
    return T(std::int32_t(h >> 8)) * T(1.0 / 16777216.0);
}

}  // namespace GRACE_ISA
}  // namespace grace
