// The cosine transform of chunks, and its largest coefficients (grace_dl/kernels/reference/dct.py).
#include "methods/dct.hpp"

#include <limits>

#include "chunk_selection.hpp"
#include "cosine_transform.hpp"
#include "encoder_input.hpp"
#include "wire_values.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

constexpr int width = 12;
constexpr double large = 0x1p800, down = 0x1p-200;

struct DctBuffers {
    ScratchBuffer tile, coefficients, chosen;

    // Room for a chunk, from the beginning of a cache line on.
    double* chunk() {
        constexpr size_t line = 64;
        double* const space = tile.get<double>(side * side + line / sizeof(double));
        return space + (line - reinterpret_cast<std::uintptr_t>(space) % line) % line / sizeof(double);
    }
};

// Where chunk `c` lies: rows of 64 elements from `begin`, `stride` apart, `n` elements in all.
struct DctChunk {
    size_t begin, stride, rows, n, kept, positions, position_bytes, values;

    DctChunk(size_t c, size_t total, const DctLayout& l) {
        const bool full = (c + 1) * side * side <= total;
        const size_t across = l.columns / side;
        begin = across ? c / across * side * l.columns + c % across * side : c * side * side;
        stride = across ? l.columns : side;
        rows = full ? side : l.rows_of_rest, kept = full ? l.kept : l.kept_of_rest;
        n = full ? side * side : total - begin;
        positions = c * bytes(l.kept), position_bytes = bytes(kept), values = c * l.kept;
    }

    size_t size() const { return rows * side; }
    // Elements of row r; the rest of it is padding.
    size_t length(size_t r) const { return n >= (r + 1) * side ? side : n > r * side ? n - r * side : 0; }
    static size_t bytes(size_t count) { return (count * size_t(width) + 7) / 8; }
    static size_t count(size_t total) { return (total + side * side - 1) / (side * side); }
};

// Rows of a chunk, by number.
struct Rows {
    u8 list[side];
    size_t count = 0;

    explicit Rows(u64 marked) {
        for (; marked; marked &= marked - 1) list[count++] = u8(__builtin_ctzll(marked));
    }
};

// Scale very large chunks down; returns the factor that undoes it.
double contain(double* y, size_t n, double peak) {
    if (!(peak > large)) return 1;
    for (size_t i = 0; i < n; ++i) y[i] *= down;
    return 1 / down;
}

// y, coefficients that are zero outside the marked rows, becomes elements; returns the factor they need.
double restore(double* y, const DctChunk& at, u64 marked, const double* factors) {
    const Rows rows(marked);
    const double back = contain(y, at.size(), max_abs(y, at.size()));
    along_rows<false>(y, rows.list, rows.count, factors);
    along_columns<false>(y, at.rows, factors);
    return back;
}

// out += y * back * alpha
template <class T>
void add_rows(T* __restrict out, const DctChunk& at, const double* __restrict y, double back, double alpha, bool minus) {
    for (size_t r = 0; r < at.rows; ++r) {
        T* row = out + at.begin + r * at.stride;
        const size_t length = at.length(r);
        if (minus)
            for (size_t j = 0; j < length; ++j) row[j] -= T(y[r * side + j] * back * alpha);
        else
            for (size_t j = 0; j < length; ++j) row[j] += T(y[r * side + j] * back * alpha);
    }
}

// Returns the largest magnitude.
template <class T>
T read_rows(const EncoderInput<T>& s, const DctChunk& at, double* __restrict y) {
    T buffer[side], peak = 0;
    for (size_t r = 0; r < at.rows; ++r, y += side) {
        const size_t length = at.length(r);
        const T* __restrict row = length ? load_in_place(s, at.begin + r * at.stride, length, buffer) : buffer;
        peak = larger(peak, max_abs(row, length));
        for (size_t j = 0; j < length; ++j) y[j] = double(row[j]);
        for (size_t j = length; j < side; ++j) y[j] = 0;
    }
    return peak;
}

