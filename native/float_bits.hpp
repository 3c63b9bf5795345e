// Floating-point numbers as their bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace grace {
namespace GRACE_ISA {

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
