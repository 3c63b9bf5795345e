// Where an encoder's values come from: v = x, or beta * x + gamma * g with every operation rounded.
#pragma once

#include <cstddef>

namespace grace {

template <class T>
struct Source {
    T* x;
    const T* g;  // null: v = x
    T beta, gamma;
};

namespace GRACE_ISA {

// v[0..n) of the elements from `begin`; points into x itself where there is nothing to add.
template <class T>
static inline const T* load(const Source<T>& s, std::size_t begin, std::size_t n, T* buffer) {
    if (!s.g) return s.x + begin;
    const T *x = s.x + begin, *g = s.g + begin;
    const T beta = s.beta, gamma = s.gamma;
    for (std::size_t i = 0; i < n; ++i) buffer[i] = beta * x[i] + gamma * g[i];
    return buffer;
}

}  // namespace GRACE_ISA
}  // namespace grace
