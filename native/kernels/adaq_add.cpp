// AdaQ's decoder: every index to the mean of its sign, after its payload was found whole.
#include "indices.hpp"
#include "parallel.hpp"
#include "research.hpp"
#include "sides.hpp"
#include "sparse.hpp"
#include "workspace.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

using std::int64_t;

inline Room& room() {
    static thread_local Room room;
    return room;
}

enum Fault { fine = 0, wrong_signs = 1, wrong_indices = 2 };

// The signs must mark `negative` of the first `count` elements, and nothing behind them.
bool right_signs(const uint8_t* signs, size_t bytes, size_t count, size_t negative) {
    size_t marked = 0;
    for (size_t at = 0; at < bytes; at += 8) {
        const uint64_t bits = word_at(signs, bytes, at);
        const size_t first = at * 8;
        if (first + 64 > count && (first >= count ? bits : bits >> (count - first))) return false;
        marked += ones(bits);
    }
    return marked == negative;
}

inline size_t sign(const uint8_t* signs, size_t rank) { return signs[rank >> 3] >> (rank & 7) & 1; }

template <class T>
int add_(T* out, size_t d, size_t slots, size_t positive, size_t negative, const T* means, const uint8_t* index,
         const uint8_t* signs, T alpha, int threads) {
    const size_t count = positive + negative;
    if (!right_signs(signs, (slots + 7) / 8, count, negative)) return wrong_signs;
    const T sent[2] = {means[0] * alpha, means[1] * alpha};
    const IndexLayout layout(d, slots);
    if (slots < 16384) threads = 1;
    if (!layout.bitmap) {
        int64_t* indices = room().get<int64_t>(count);
        if (decode_indices(index, d, slots, count, indices, threads)) return wrong_indices;
        parallel(count, 8192, threads, [=](size_t begin, size_t end) {
            constexpr size_t ahead = 64;  // every access misses the cache, so ask early
            for (size_t r = begin; r < end; ++r) {
                if (r + ahead < end) __builtin_prefetch(out + indices[r + ahead], 1);
                out[indices[r]] += sent[sign(signs, r)];
            }
        });
        return fine;
    }
    if (!spare_bits_clear(index, layout.bytes, d)) return wrong_indices;
    constexpr size_t piece = 4096;  // bytes
    const size_t pieces = (layout.bytes + piece - 1) / piece, bytes = layout.bytes;
    size_t* first = room().get<size_t>(pieces);
    each(pieces, threads, [=](size_t p) {
        const size_t end = (p + 1) * piece < bytes ? (p + 1) * piece : bytes;
        size_t n = 0;
        for (size_t at = p * piece; at < end; at += 8) n += ones(word_at(index, end, at));
        first[p] = n;
    });
    size_t total = 0;
    for (size_t p = 0; p < pieces; ++p) {
        const size_t n = first[p];
        first[p] = total;
        total += n;
    }
    if (total != count) return wrong_indices;
    each(pieces, threads, [=](size_t p) {
        const size_t end = (p + 1) * piece < bytes ? (p + 1) * piece : bytes;
        size_t rank = first[p];
        for (size_t at = p * piece; at < end; at += 8)
            for (uint64_t bits = word_at(index, end, at); bits; bits &= bits - 1, ++rank)
                out[at * 8 + size_t(__builtin_ctzll(bits))] += sent[sign(signs, rank)];
    });
    return fine;
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                               \
    int adaq_add(T* out, uint64_t d, uint64_t slots, uint64_t positive, uint64_t negative, const T* means,            \
                 const uint8_t* index, const uint8_t* signs, T alpha, int threads) {                                  \
        return add_(out, size_t(d), size_t(slots), size_t(positive), size_t(negative), means, index, signs, alpha,    \
                    threads);                                                                                         \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
