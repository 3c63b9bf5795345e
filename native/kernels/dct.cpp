// The cosine transform of chunks, and its largest coefficients (grace_dl/kernels/reference/dct.py).
//
// Lee's algorithm on eight rows or columns at once, in double precision; every operation is rounded as in the reference.
#include "methods/dct.hpp"

#include <cmath>
#include <limits>

#include "chunk_selection.hpp"
#include "encoder_input.hpp"
#include "wire_values.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

constexpr size_t side = 64, lanes = 8;
constexpr int width = 12;
constexpr double large = 0x1p800, down = 0x1p-200;

struct DctBuffers {
    ScratchBuffer tile, coefficients, chosen;
};

typedef double Lane[lanes];

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

// The sums of v[j] cos((2 j + 1) k pi / 2 N) over j; `t` is overwritten.
template <size_t N>
void cosines(Lane* __restrict v, Lane* __restrict t, const double* factors) {
    if constexpr (N > 1) {
        constexpr size_t h = N / 2;
        const double* f = factors + h - 1;
        for (size_t i = 0; i < h; ++i)
            for (size_t l = 0; l < lanes; ++l) {
                const double a = v[i][l], b = v[N - 1 - i][l];
                t[i][l] = a + b, t[h + i][l] = (a - b) * f[i];
            }
        cosines<h>(t, v, factors);
        cosines<h>(t + h, v + h, factors);
        for (size_t i = 0; i < h; ++i)
            for (size_t l = 0; l < lanes; ++l) {
                v[2 * i][l] = t[i][l];
                v[2 * i + 1][l] = i + 1 < h ? t[h + i][l] + t[h + i + 1][l] : t[h + i][l];
            }
    }
}

// The sums of v[k] cos((2 j + 1) k pi / 2 N) over k; `t` is overwritten.
template <size_t N>
void elements(Lane* __restrict v, Lane* __restrict t, const double* factors) {
    if constexpr (N > 1) {
        constexpr size_t h = N / 2;
        const double* f = factors + h - 1;
        for (size_t i = 0; i < h; ++i)
            for (size_t l = 0; l < lanes; ++l) {
                t[i][l] = v[2 * i][l];
                t[h + i][l] = i ? v[2 * i + 1][l] + v[2 * i - 1][l] : v[1][l];
            }
        elements<h>(t, v, factors);
        elements<h>(t + h, v + h, factors);
        for (size_t i = 0; i < h; ++i)
            for (size_t l = 0; l < lanes; ++l) {
                const double even = t[i][l], odd = t[h + i][l] * f[i];
                v[i][l] = even + odd, v[N - 1 - i][l] = even - odd;
            }
    }
}

template <bool forward>
void transform(Lane* v, Lane* t, size_t n, const double* factors) {
    const double first = std::sqrt(1.0 / double(n)), other = std::sqrt(2.0 / double(n));
    const auto scale = [&] {
        for (size_t k = 0; k < n; ++k)
            for (size_t l = 0; l < lanes; ++l) v[k][l] *= k ? other : first;
    };
    if (!forward) scale();
    switch (n) {
#define GRACE_SIZE(N) \
    case N: forward ? cosines<N>(v, t, factors) : elements<N>(v, t, factors); break;
        GRACE_SIZE(2) GRACE_SIZE(4) GRACE_SIZE(8) GRACE_SIZE(16) GRACE_SIZE(32) GRACE_SIZE(64)
#undef GRACE_SIZE
        default: break;
    }
    if (forward) scale();
}

template <bool forward>
void along_columns(double* y, size_t rows, const double* factors) {
    alignas(64) Lane v[side], t[side];
    for (size_t j = 0; j < side; j += lanes) {
        for (size_t r = 0; r < rows; ++r)
            for (size_t l = 0; l < lanes; ++l) v[r][l] = y[r * side + j + l];
        transform<forward>(v, t, rows, factors);
        for (size_t r = 0; r < rows; ++r)
            for (size_t l = 0; l < lanes; ++l) y[r * side + j + l] = v[r][l];
    }
}

template <bool forward>
void along_rows(double* y, size_t rows, const double* factors) {
    alignas(64) Lane v[side], t[side];
    for (size_t r = 0; r < rows; r += lanes) {
        const size_t used = rows - r < lanes ? rows - r : lanes;
        bool any = forward;
        for (size_t i = r * side; !any && i < (r + used) * side; ++i) any = cast_bits<u64>(y[i]) != 0;
        if (!any) continue;
        for (size_t j = 0; j < side; ++j)
            for (size_t l = 0; l < lanes; ++l) v[j][l] = l < used ? y[(r + l) * side + j] : 0;
        transform<forward>(v, t, side, factors);
        for (size_t l = 0; l < used; ++l)
            for (size_t j = 0; j < side; ++j) y[(r + l) * side + j] = v[j][l];
    }
}

