// How encoders read their input, tile by tile.
#pragma once

#include <cstddef>
#include <cstring>

#include "float_bits.hpp"
#include "types.hpp"

namespace grace {
namespace GRACE_ISA {

// Elements handled at a time: a few buffers of this many stay in the first-level cache.
constexpr std::size_t tile = 1024;

// Elements a thread takes at a time; a multiple of `tile` and of 8.
constexpr std::size_t grain = 32 * tile;

template <class T>
static inline void axpby_into(const T* __restrict x, const T* __restrict g, T beta, T gamma, std::size_t n, T* __restrict v) {
    if (beta == T(1) && gamma == T(1))
        for (std::size_t i = 0; i < n; ++i) v[i] = x[i] + g[i];
    else
        for (std::size_t i = 0; i < n; ++i) v[i] = beta * x[i] + gamma * g[i];
}

// v of the elements begin..begin+n; points into x itself where x is neither changed nor added to.
template <class T>
static inline const T* load(const EncoderInput<T>& s, std::size_t begin, std::size_t n, T* buffer) {
    if (s.g) axpby_into(s.x + begin, s.g + begin, s.beta, s.gamma, n, buffer);
    else if (s.ef) std::memcpy(buffer, s.x + begin, n * sizeof(T));
    else return s.x + begin;
    return buffer;
}

// The same, except that under error feedback v is left in x, where later passes read it.
template <class T>
static inline const T* load_in_place(const EncoderInput<T>& s, std::size_t begin, std::size_t n, T* buffer) {
    if (!s.g) return s.x + begin;
    T* x = s.x + begin;
    const T* __restrict g = s.g + begin;
    T* v = s.ef ? x : buffer;
    const T beta = s.beta, gamma = s.gamma;
    if (beta == T(1) && gamma == T(1))
        for (std::size_t i = 0; i < n; ++i) v[i] = x[i] + g[i];
    else
        for (std::size_t i = 0; i < n; ++i) v[i] = beta * x[i] + gamma * g[i];
    return v;
}

// v of one element.
template <class T>
static inline T value_at(const EncoderInput<T>& s, std::size_t i) {
    return s.g ? T(s.beta * s.x[i]) + T(s.gamma * s.g[i]) : s.x[i];
}

// Ask for the elements begin..begin+n before they are needed, so that memory works while a tile is computed.
template <class T>
static inline void prefetch(const EncoderInput<T>& s, std::size_t begin, std::size_t n) {
    constexpr std::size_t line = 64 / sizeof(T);
    const std::size_t end = begin + n < s.n ? begin + n : s.n;
    for (std::size_t i = begin; i < end; i += line) {
        __builtin_prefetch(s.x + i, 0, 2);
        if (s.g) __builtin_prefetch(s.g + i, 0, 2);
    }
}

}  // namespace GRACE_ISA
}  // namespace grace
