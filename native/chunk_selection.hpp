// The largest elements of a chunk, and their positions on the wire.
//
// A lower bound of the k-th largest magnitude comes from k groups of a chunk: the smallest of their maxima, since each group has
// an element at least as large. Few elements reach it, and the exact selection looks at those alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>

#include "faults.hpp"
#include "float_bits.hpp"
#include "packing.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "types.hpp"

namespace grace {
namespace GRACE_ISA {

using std::int32_t;

struct SelectionBuffers {
    ScratchBuffer maxima;      // of the groups
    ScratchBuffer candidates;  // positions that reach the bound
    ScratchBuffer keys;        // their magnitudes, to be partitioned
};

template <class T>
static inline typename Bits<T>::type key_of(T v) {
    return typename Bits<T>::type(cast_bits<typename Bits<T>::type>(v) & Bits<T>::magnitude);
}

// A number that at least k of the n magnitudes reach.
template <class T>
static typename Bits<T>::type bound(const T* __restrict v, size_t n, size_t k) {
    using B = typename Bits<T>::type;
    B* __restrict tops = scratch<SelectionBuffers>().maxima.get<B>(k);
    for (size_t j = 0; j < k; ++j) tops[j] = key_of(v[j]);
    for (size_t i = k; i + k <= n; i += k)
        for (size_t j = 0; j < k; ++j) {
            const B key = key_of(v[i + j]);
            tops[j] = key > tops[j] ? key : tops[j];
        }
    B least = tops[0];
    for (size_t j = 1; j < k; ++j) least = tops[j] < least ? tops[j] : least;
    return least;
}

// Positions of the k largest magnitudes in increasing order; of equal ones the first.
template <class T>
static void select_largest(const T* __restrict v, size_t n, size_t k, int32_t* __restrict chosen) {
    using B = typename Bits<T>::type;
    auto& buffers = scratch<SelectionBuffers>();
    const B least = bound(v, n, k);
    int32_t* __restrict candidates = buffers.candidates.get<int32_t>(n + 1);
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
        candidates[count] = int32_t(i);
        count += key_of(v[i]) >= least;
    }
    B* keys = buffers.keys.get<B>(count);
    for (size_t c = 0; c < count; ++c) keys[c] = key_of(v[candidates[c]]);
    std::nth_element(keys, keys + (k - 1), keys + count, std::greater<B>());
    const B last = keys[k - 1];
    size_t equal = k;
    for (size_t c = 0; c < k; ++c) equal -= keys[c] > last;
    for (size_t c = 0, found = 0; found < k; ++c) {
        const B key = key_of(v[candidates[c]]);
        if (key < last || (key == last && equal == 0)) continue;
        equal -= key == last;
        chosen[found++] = candidates[c];
    }
}

static inline void write_codes(const int32_t* codes, size_t n, int bits, u8* out) {
    BitWriter writer(out, bits);
    writer.put(codes, n);
    writer.finish();
}

static inline bool padding_clear(const u8* bytes, size_t count, size_t used) {
    return used % 8 == 0 || count == 0 || bytes[count - 1] >> (used % 8) == 0;
}

// Positions of the wire; false if they do not increase or reach n.
static inline bool read_positions(const u8* at, size_t bytes, int width, size_t kept, size_t n, int32_t* chosen) {
    BitReader(at, at + bytes, width).get(chosen, kept);
    int32_t before = -1;
    bool good = true;
    for (size_t i = 0; i < kept; ++i) good &= chosen[i] > before, before = chosen[i];
    return good && size_t(before) < n;
}

// The fault of the first of `count` chunks that has one.
template <class F>
static inline Fault first_fault(size_t count, int threads, F fault_of) {
    std::atomic<size_t> first{count};
    each(count, threads, [&](size_t c) {
        if (fault_of(c) == Fault::none) return;
        size_t known = first.load();
        while (c < known && !first.compare_exchange_weak(known, c)) {
        }
    });
    return first.load() < count ? fault_of(first.load()) : Fault::none;
}

}  // namespace GRACE_ISA
}  // namespace grace
