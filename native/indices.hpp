// Sorted indices as bits: Elias-Fano, or a bitmap where that is smaller (grace_dl/kernels/reference/indices.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace grace {
namespace GRACE_ISA {

using std::size_t;
using std::uint64_t;
using std::uint8_t;

// Elements at scattered indices miss the cache, so they are asked for this many accesses ahead.
constexpr size_t prefetch_distance = 64;

struct IndexLayout {
    uint64_t d, k;
    int width = 0;  // bits of an index stored as they are
    bool bitmap = false;
    size_t low_bytes = 0, high_bits = 0, bytes = 0;

    IndexLayout(uint64_t elements, uint64_t places) : d(elements), k(places) {
        if (k == 0) return;
        for (uint64_t q = d / k; q > 1; q >>= 1) ++width;
        low_bytes = (k * width + 7) / 8;
        high_bits = k + (d >> width) + 1;
        bytes = low_bytes + (high_bits + 7) / 8;
        if ((d + 7) / 8 <= bytes) {
            bitmap = true;
            width = 0, low_bytes = 0, high_bits = d, bytes = (d + 7) / 8;
        }
    }
};

// Writes fields at rising bit positions of a zeroed array. Several writers may share the words where one ends and
// the next begins: those are merged atomically.
class FieldWriter {
public:
    FieldWriter(uint8_t* base, size_t bytes) : base_(base), bytes_(bytes) {}

    void put(uint64_t position, uint64_t value, int width) {
        const uint64_t word = position >> 6;
        const int shift = int(position & 63);
        if (word != word_) move(word);
        held_ |= value << shift;
        if (shift + width > 64) {
            move(word + 1);
            held_ = value >> (64 - shift);
        }
    }

    void finish() { flush(true); }

private:
    void move(uint64_t word) {
        flush(first_);
        if (held_) first_ = false;
        held_ = 0;
        word_ = word;
    }

    void flush(bool shared) {
        const size_t at = size_t(word_) * 8;
        if (!held_) return;
        if (!shared && at + 8 <= bytes_) {
            for (int b = 0; b < 8; ++b) base_[at + b] = uint8_t(held_ >> (8 * b));
            return;
        }
        for (int b = 0; b < 8; ++b)
            if (uint8_t part = uint8_t(held_ >> (8 * b)); part && at + b < bytes_)
                __atomic_fetch_or(base_ + at + b, part, __ATOMIC_RELAXED);
    }

    uint8_t* base_;
    size_t bytes_;
    uint64_t word_ = 0, held_ = 0;
    bool first_ = true;
};

// Codes indices in rising order; writer number r of several starts at the rank of its first index.
class IndexWriter {
public:
    IndexWriter(const IndexLayout& layout, uint8_t* out, uint64_t rank)
        : layout_(layout),
          low_(out, layout.low_bytes),
          high_(out + layout.low_bytes, layout.bytes - layout.low_bytes),
          mask_((uint64_t(1) << layout.width) - 1),
          rank_(rank) {}

    void put(uint64_t index) {
        if (layout_.bitmap) {
            high_.put(index, 1, 1);
        } else {
            if (layout_.width) low_.put(rank_ * layout_.width, index & mask_, layout_.width);
            high_.put((index >> layout_.width) + rank_, 1, 1);
        }
        ++rank_;
    }

    void finish() { low_.finish(), high_.finish(); }

private:
    const IndexLayout& layout_;
    FieldWriter low_, high_;
    uint64_t mask_, rank_;
};

// 64 bits from a byte position; bytes beyond the end read as zero.
static inline uint64_t word_at(const uint8_t* data, size_t bytes, size_t at) {
    uint64_t word = 0;
    if (at + 8 <= bytes) {
        // Compilers turn this into one load where bytes are in this order.
        const uint8_t* p = data + at;
        word = uint64_t(p[0]) | uint64_t(p[1]) << 8 | uint64_t(p[2]) << 16 | uint64_t(p[3]) << 24 | uint64_t(p[4]) << 32 |
               uint64_t(p[5]) << 40 | uint64_t(p[6]) << 48 | uint64_t(p[7]) << 56;
    } else {
        for (size_t b = 0; at + b < bytes; ++b) word |= uint64_t(data[at + b]) << (8 * b);
    }
    return word;
}

// 64 bits to a byte position; what would lie beyond the end is left out.
static inline void store_word(uint8_t* data, size_t bytes, size_t at, uint64_t word) {
    const size_t n = bytes - at < 8 ? bytes - at : 8;
    uint8_t raw[8];
    for (int b = 0; b < 8; ++b) raw[b] = uint8_t(word >> (8 * b));
    if (n == 8) std::memcpy(data + at, raw, 8);
    else std::memcpy(data + at, raw, n);
}

static inline size_t count_ones(uint64_t word) { return size_t(__builtin_popcountll(word)); }

static inline bool padding_bits_clear(const uint8_t* data, size_t bytes, uint64_t bits) {
    return bits == uint64_t(bytes) * 8 || (data[bytes - 1] >> (bits & 7)) == 0;
}

}  // namespace GRACE_ISA
}  // namespace grace
