// The largest elements of each chunk, values in a few bits (grace_dl/kernels/reference/chunks.py).
#include "methods/chunks.hpp"

#include <cmath>

#include "chunk_selection.hpp"
#include "encoder_input.hpp"
#include "float16.hpp"
#include "packing.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

using std::int32_t;
using std::int64_t;

constexpr int precision = 35;
constexpr int lowest = -988, highest = 1024;
constexpr float largest_bfloat16 = 0x1.fep127f;
constexpr size_t most_codes = 16;
constexpr double magic = 0x1.8p52;  // adding it to a smaller number rounds that to a whole one, half to even

struct ChunkBuffers {
    ScratchBuffer values;  // the chunk, where it is not in x
    ScratchBuffer chosen, codes;
    ScratchBuffer next;           // positions in the chunk that follows
    ScratchBuffer picked, fixed;  // values of the chosen elements, and their magnitudes as integers
};

// Where chunk `c` of a tensor lies, in elements and in the payload.
struct Chunk {
    size_t begin, n, kept;
    size_t positions, position_bytes, codes, code_bytes, means;

    Chunk(size_t c, size_t total, const ChunkLayout& l) {
        begin = c * l.size;
        n = total - begin < l.size ? total - begin : l.size;
        kept = n == l.size ? l.kept : l.kept_of_rest;
        positions = c * bytes(l.kept, l.width), codes = c * bytes(l.kept, l.bits);
        position_bytes = bytes(kept, l.width), code_bytes = bytes(kept, l.bits);
        means = c << (l.bits - 1);
    }

    static size_t bytes(size_t count, int bits) { return (count * size_t(bits) + 7) / 8; }
};

// Codes of the chosen values, and the means of the bins.
template <class T>
void quantize(const T* __restrict v, const int32_t* __restrict chosen, size_t k, int bits, int32_t* __restrict codes, u16* means) {
    using B = typename Bits<T>::type;
    const int levels = 1 << (bits - 1);
    auto& buffers = scratch<ChunkBuffers>();
    T* __restrict picked = buffers.picked.get<T>(k);
    int64_t* __restrict fixed = buffers.fixed.get<int64_t>(k);
    for (size_t c = 0; c < k; ++c) picked[c] = v[chosen[c]];
    B least = Bits<T>::magnitude, most = 0;
    for (size_t c = 0; c < k; ++c) {
        const B key = key_of(picked[c]);
        least = key < least ? key : least, most = key > most ? key : most;
    }
    const double low = double(cast_bits<T>(least)), high = double(cast_bits<T>(most)), spread = high - low;
    if (!std::isfinite(high)) {
        for (size_t c = 0; c < k; ++c) codes[c] = picked[c] < T(0);
        for (int b = 0; b < levels; ++b) means[b] = 0x7fc0;
        return;
    }
    int exponent = 0;
    std::frexp(high, &exponent);
    exponent = exponent < lowest ? lowest : exponent > highest ? highest : exponent;
    const double scale = std::ldexp(1.0, precision - exponent), over = spread > 0 ? spread : 1;
    for (size_t c = 0; c < k; ++c) {
        const double m = double(magnitude(picked[c]));
        const int bin = int((m - low) / over * double(levels));
        codes[c] = bin < levels ? bin : levels - 1;
        fixed[c] = cast_bits<int64_t>(m * scale + magic) - cast_bits<int64_t>(magic);
    }
    const double back = std::ldexp(1.0, exponent - precision);
    for (int b = 0; b < levels; ++b) {
        int64_t sum = 0, size = 0;
        for (size_t c = 0; c < k; ++c) {
            const int64_t inside = codes[c] == b;
            sum += fixed[c] & -inside, size += inside;
        }
        const double mean = double(sum) / double(size ? size : 1) * back;
        means[b] = to_bfloat16(mean < double(largest_bfloat16) ? float(mean) : largest_bfloat16);
    }
    for (size_t c = 0; c < k; ++c) codes[c] = 2 * codes[c] + (picked[c] < T(0));
}

// What the codes of a chunk are decoded to.
template <class T>
struct Decoded {
    T values[most_codes];

    Decoded(const u16* means, int bits, T alpha) {
        for (int code = 0; code < 1 << bits; ++code) {
            const T m = T(from_bfloat16(means[code >> 1]));
            values[code] = alpha * (code & 1 ? -m : m);
        }
    }
};

template <class T>
void encode_(const EncoderInput<T>& s, const ChunkLayout& l, u8* positions, u8* codes, u16* means, int threads) {
    const size_t count = (s.n + l.size - 1) / l.size;
    each_piece(count, chunks_per_piece(l.size), s.n < serial_below ? 1 : threads, [&](size_t c, size_t end) {
        auto& buffers = scratch<ChunkBuffers>();
        for (; c < end; ++c) {
            const Chunk at(c, s.n, l);
            const T* v = load_in_place(s, at.begin, at.n, s.g && !s.ef ? buffers.values.template get<T>(at.n) : nullptr);
            int32_t* chosen = buffers.chosen.template get<int32_t>(at.kept + 1);
            int32_t* code = buffers.codes.template get<int32_t>(at.kept);
            select_largest(v, at.n, at.kept, chosen);
            quantize(v, chosen, at.kept, l.bits, code, means + at.means);
            write_codes(chosen, at.kept, l.width, positions + at.positions);
            write_codes(code, at.kept, l.bits, codes + at.codes);
            if (!s.ef) continue;
            const Decoded<T> decoded(means + at.means, l.bits, T(1));
            T* x = s.x + at.begin;
            for (size_t i = 0; i < at.kept; ++i) x[chosen[i]] -= decoded.values[code[i]];
        }
    });
}