// Scale very large chunks down; returns the factor that undoes it.
double contain(double* y, size_t n) {
    if (!(max_abs(y, n) > large)) return 1;
    for (size_t i = 0; i < n; ++i) y[i] *= down;
    return 1 / down;
}

// y, the coefficients, becomes alpha times the elements.
void restore(double* y, const DctChunk& at, const double* factors, double alpha) {
    const double back = contain(y, at.size());
    along_rows<false>(y, at.rows, factors);
    along_columns<false>(y, at.rows, factors);
    for (size_t i = 0; i < at.size(); ++i) y[i] = y[i] * back * alpha;
}

template <class T>
void add_rows(T* out, const DctChunk& at, const double* y, bool minus) {
    for (size_t r = 0; r < at.rows; ++r) {
        T* row = out + at.begin + r * at.stride;
        const size_t length = at.length(r);
        if (minus)
            for (size_t j = 0; j < length; ++j) row[j] -= T(y[r * side + j]);
        else
            for (size_t j = 0; j < length; ++j) row[j] += T(y[r * side + j]);
    }
}

template <class T>
void read_rows(const EncoderInput<T>& s, const DctChunk& at, double* y) {
    T buffer[side];
    for (size_t r = 0; r < at.rows; ++r) {
        const size_t length = at.length(r);
        const T* row = length ? load_in_place(s, at.begin + r * at.stride, length, buffer) : buffer;
        for (size_t j = 0; j < side; ++j) y[r * side + j] = j < length ? double(row[j]) : 0;
    }
}

template <class T>
void encode_(const EncoderInput<T>& s, const DctLayout& l, u8* positions, const WireValues& values, int threads) {
    each(DctChunk::count(s.n), s.n < serial_below ? 1 : threads, [&](size_t c) {
        const DctChunk at(c, s.n, l);
        auto& buffers = scratch<DctBuffers>();
        double* y = buffers.tile.template get<double>(side * side);
        T* coefficients = buffers.coefficients.template get<T>(side * side);
        int32_t* chosen = buffers.chosen.template get<int32_t>(at.kept);
        read_rows(s, at, y);
        const double back = contain(y, at.size()), most = double(std::numeric_limits<T>::max());
        along_columns<true>(y, at.rows, l.factors);
        along_rows<true>(y, at.rows, l.factors);
        for (size_t i = 0; i < at.size(); ++i) {
            const double v = y[i] * back;
            coefficients[i] = T(v > most ? most : v < -most ? -most : v);
        }
        select_largest(coefficients, at.size(), at.kept, chosen);
        write_codes(chosen, at.kept, width, positions + at.positions);
        for (size_t i = 0; i < at.size(); ++i) y[i] = 0;
        for (size_t i = 0; i < at.kept; ++i) y[chosen[i]] = double(values.put(at.values + i, coefficients[chosen[i]]));
        if (!s.ef) return;
        restore(y, at, l.factors, 1.0);
        add_rows(s.x, at, y, true);
    });
}

Fault check_all(size_t n, const DctLayout& l, const DctPayload& p, int threads) {
    const size_t count = DctChunk::count(n);
    const Fault fault = first_fault(count, n < serial_below ? 1 : threads, [&](size_t c) {
        const DctChunk at(c, n, l);
        const u8* place = p.positions + at.positions;
        if (!padding_clear(place, at.position_bytes, at.kept * size_t(width))) return Fault::padding_bits;
        int32_t* chosen = scratch<DctBuffers>().chosen.template get<int32_t>(at.kept);
        return read_positions(place, at.position_bytes, width, at.kept, at.size(), chosen) ? Fault::none : Fault::index_order;
    });
    if (fault != Fault::none || count == 0) return fault;
    const DctChunk last(count - 1, n, l);
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
        double* y = buffers.tile.template get<double>(side * side);
        int32_t* chosen = buffers.chosen.template get<int32_t>(at.kept);
        for (size_t i = 0; i < at.size(); ++i) y[i] = 0;
        for (size_t p = 0; p < count; ++p) {
            const u8* place = payloads[p].positions + at.positions;
            BitReader(place, place + at.position_bytes, width).get(chosen, at.kept);
            const WireValues values{payloads[p].values, payloads[p].dtype};
            for (size_t i = 0; i < at.kept; ++i) y[chosen[i]] += values.get<double>(at.values + i);
        }
        restore(y, at, l.factors, alpha);
        add_rows(out, at, y, false);
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
