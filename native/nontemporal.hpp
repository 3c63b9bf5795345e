// Non-temporal stores: writing around the cache saves reading lines only to overwrite them.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace grace {
namespace GRACE_ISA {

constexpr std::size_t nontemporal_above = std::size_t(1) << 20;  // bytes; about what a core's own cache holds

// to[i] = value(i) for begin <= i < end; `nontemporal`: around the cache.
template <class T, class F>
static inline void write(T* to, std::size_t begin, std::size_t end, [[maybe_unused]] bool nontemporal, F value) {
    std::size_t i = begin;
#if defined(__SSE2__)
    if (nontemporal) {
        constexpr std::size_t width = 64 / sizeof(T);
        for (; i < end && reinterpret_cast<std::uintptr_t>(to + i) % 64; ++i) to[i] = value(i);
        for (; i + width <= end; i += width) {
            alignas(64) T line[width];
            for (std::size_t j = 0; j < width; ++j) line[j] = value(i + j);
            for (int q = 0; q < 4; ++q)
                _mm_stream_si128(reinterpret_cast<__m128i*>(to + i) + q, _mm_load_si128(reinterpret_cast<__m128i*>(line) + q));
        }
        _mm_sfence();
    }
#endif
    for (; i < end; ++i) to[i] = value(i);
}

}  // namespace GRACE_ISA
}  // namespace grace
