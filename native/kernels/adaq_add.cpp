// AdaQ's decoder: adds the mean of its sign at every index, after all were checked.
#include "methods/adaq.hpp"

#include "index_decoder.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// The signs must mark `negative` of the first `count` elements, and nothing behind them.
bool right_signs(const uint8_t* signs, size_t bytes, size_t count, size_t negative) {
    size_t marked = 0;
    for (size_t at = 0; at < bytes; at += 8) {
        const uint64_t bits = word_at(signs, bytes, at);
        const size_t first = at * 8;
        if (first + 64 > count && (first >= count ? bits : bits >> (count - first))) return false;
        marked += count_ones(bits);
    }
    return marked == negative;
}

inline size_t sign(const uint8_t* signs, size_t rank) { return signs[rank >> 3] >> (rank & 7) & 1; }

template <class T>
Fault add_(T* out, size_t d, size_t slots, size_t positive, size_t negative, const T* means, const uint8_t* index,
           const uint8_t* signs, T alpha, int threads) {
    const size_t count = positive + negative;
    if (!right_signs(signs, (slots + 7) / 8, count, negative)) return Fault::sign_count;
    const T sent[2] = {means[0] * alpha, means[1] * alpha};
    return visit_indices(d, slots, count, index, threads, [=](size_t i) { __builtin_prefetch(out + i, 1); },
                         [=](size_t i, size_t rank) { out[i] += sent[sign(signs, rank)]; });
}

}  // namespace

Fault adaq_check(u64 d, u64 slots, u64 positive, u64 negative, const u8* index, const u8* signs, int threads) {
    const size_t count = size_t(positive + negative);
    if (!right_signs(signs, size_t(slots + 7) / 8, count, size_t(negative))) return Fault::sign_count;
    return visit_indices(d, slots, count, index, threads, [](size_t) {}, [](size_t, size_t) {});
}

#define GRACE_DEFINE(T)                                                                                            \
    Fault adaq_add(T* out, uint64_t d, uint64_t slots, uint64_t positive, uint64_t negative, const T* means,       \
                 const uint8_t* index, const uint8_t* signs, T alpha, int threads) {                               \
        return add_(out, size_t(d), size_t(slots), size_t(positive), size_t(negative), means, index, signs, alpha, \
                    threads);                                                                                      \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
