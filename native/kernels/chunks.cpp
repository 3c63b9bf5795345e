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
constexpr size_t most_levels = 8;

struct ChunkBuffers {
    ScratchBuffer values;  // the chunk, where it is not in x
    ScratchBuffer chosen, codes;
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
void quantize(const T* v, const int32_t* chosen, size_t k, int bits, int32_t* codes, u16* means) {
    const int levels = 1 << (bits - 1);
    double low = double(magnitude(v[chosen[0]])), high = low;
    bool finite = true;
    for (size_t c = 0; c < k; ++c) {
        const double m = double(magnitude(v[chosen[c]]));
        finite &= std::isfinite(m);
        low = m < low ? m : low, high = m > high ? m : high;
    }
    if (!finite) {
        for (size_t c = 0; c < k; ++c) codes[c] = v[chosen[c]] < T(0);
        for (int b = 0; b < levels; ++b) means[b] = 0x7fc0;
        return;
    }
    int exponent = 0;
    std::frexp(high, &exponent);
    exponent = exponent < lowest ? lowest : exponent > highest ? highest : exponent;
    const double scale = std::ldexp(1.0, precision - exponent), spread = high - low;
    int64_t sums[most_levels] = {}, sizes[most_levels] = {};
    for (size_t c = 0; c < k; ++c) {
        const T value = v[chosen[c]];
        const double m = double(magnitude(value));
        int bin = spread > 0 ? int((m - low) / spread * double(levels)) : 0;
        bin = bin < levels ? bin : levels - 1;
        codes[c] = 2 * bin + (value < T(0));
        sums[bin] += int64_t(std::nearbyint(m * scale));
        ++sizes[bin];
    }
    const double back = std::ldexp(1.0, exponent - precision);
    for (int b = 0; b < levels; ++b) {
        const double mean = double(sums[b]) / double(sizes[b] ? sizes[b] : 1) * back;
        means[b] = to_bfloat16(mean < double(largest_bfloat16) ? float(mean) : largest_bfloat16);
    }
}

template <class T>
inline T decoded(int32_t code, const u16* means) {
    const T m = T(from_bfloat16(means[code >> 1]));
    return code & 1 ? -m : m;
}

template <class T>
void encode_(const EncoderInput<T>& s, const ChunkLayout& l, u8* positions, u8* codes, u16* means, int threads) {
    const size_t count = (s.n + l.size - 1) / l.size;
    each(count, s.n < serial_below ? 1 : threads, [&](size_t c) {
        const Chunk at(c, s.n, l);
        auto& buffers = scratch<ChunkBuffers>();
        const T* v = load_in_place(s, at.begin, at.n, s.g && !s.ef ? buffers.values.template get<T>(at.n) : nullptr);
        int32_t* chosen = buffers.chosen.template get<int32_t>(at.kept);
        int32_t* code = buffers.codes.template get<int32_t>(at.kept);
        select_largest(v, at.n, at.kept, chosen);
        quantize(v, chosen, at.kept, l.bits, code, means + at.means);
        write_codes(chosen, at.kept, l.width, positions + at.positions);
        write_codes(code, at.kept, l.bits, codes + at.codes);
        if (s.ef)
            for (size_t i = 0; i < at.kept; ++i) s.x[at.begin + size_t(chosen[i])] -= decoded<T>(code[i], means + at.means);
    });
}

Fault check(const Chunk& at, const ChunkLayout& l, const u8* positions, const u8* codes, const u16* means, int32_t* chosen) {
    for (int b = 0; b < 1 << (l.bits - 1); ++b)
        if ((means[at.means + size_t(b)] & 0x7f80) == 0x7f80) return Fault::mean_not_finite;
    const u8* place = positions + at.positions;
    if (!padding_clear(place, at.position_bytes, at.kept * size_t(l.width)) ||
        !padding_clear(codes + at.codes, at.code_bytes, at.kept * size_t(l.bits)))
        return Fault::padding_bits;
    return read_positions(place, at.position_bytes, l.width, at.kept, at.n, chosen) ? Fault::none : Fault::index_order;
}

// The fault of the first broken chunk.
Fault check_all(size_t n, const ChunkLayout& l, const u8* positions, const u8* codes, const u16* means, int threads) {
    const size_t count = (n + l.size - 1) / l.size;
    const auto fault_of = [&](size_t c) {
        const Chunk at(c, n, l);
        return check(at, l, positions, codes, means, scratch<ChunkBuffers>().chosen.template get<int32_t>(at.kept));
    };
    return first_fault(count, n < serial_below ? 1 : threads, fault_of);
}

template <class T>
Fault add_(T* out, size_t n, const ChunkLayout& l, const u8* positions, const u8* codes, const u16* means, T alpha,
           int threads) {
    const Fault fault = check_all(n, l, positions, codes, means, threads);
    if (fault != Fault::none) return fault;
    each((n + l.size - 1) / l.size, n < serial_below ? 1 : threads, [&](size_t c) {
        const Chunk at(c, n, l);
        auto& buffers = scratch<ChunkBuffers>();
        int32_t* chosen = buffers.chosen.template get<int32_t>(at.kept);
        int32_t* code = buffers.codes.template get<int32_t>(at.kept);
        BitReader(positions + at.positions, positions + at.positions + at.position_bytes, l.width).get(chosen, at.kept);
        BitReader(codes + at.codes, codes + at.codes + at.code_bytes, l.bits).get(code, at.kept);
        for (size_t i = 0; i < at.kept; ++i)
            out[at.begin + size_t(chosen[i])] += alpha * decoded<T>(code[i], means + at.means);
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
