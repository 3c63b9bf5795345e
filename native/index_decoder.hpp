// Decoding the sorted indices of a sparse payload, and checking them before anything is done with them.
#pragma once

#include "faults.hpp"
#include "indices.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

constexpr size_t words_per_piece = 2048;
constexpr uint64_t serial_indices = 16384;  // fewer are decoded on the calling thread

struct DecoderBuffers {
    ScratchBuffer ranks;    // the rank at which each piece begins
    ScratchBuffer indices;  // decoded, not yet checked
};

// Set bits of pieces of the unary part (or the bitmap), turned into the rank at which a piece begins.
struct Pieces {
    const uint8_t* data;
    size_t bytes, words, count;
    size_t* first;

    Pieces(const IndexLayout& layout, const uint8_t* index)
        : data(index + layout.low_bytes), bytes(layout.bytes - layout.low_bytes) {
        words = (bytes + 7) / 8;
        count = (words + words_per_piece - 1) / words_per_piece;
        first = scratch<DecoderBuffers>().ranks.get<size_t>(count + 1);
    }

    size_t begin(size_t p) const { return p * words_per_piece; }
    size_t end(size_t p) const { return (p + 1) * words_per_piece < words ? (p + 1) * words_per_piece : words; }

    size_t rank(int threads) {
        each(count, threads, [this](size_t p) {
            size_t bits = 0;
            for (size_t w = begin(p); w < end(p); ++w) bits += count_ones(word_at(data, bytes, w * 8));
            first[p] = bits;
        });
        size_t total = 0;
        for (size_t p = 0; p < count; ++p) {
            const size_t bits = first[p];
            first[p] = total;
            total += bits;
        }
        first[count] = total;
        return total;
    }

    // hit(bit position, rank) for the set bits of a piece.
    template <class Hit>
    void visit(size_t p, Hit hit) const {
        size_t at = first[p];
        for (size_t w = begin(p); w < end(p); ++w)
            for (uint64_t bits = word_at(data, bytes, w * 8); bits; bits &= bits - 1)
                hit(w * 64 + size_t(__builtin_ctzll(bits)), at++);
    }
};

// Decode and check. Elias-Fano indices go to `out` (k of them); a bitmap is only checked.
template <class I>
Fault decode(const IndexLayout& layout, const uint8_t* index, size_t count, I* out, Pieces& pieces, int threads) {
    if (layout.k == 0) return Fault::none;
    if (!padding_bits_clear(pieces.data, pieces.bytes, layout.high_bits)) return Fault::padding_bits;
    if (layout.low_bytes && !padding_bits_clear(index, layout.low_bytes, layout.k * uint64_t(layout.width)))
        return Fault::padding_bits;
    const size_t total = pieces.rank(threads);
    if (layout.bitmap) return total == count ? Fault::none : Fault::index_count;
    if (total != layout.k) return Fault::index_count;
    std::uint32_t faults = 0;
    each(pieces.count, threads, [&](size_t p) {
        const int width = layout.width;
        const uint64_t mask = (uint64_t(1) << width) - 1;
        const uint8_t *const low_data = index, *const high_data = pieces.data;
        const size_t bytes = layout.bytes, high_bytes = pieces.bytes, end = pieces.end(p);
        size_t rank = pieces.first[p];
        uint64_t low = uint64_t(rank) * uint64_t(width);
        for (size_t w = pieces.begin(p); w < end; ++w) {
            uint64_t bits = word_at(high_data, high_bytes, w * 8);
            const uint64_t base = w * 64;
            for (; bits; bits &= bits - 1, ++rank, low += uint64_t(width)) {
                const uint64_t high = base + uint64_t(__builtin_ctzll(bits)) - rank;
                // Bits of the unary part may follow the field; the mask takes them off.
                const uint64_t field = word_at(low_data, bytes, size_t(low >> 3)) >> (low & 7);
                out[rank] = I(high << width | (field & mask));
            }
        }
        // What rises stays below d if its last entry does; entries behind the count repeat d - 1.
        const size_t first = pieces.first[p], stop = rank < count ? rank : count;
        std::uint32_t bad = 0;
        for (size_t r = first + 1; r < stop; ++r) bad |= std::uint32_t(out[r] <= out[r - 1]);
        for (size_t r = first > count ? first : count; r < rank; ++r)
            bad |= std::uint32_t(out[r] != I(layout.d - 1)) << 1;
        if (bad) __atomic_fetch_or(&faults, bad, __ATOMIC_RELAXED);
    });
    if (count && uint64_t(out[count - 1]) >= layout.d) faults |= 1;
    for (size_t p = 1; p < pieces.count; ++p) {
        const size_t at = pieces.first[p];
        if (at > 0 && at < count && out[at] <= out[at - 1]) faults |= 1;
    }
    return faults & 1 ? Fault::index_order : faults ? Fault::index_padding : Fault::none;
}

// act(index, rank) for every coded index, after all were checked; fetch(index) asks for the memory it will need.
template <class I, class Fetch, class Act>
Fault visit_indices_as(const IndexLayout& layout, uint64_t count, const uint8_t* index, int threads, Fetch fetch, Act act) {
    Pieces pieces(layout, index);
    I* indices = layout.bitmap ? nullptr : scratch<DecoderBuffers>().indices.get<I>(size_t(layout.k));
    const Fault fault = decode(layout, index, size_t(count), indices, pieces, threads);
    if (fault != Fault::none) return fault;
    if (layout.bitmap) {
        each(pieces.count, threads, [&](size_t p) { pieces.visit(p, [&](size_t i, size_t rank) { act(i, rank); }); });
        return Fault::none;
    }
    each_piece(size_t(count), 8192, threads, [=](size_t r, size_t end) {
        for (size_t first = r; first < end && first < r + prefetch_distance; ++first) fetch(size_t(indices[first]));
        for (; r + prefetch_distance < end; ++r) {
            fetch(size_t(indices[r + prefetch_distance]));
            act(size_t(indices[r]), r);
        }
        for (; r < end; ++r) act(size_t(indices[r]), r);
    });
    return Fault::none;
}

template <class Fetch, class Act>
Fault visit_indices(uint64_t d, uint64_t k, uint64_t count, const uint8_t* index, int threads, Fetch fetch, Act act) {
    const IndexLayout layout(d, k);
    if (k == 0) return Fault::none;
    if (k < serial_indices) threads = 1;
    // Before they are checked, indices may reach twice d.
    if (d < uint64_t(1) << 31) return visit_indices_as<std::uint32_t>(layout, count, index, threads, fetch, act);
    return visit_indices_as<uint64_t>(layout, count, index, threads, fetch, act);
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
