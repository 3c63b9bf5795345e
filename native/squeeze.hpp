// Codes of less than a byte, packed eight at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "indices.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// Codes of eight elements, a byte each, to `bits` bits each.
template <int bits>
inline uint64_t squeeze(uint64_t w) {
    constexpr int gap = 8 - bits;
    w = (w & 0x00ff00ff00ff00ff) | (w & 0xff00ff00ff00ff00) >> gap;
    w = (w & 0x0000ffff0000ffff) | (w & 0xffff0000ffff0000) >> (2 * gap);
    return (w & 0x00000000ffffffff) | (w & 0xffffffff00000000) >> (4 * gap);
}

template <int bits>
void pack(uint8_t* codes, size_t n, uint8_t* out) {
    while (n % 8) codes[n++] = 0;
    const size_t bytes = n / 8 * bits;
    const auto word = [codes, n](size_t i) { return squeeze<bits>(word_at(codes, n, i)); };
    size_t i = 0, at = 0;
    // Whole words, of which the next one overwrites what is too much. What follows the last byte may be another thread's.
    for (; at + 8 <= bytes; i += 8, at += bits) {
        uint64_t w = word(i);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        w = __builtin_bswap64(w);
#endif
        std::memcpy(out + at, &w, 8);
    }
    for (; at < bytes; i += 8, at += bits)
        for (int b = 0; b < bits; ++b) out[at + size_t(b)] = uint8_t(word(i) >> (8 * b));
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
