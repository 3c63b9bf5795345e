// The largest elements of a chunk, and their positions on the wire.
//
// A lower bound of the k-th largest magnitude comes from at least k groups of a chunk: the smallest of their maxima, since each
// group has an element at least as large. Few elements reach it, and the exact selection looks at those alone.
#pragma once

#include <atomic>

#include "encoder_input.hpp"
#include "faults.hpp"
#include "float_bits.hpp"
#include "lane_moves.hpp"
#include "packing.hpp"
#include "parallel.hpp"
#include "scratch.hpp"
#include "types.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

using std::int32_t;

struct SelectionBuffers {
    ScratchBuffer candidates;  // positions that reach the bound
    ScratchBuffer keys;        // their magnitudes
};

// Chunks of `size` elements that a thread takes at a time: handing out each by itself takes about as long as decoding it.
inline size_t chunks_per_piece(size_t size) { return size < grain ? grain / size : 1; }

template <class T>
inline typename Bits<T>::type key_of(T v) {
    return typename Bits<T>::type(cast_bits<typename Bits<T>::type>(v) & Bits<T>::magnitude);
}

// A number that at least k of the n magnitudes reach. Group g has the elements g, g + groups, ...
template <class T>
typename Bits<T>::type bound(const T* __restrict v, size_t n, size_t k) {
    using B = typename Bits<T>::type;
    constexpr size_t across = 128 / sizeof(T);  // maxima that stay in registers
    const size_t groups = (k + across - 1) / across * across;
    if (groups > n) return 0;
    B least = Bits<T>::magnitude;
    for (size_t g = 0; g < groups; g += across) {
        B tops[across] = {};
        for (size_t i = g; i + across <= n; i += groups)
            for (size_t l = 0; l < across; ++l) {
                const B key = key_of(v[i + l]);
                tops[l] = key > tops[l] ? key : tops[l];
            }
        for (size_t l = 0; l < across; ++l) least = tops[l] < least ? tops[l] : least;
    }
    return least;
}

// Positions and magnitudes of the elements that reach `least`; returns how many. There must be room for n + 8.
template <class T, class B>
size_t collect(const T* __restrict v, size_t n, B least, int32_t* __restrict places, B* __restrict keys) {
    size_t count = 0, i = 0;
#if defined(__AVX2__)
    if constexpr (sizeof(T) == 4) {
        const __m256i magnitudes = _mm256_set1_epi32(Bits<T>::magnitude), below = _mm256_set1_epi32(least - 1);
        __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        for (; i + 8 <= n; i += 8, place = _mm256_add_epi32(place, _mm256_set1_epi32(8))) {
            const __m256i key = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + i)), magnitudes);
            const unsigned found = lanes_of(_mm256_cmpgt_epi32(key, below));
            const __m256i front = order(moves.front[found]);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + count), _mm256_permutevar8x32_epi32(place, front));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(keys + count), _mm256_permutevar8x32_epi32(key, front));
            count += unsigned(__builtin_popcount(found));
        }
    }
#endif
    for (; i < n; ++i) {
        const B key = key_of(v[i]);
        places[count] = int32_t(i), keys[count] = key;
        count += key >= least;
    }
    return count;
}

// What the k largest of n keys reach, and how many reach it: more than k where some are equal.
template <class B>
struct Cut {
    B least;
    size_t reach;
};

// By bisection, which needs no branch on a key; all keys reach `low`.
template <class B>
Cut<B> cut_keys(const B* __restrict keys, size_t n, size_t k, B low) {
    B high = low;
    for (size_t c = 0; c < n; ++c) high = keys[c] > high ? keys[c] : high;
    size_t reach = n;
    while (reach > k && low < high) {
        const B middle = B(low + (high - low) / 2 + 1);
        B count = 0;
        for (size_t c = 0; c < n; ++c) count += keys[c] >= middle;
        if (size_t(count) >= k) low = middle, reach = size_t(count);
        else high = middle - 1;
    }
    return {low, reach};
}

// Positions of the k largest magnitudes in increasing order; of equal ones the first. There must be room for k + 1.
template <class T>
void select_largest(const T* __restrict v, size_t n, size_t k, int32_t* __restrict chosen) {
    using B = typename Bits<T>::type;
    auto& buffers = scratch<SelectionBuffers>();
    int32_t* __restrict places = buffers.candidates.get<int32_t>(n + 8);
    B* __restrict keys = buffers.keys.get<B>(n + 8);
    const B low = bound(v, n, k);
    const size_t count = collect(v, n, low, places, keys);
    const Cut<B> cut = cut_keys(keys, count, k, low);
    size_t found = 0;
    if (cut.reach == k) {
        for (size_t c = 0; c < count; ++c) {
            chosen[found] = places[c];
            found += keys[c] >= cut.least;
        }
        return;
    }
    size_t equal = k;
    for (size_t c = 0; c < count; ++c) equal -= keys[c] > cut.least;
    for (size_t c = 0; found < k; ++c) {
        if (keys[c] < cut.least || (keys[c] == cut.least && equal == 0)) continue;
        equal -= keys[c] == cut.least;
        chosen[found++] = places[c];
    }
}

inline void write_codes(const int32_t* codes, size_t n, int bits, u8* out) {
    BitWriter writer(out, bits);
    writer.put(codes, n);
    writer.finish();
}

inline bool padding_clear(const u8* bytes, size_t count, size_t used) {
    return used % 8 == 0 || count == 0 || bytes[count - 1] >> (used % 8) == 0;
}

// Positions of the wire; false if they do not increase or reach n.
inline bool read_positions(const CodeReader& reader, const u8* at, size_t kept, size_t n, int32_t* chosen) {
    reader.get(at, chosen, kept);
    int32_t bad = 0;
    for (size_t i = 1; i < kept; ++i) bad |= chosen[i] <= chosen[i - 1];
    return !bad && size_t(chosen[kept - 1]) < n;
}

// The fault of the first of `count` chunks that has one; a thread looks at `piece` of them at a time.
template <class F>
inline Fault first_fault(size_t count, size_t piece, int threads, F fault_of) {
    std::atomic<size_t> first{count};
    each_piece(count, piece, threads, [&](size_t c, size_t end) {
        while (c < end && fault_of(c) == Fault::none) ++c;
        if (c == end) return;
        size_t known = first.load();
        while (c < known && !first.compare_exchange_weak(known, c)) {
        }
    });
    return first.load() < count ? fault_of(first.load()) : Fault::none;
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