template <class T>
void encode_(const EncoderInput<T>& s, const DctLayout& l, u8* positions, const WireValues& values, int threads) {
    each(DctChunk::count(s.n), s.n < serial_below ? 1 : threads, [&](size_t c) {
        const DctChunk at(c, s.n, l);
        auto& buffers = scratch<DctBuffers>();
        double* y = buffers.chunk();
        T* coefficients = buffers.coefficients.template get<T>(side * side);
        int32_t* chosen = buffers.chosen.template get<int32_t>(at.kept + 1);
        const double peak = double(read_rows(s, at, y));
        const double back = contain(y, at.size(), peak), most = double(std::numeric_limits<T>::max());
        const Rows rows(~u64(0) >> (side - at.rows));
        along_columns<true>(y, at.rows, l.factors);
        along_rows<true>(y, rows.list, rows.count, l.factors);
        for (size_t i = 0; i < at.size(); ++i) {
            const double v = y[i] * back;
            coefficients[i] = T(v > most ? most : v < -most ? -most : v);
        }
        select_largest(coefficients, at.size(), at.kept, chosen);
        write_codes(chosen, at.kept, width, positions + at.positions);
        u64 marked = 0;
        for (size_t i = 0; i < at.size(); ++i) y[i] = 0;
        for (size_t i = 0; i < at.kept; ++i) {
            y[chosen[i]] = double(values.put(at.values + i, coefficients[chosen[i]]));
            marked |= u64(1) << (size_t(chosen[i]) / side);
        }
        if (s.ef) add_rows(s.x, at, y, restore(y, at, marked, l.factors), 1.0, true);
    });
}

Fault check_all(size_t n, const DctLayout& l, const DctPayload& p, int threads) {
    const size_t count = DctChunk::count(n);
    if (count == 0) return Fault::none;
    const DctChunk last(count - 1, n, l);
    const CodeReader reader(p.positions + last.positions + last.position_bytes, width);
    const Fault fault = first_fault(count, chunks_per_piece(side * side), n < serial_below ? 1 : threads, [&](size_t c) {
        const DctChunk at(c, n, l);
        const u8* place = p.positions + at.positions;
        if (!padding_clear(place, at.position_bytes, at.kept * size_t(width))) return Fault::padding_bits;
        int32_t* chosen = scratch<DctBuffers>().chosen.template get<int32_t>(at.kept);
        return read_positions(reader, place, at.kept, at.size(), chosen) ? Fault::none : Fault::index_order;
    });
    if (fault != Fault::none) return fault;
    return WireValues{p.values, p.dtype}.finite(last.values + last.kept) ? Fault::none : Fault::value_not_finite;
}

template <class T>
Fault add_(T* out, size_t n, const DctLayout& l, const DctPayload* payloads, size_t count, double alpha, int threads) {
    for (size_t p = 0; p < count; ++p) {
        const Fault fault = check_all(n, l, payloads[p], threads);
        if (fault != Fault::none) return fault;
    }
    each(DctChunk::count(n), n < serial_below ? 1 : threads, [&](size_t c) {
        const DctChunk at(c, n, l);
        auto& buffers = scratch<DctBuffers>();
        double* y = buffers.chunk();
        int32_t* chosen = buffers.chosen.template get<int32_t>(at.kept);
        u64 marked = 0;
        for (size_t i = 0; i < at.size(); ++i) y[i] = 0;
        for (size_t p = 0; p < count; ++p) {
            const u8* place = payloads[p].positions + at.positions;
            BitReader(place, place + at.position_bytes, width).get(chosen, at.kept);
            const WireValues values{payloads[p].values, payloads[p].dtype};
            for (size_t i = 0; i < at.kept; ++i) {
                y[chosen[i]] += values.get<double>(at.values + i);
                marked |= u64(1) << (size_t(chosen[i]) / side);
            }
        }
        add_rows(out, at, y, restore(y, at, marked, l.factors), alpha, false);
    });
    return Fault::none;
}

}  // namespace

Fault dct_check(size_t n, const DctLayout& layout, const DctPayload& payload, int threads) {
    return check_all(n, layout, payload, threads);
}

#define GRACE_DEFINE(T)                                                                                                \
    void dct_encode(const EncoderInput<T>& s, const DctLayout& layout, u8* positions, void* values, Dtype dtype,       \
                    int threads) {                                                                                     \
        encode_(s, layout, positions, WireValues{values, dtype}, threads);                                             \
    }                                                                                                                  \
    Fault dct_add(T* out, size_t n, const DctLayout& layout, const DctPayload* payloads, size_t count, double alpha,   \
                  int threads) {                                                                                       \
        return add_(out, n, layout, payloads, count, alpha, threads);                                                  \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
