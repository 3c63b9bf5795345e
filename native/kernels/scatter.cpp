// Adding sparse payloads, decoding indices, random-k.
#include "halves.hpp"
#include "indices.hpp"
#include "parallel.hpp"
#include "random.hpp"
#include "reduce.hpp"
#include "source.hpp"
#include "sparse.hpp"
#include "stream.hpp"
#include "workspace.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

using std::int64_t;

enum Fault { fine = 0, spare_bits = 1, wrong_count = 2, not_rising = 3, wrong_padding = 4, stray_values = 5 };

constexpr size_t words_a_piece = 2048;
constexpr size_t ahead = 64;

inline Room& room(int slot) {
    static thread_local Room rooms[3];
    return rooms[slot];
}

// Set bits of pieces of the unary part (or the bitmap), turned into the rank at which a piece begins.
struct Pieces {
    const uint8_t* data;
    size_t bytes, words, count;
    size_t* first;

    Pieces(const IndexLayout& layout, const uint8_t* index)
        : data(index + layout.low_bytes), bytes(layout.bytes - layout.low_bytes) {
        words = (bytes + 7) / 8;
        count = (words + words_a_piece - 1) / words_a_piece;
        first = room(0).get<size_t>(count + 1);
    }

    size_t begin(size_t p) const { return p * words_a_piece; }
    size_t end(size_t p) const { return (p + 1) * words_a_piece < words ? (p + 1) * words_a_piece : words; }

