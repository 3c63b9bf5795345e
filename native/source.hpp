// Where an encoder's values come from: v = x, or beta * x + gamma * g with every operation rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace grace {

template <class T>
struct Source {
    T* x;
    const T* g;  // null: v = x
    T beta, gamma;
    std::size_t n;
    bool ef;  // x is overwritten by the residual
};

namespace GRACE_ISA {

// Elements handled at a time: a few buffers of this many stay in the first-level cache.
constexpr std::size_t tile = 1024;

// Elements a thread takes at a time; a multiple of `tile` and of 8.
constexpr std::size_t grain = 32 * tile;

template <class T>
static inline void mixed(const T* __restrict x, const T* __restrict g, T beta, T gamma, std::size_t n, T* __restrict v) {
    if (beta == T(1) && gamma == T(1))
        for (std::size_t i = 0; i < n; ++i) v[i] = x[i] + g[i];
    else
        for (std::size_t i = 0; i < n; ++i) v[i] = beta * x[i] + gamma * g[i];
}

// v of the elements begin..begin+n; points into x itself where x is neither changed nor added to.
template <class T>
static inline const T* load(const Source<T>& s, std::size_t begin, std::size_t n, T* buffer) {
    if (s.g) mixed(s.x + begin, s.g + begin, s.beta, s.gamma, n, buffer);
    else if (s.ef) std::memcpy(buffer, s.x + begin, n * sizeof(T));
    else return s.x + begin;
    return buffer;
}

// Ask for the elements begin..begin+n before they are needed, so that memory works while a tile is computed.
template <class T>
static inline void expect(const Source<T>& s, std::size_t begin, std::size_t n) {
    constexpr std::size_t line = 64 / sizeof(T);
    const std::size_t end = begin + n < s.n ? begin + n : s.n;
    for (std::size_t i = begin; i < end; i += line) {
        __builtin_prefetch(s.x + i, 0, 2);
        if (s.g) __builtin_prefetch(s.g + i, 0, 2);
    }
}

template <class T>
struct Bits;
template <>
struct Bits<float> {
    using type = std::int32_t;
    static constexpr type magnitude = 0x7fffffff;
};
template <>
struct Bits<double> {
    using type = std::int64_t;
    static constexpr type magnitude = 0x7fffffffffffffff;
};

template <class To, class From>
static inline To cast_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// The largest magnitude. Magnitudes are ordered as the integers their bits are, and integer maxima vectorise;
// a NaN comes out on top.
template <class T>
static inline T max_abs(const T* v, std::size_t n) {
    using B = typename Bits<T>::type;
    constexpr std::size_t lanes = 128 / sizeof(T);  // several vectors, so that maxima do not wait for each other
    B tops[lanes] = {}, top = 0;
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::size_t k = 0; k < lanes; ++k) {
            B bits = cast_bits<B>(v[i + k]) & Bits<T>::magnitude;
            tops[k] = bits > tops[k] ? bits : tops[k];
        }
    for (std::size_t k = 0; k < lanes; ++k) top = tops[k] > top ? tops[k] : top;
    for (; i < n; ++i) {
        B bits = cast_bits<B>(v[i]) & Bits<T>::magnitude;
        top = bits > top ? bits : top;
    }
    return cast_bits<T>(top);
}

// The larger of two magnitudes, with a NaN on top.
template <class T>
static inline T larger(T a, T b) {
    using B = typename Bits<T>::type;
    return cast_bits<B>(a) > cast_bits<B>(b) ? a : b;
}

template <class T>
static inline T magnitude(T v) {
    using B = typename Bits<T>::type;
    return cast_bits<T>(B(cast_bits<B>(v) & Bits<T>::magnitude));
}

}  // namespace GRACE_ISA
}  // namespace grace