// Both streams of codes of a payload, of which the last chunk's end is the end.
struct Readers {
    CodeReader positions, codes;

    Readers(const Chunk& last, const ChunkLayout& l, const u8* positions, const u8* codes)
        : positions(positions + last.positions + last.position_bytes, l.width),
          codes(codes + last.codes + last.code_bytes, l.bits) {}
};

Fault check(const Chunk& at, const ChunkLayout& l, const Readers& readers, const u8* positions, const u8* codes, const u16* means,
            int32_t* chosen) {
    for (int b = 0; b < 1 << (l.bits - 1); ++b)
        if ((means[at.means + size_t(b)] & 0x7f80) == 0x7f80) return Fault::mean_not_finite;
    const u8* place = positions + at.positions;
    if (!padding_clear(place, at.position_bytes, at.kept * size_t(l.width)) ||
        !padding_clear(codes + at.codes, at.code_bytes, at.kept * size_t(l.bits)))
        return Fault::padding_bits;
    return read_positions(readers.positions, place, at.kept, at.n, chosen) ? Fault::none : Fault::index_order;
}

// The fault of the first broken chunk.
Fault check_all(size_t n, const ChunkLayout& l, const u8* positions, const u8* codes, const u16* means, int threads) {
    const size_t count = (n + l.size - 1) / l.size;
    if (count == 0) return Fault::none;
    const Readers readers(Chunk(count - 1, n, l), l, positions, codes);
    const auto fault_of = [&](size_t c) {
        const Chunk at(c, n, l);
        int32_t* chosen = scratch<ChunkBuffers>().chosen.template get<int32_t>(at.kept);
        return check(at, l, readers, positions, codes, means, chosen);
    };
    return first_fault(count, chunks_per_piece(l.size), n < serial_below ? 1 : threads, fault_of);
}

// A chunk's elements are far apart and miss the cache, so they are asked for while those of the chunk before are added.
template <class T>
Fault add_(T* out, size_t n, const ChunkLayout& l, const u8* positions, const u8* codes, const u16* means, T alpha,
           int threads) {
    const Fault fault = check_all(n, l, positions, codes, means, threads);
    if (fault != Fault::none || n == 0) return fault;
    const size_t count = (n + l.size - 1) / l.size, most = l.kept > l.kept_of_rest ? l.kept : l.kept_of_rest;
    const Readers readers(Chunk(count - 1, n, l), l, positions, codes);
    each_piece(count, chunks_per_piece(l.size), n < serial_below ? 1 : threads, [&](size_t c, size_t end) {
        auto& buffers = scratch<ChunkBuffers>();
        int32_t* chosen = buffers.chosen.template get<int32_t>(most);
        int32_t* next = buffers.next.template get<int32_t>(most);
        int32_t* code = buffers.codes.template get<int32_t>(most);
        const Chunk first(c, n, l);
        readers.positions.get(positions + first.positions, chosen, first.kept);
        for (size_t i = 0; i < first.kept; ++i) __builtin_prefetch(out + first.begin + chosen[i], 1);
        for (; c < end; ++c) {
            const Chunk at(c, n, l), ahead(c + 1 < end ? c + 1 : c, n, l);
            readers.codes.get(codes + at.codes, code, at.kept);
            readers.positions.get(positions + ahead.positions, next, ahead.kept);
            const Decoded<T> decoded(means + at.means, l.bits, alpha);
            T* const to = out + at.begin;
            const T* const later = out + ahead.begin;
            const size_t both = ahead.kept < at.kept ? ahead.kept : at.kept;
            size_t i = 0;
            for (; i < both; ++i) {
                __builtin_prefetch(later + next[i], 1);
                to[chosen[i]] += decoded.values[code[i]];
            }
            for (; i < at.kept; ++i) to[chosen[i]] += decoded.values[code[i]];
            int32_t* const before = chosen;
            chosen = next, next = before;
        }
    });
    return Fault::none;
}

}  // namespace

Fault chunktopk_check(size_t n, const ChunkLayout& layout, const u8* positions, const u8* codes, const u16* means,
                      int threads) {
    return check_all(n, layout, positions, codes, means, threads);
}

#define GRACE_DEFINE(T)                                                                                                 \
    void chunktopk_encode(const EncoderInput<T>& s, const ChunkLayout& layout, u8* positions, u8* codes, u16* means,    \
                          int threads) {                                                                                \
        encode_(s, layout, positions, codes, means, threads);                                                           \
    }                                                                                                                   \
    Fault chunktopk_add(T* out, size_t n, const ChunkLayout& layout, const u8* positions, const u8* codes,              \
                        const u16* means, T alpha, int threads) {                                                       \
        return add_(out, n, layout, positions, codes, means, alpha, threads);                                           \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
