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

static inline std::uint32_t draw(std::uint64_t word, std::uint64_t i) {
    std::uint32_t k0 = std::uint32_t(word), k1 = std::uint32_t(word >> 32);
    return mix(mix(std::uint32_t(i) + k0) ^ k1 ^ (std::uint32_t(i >> 32) * 0x9E3779B9u));
}

// draws[j] = draw(word, begin + j) for j < n.
static inline void draws(std::uint64_t word, std::uint64_t begin, std::size_t n, std::uint32_t* out) {
    std::uint32_t k0 = std::uint32_t(word), k1 = std::uint32_t(word >> 32);
    while (n) {
        // The upper half of the index is constant in between multiples of 2^32.
        std::uint64_t room = (std::uint64_t(1) << 32) - (begin & 0xffffffffu);
        std::size_t m = room < n ? std::size_t(room) : n;
        std::uint32_t high = k1 ^ (std::uint32_t(begin >> 32) * 0x9E3779B9u), low = std::uint32_t(begin) + k0;
        // A 32-bit counter: a 64-bit one would be narrowed in every vector. Pieces keep it from wrapping.
        m = m < (1u << 30) ? m : (1u << 30);
        for (std::uint32_t j = 0; j < std::uint32_t(m); ++j) out[j] = mix(mix(low + j) ^ high);
        out += m, begin += m, n -= m;
    }
}

// Uniform in [0, 1) with 24 bits, exact in float and double.
template <class T>
static inline T uniform(std::uint32_t h) {
    return T(std::int32_t(h >> 8)) * T(1.0 / 16777216.0);
}

}  // namespace GRACE_ISA
}  // namespace grace