    size_t rank(int threads) {
        each(count, threads, [this](size_t p) {
            size_t bits = 0;
            for (size_t w = begin(p); w < end(p); ++w) bits += size_t(__builtin_popcountll(word_at(data, bytes, w * 8)));
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
int decode(const IndexLayout& layout, const uint8_t* index, size_t count, I* out, Pieces& pieces, int threads) {
    if (layout.k == 0) return fine;
    if (!spare_bits_clear(pieces.data, pieces.bytes, layout.high_bits)) return spare_bits;
    if (layout.low_bytes && !spare_bits_clear(index, layout.low_bytes, layout.k * uint64_t(layout.width)))
        return spare_bits;
    const size_t total = pieces.rank(threads);
    if (layout.bitmap) return total == count ? fine : wrong_count;
    if (total != layout.k) return wrong_count;
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
    return faults & 1 ? not_rising : faults ? wrong_padding : fine;
}

// act(index, rank) for every coded index, after all were checked; fetch(index) asks for the memory it will need.
template <class I, class Fetch, class Act>
int apply_as(const IndexLayout& layout, uint64_t count, const uint8_t* index, int threads, Fetch fetch, Act act) {
    Pieces pieces(layout, index);
    I* indices = layout.bitmap ? nullptr : room(1).get<I>(size_t(layout.k));
    if (int fault = decode(layout, index, size_t(count), indices, pieces, threads)) return fault;
    if (layout.bitmap) {
        each(pieces.count, threads, [&](size_t p) { pieces.visit(p, [&](size_t i, size_t rank) { act(i, rank); }); });
        return fine;
    }
    const size_t piece = 8192;
    each((size_t(count) + piece - 1) / piece, threads, [=](size_t p) {
        const size_t end = (p + 1) * piece < count ? (p + 1) * piece : size_t(count);
        size_t r = p * piece;
        // Every access misses the cache; asking early keeps many of them under way.
        for (size_t first = r; first < end && first < r + ahead; ++first) fetch(size_t(indices[first]));
        for (; r + ahead < end; ++r) {
            fetch(size_t(indices[r + ahead]));
            act(size_t(indices[r]), r);
        }
        for (; r < end; ++r) act(size_t(indices[r]), r);
    });
    return fine;
}

template <class Fetch, class Act>
int apply(uint64_t d, uint64_t k, uint64_t count, const uint8_t* index, int threads, Fetch fetch, Act act) {
    const IndexLayout layout(d, k);
    if (k == 0) return fine;
    if (k < 16384) threads = 1;
    // Before they are checked, indices may reach twice d.
    if (d < uint64_t(1) << 31) return apply_as<std::uint32_t>(layout, count, index, threads, fetch, act);
    return apply_as<uint64_t>(layout, count, index, threads, fetch, act);
}

// f(get) with get(rank) the value sent at a rank.
template <class T, class F>
int with_values(const Values& values, F f) {
    if (values.kind == (sizeof(T) == 4 ? Kind::float32 : Kind::float64)) {
        const T* sent = static_cast<const T*>(values.data);
        return f([=](size_t rank) { return sent[rank]; });
    }
    return f([=](size_t rank) { return values.get<T>(rank); });
}

template <class T>
int sparse_add_(T* out, uint64_t d, const Values& values, uint64_t k, uint64_t count, const uint8_t* index, T alpha,
                int threads) {
    if (!values.zero(size_t(count), size_t(k))) return stray_values;
    const auto fetch = [=](size_t i) { __builtin_prefetch(out + i, 1); };
    return with_values<T>(values, [=](auto get) {
        return apply(d, k, count, index, threads, fetch, [=](size_t i, size_t rank) { out[i] += get(rank) * alpha; });
    });
}

// What was sent leaves v, and its momentum is forgotten (m may be null).
template <class T>
int dgc_commit_(T* v, T* m, uint64_t d, const Values& values, uint64_t k, uint64_t count, const uint8_t* index,
                int threads) {
    if (!values.zero(size_t(count), size_t(k))) return stray_values;
    const auto fetch_v = [=](size_t i) { __builtin_prefetch(v + i, 1); };
    const auto fetch_both = [=](size_t i) { __builtin_prefetch(v + i, 1), __builtin_prefetch(m + i, 1); };
    return with_values<T>(values, [=](auto get) {
        if (!m) return apply(d, k, count, index, threads, fetch_v, [=](size_t i, size_t rank) { v[i] -= get(rank); });
        return apply(d, k, count, index, threads, fetch_both,
                     [=](size_t i, size_t rank) { v[i] -= get(rank), m[i] = T(0); });
    });
}

// act(i, stratum size, rank) for the drawn index of every stratum; it touches data[i].
template <class T, class Act>
void strata(T* data, uint64_t d, uint64_t k, uint64_t word, int threads, Act act) {
    constexpr size_t piece = 2048;
    const uint64_t whole = d / k, part = d % k;
    each(size_t((k + piece - 1) / piece), k < 8 * piece ? 1 : threads, [=](size_t p) {
        std::uint32_t bits[piece];
        uint64_t places[piece];
        uint8_t carries[piece];
        const size_t begin = p * piece, n = begin + piece < k ? piece : size_t(k) - begin;
        draws(word, begin, n, bits);
        // floor(i * d / k), kept up to date by addition.
        uint64_t edge = uint64_t(begin) * whole + uint64_t(begin) * part / k, rest = uint64_t(begin) * part % k;
        for (size_t r = 0; r < n; ++r) {
            rest += part;
            const uint64_t carry = rest >= k, size = whole + carry;
            rest -= carry ? k : 0;
            places[r] = edge + ((uint64_t(bits[r]) * size) >> 32);
            carries[r] = uint8_t(carry);
            edge += size;
        }
        for (size_t r = 0; r < n; ++r) {
            if (r + ahead < n) __builtin_prefetch(data + places[r + ahead], 1);
            act(size_t(places[r]), whole + carries[r], begin + r);
        }
    });
}

template <class T>
void randomk_encode_(const Source<T>& s, uint64_t word, bool scaled, T* values, uint64_t k, int threads) {
    T* x = s.x;
    const T* g = s.g;
    const T beta = s.beta, gamma = s.gamma;
    if (s.g && s.ef) {
        parallel(s.n, grain, threads, [=](size_t begin, size_t end) {
            if (beta == T(1) && gamma == T(1))
                for (size_t i = begin; i < end; ++i) x[i] += g[i];
            else
                for (size_t i = begin; i < end; ++i) x[i] = beta * x[i] + gamma * g[i];
        });
        g = nullptr;
    }
    const bool ef = s.ef;
    strata(x, s.n, k, word, threads, [=](size_t i, uint64_t size, size_t rank) {
        const T v = g ? T(beta * x[i]) + T(gamma * g[i]) : x[i];
        const T sent = scaled ? v * T(size) : v;
        values[rank] = sent;
        if (ef) x[i] = v - sent;
    });
}

template <class T>
double square_sum_(const T* x, size_t n, int threads) {
    const size_t blocks = (n + tree_block - 1) / tree_block;
    double* sums = room(2).get<double>(blocks);
    parallel(blocks, 64, n < serial_below ? 1 : threads, [=](size_t begin, size_t end) {
        for (size_t b = begin; b < end; ++b) {
            const T* y = x + b * tree_block;
            const size_t m = n - b * tree_block < tree_block ? n - b * tree_block : tree_block;
            sums[b] = tree<tree_block>(m, [=](size_t i) { return double(y[i]) * double(y[i]); });
        }
    });
    return tree_sum(sums, blocks);
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                               \
    int sparse_add(T* out, uint64_t d, void* values, Kind kind, uint64_t k, uint64_t count, const uint8_t* index,     \
                   T alpha, int threads) {                                                                            \
        return sparse_add_(out, d, Values{values, kind}, k, count, index, alpha, threads);                            \
    }                                                                                                                 \
    int dgc_commit(T* v, T* m, uint64_t d, void* values, Kind kind, uint64_t k, uint64_t count, const uint8_t* index, \
                   int threads) {                                                                                     \
        return dgc_commit_(v, m, d, Values{values, kind}, k, count, index, threads);                                  \
    }                                                                                                                 \
    int sparse_zero(T* out, uint64_t d, uint64_t k, uint64_t count, const uint8_t* index, int threads) {              \
        return apply(d, k, count, index, threads, [=](size_t i) { __builtin_prefetch(out + i, 1); },                  \
                     [=](size_t i, size_t) { out[i] = T(0); });                                                       \
    }                                                                                                                 \
    void randomk_encode(const Source<T>& s, uint64_t word, bool scaled, T* values, uint64_t k, int threads) {         \
        randomk_encode_(s, word, scaled, values, k, threads);                                                         \
    }                                                                                                                 \
    void randomk_add(T* out, uint64_t d, const T* values, uint64_t k, uint64_t word, T alpha, int threads) {          \
        strata(out, d, k, word, threads, [=](size_t i, uint64_t, size_t rank) { out[i] += values[rank] * alpha; });        \
    }                                                                                                                 \
    double square_sum(const T* x, size_t n, int threads) { return square_sum_(x, n, threads); }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

void clear(void* data, size_t bytes, int threads) {
    const bool past = bytes >= streamed_above;
    parallel(bytes, size_t(1) << 20, threads, [=](size_t begin, size_t end) {
        write(static_cast<uint8_t*>(data), begin, end, past, [](size_t) { return uint8_t(0); });
    });
}

void encode_indices(const int64_t* indices, uint64_t count, uint64_t d, uint64_t k, uint8_t* out) {
    const IndexLayout layout(d, k);
    std::memset(out, 0, layout.bytes);
    IndexWriter writer(layout, out, 0);
    for (uint64_t i = 0; i < count; ++i) writer.put(uint64_t(indices[i]));
    if (!layout.bitmap)
        for (uint64_t i = count; i < k; ++i) writer.put(d - 1);
    writer.finish();
}

int decode_indices(const uint8_t* index, uint64_t d, uint64_t k, uint64_t count, int64_t* out, int threads) {
    const IndexLayout layout(d, k);
    if (k == 0) return fine;
    if (k < 16384) threads = 1;
    Pieces pieces(layout, index);
    int64_t* indices = layout.bitmap ? nullptr : room(1).get<int64_t>(size_t(k));
    if (int fault = decode(layout, index, size_t(count), indices, pieces, threads)) return fault;
    if (indices)
        std::memcpy(out, indices, size_t(count) * sizeof *out);
    else
        for (size_t p = 0; p < pieces.count; ++p)
            pieces.visit(p, [&](size_t i, size_t rank) { out[rank] = int64_t(i); });
    return fine;
}

}  // namespace GRACE_ISA
}  // namespace grace
