// Values in the dtype they are sent in. Finite values stay finite: those beyond the range saturate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "float16.hpp"
#include "float_bits.hpp"
#include "types.hpp"

namespace grace {
namespace GRACE_ISA {

// An array of sent values.
struct WireValues {
    void* data;
    Dtype dtype;

    // Whether values are sent as they are.
    template <class T>
    bool plain() const {
        return dtype == (sizeof(T) == 4 ? Dtype::float32 : Dtype::float64);
    }

    // Store v, return what is decoded from it.
    template <class T>
    T put(std::size_t i, T v) const {
        if (dtype == Dtype::float64) {
            static_cast<double*>(data)[i] = double(v);
            return v;
        }
        const bool single = dtype == Dtype::float32, half = dtype == Dtype::float16;
        const T size = magnitude(v), limit = T(single ? 0x1.fffffep127f : half ? 65504.0f : 0x1.fep127f);
        if (size > limit && size < T(__builtin_huge_val())) v = v < T(0) ? -limit : limit;
        if (single) {
            static_cast<float*>(data)[i] = float(v);
            return T(float(v));
        }
        const std::uint16_t bits = half ? to_float16(float(v)) : to_bfloat16(float(v));
        static_cast<std::uint16_t*>(data)[i] = bits;
        return T(half ? from_float16(bits) : from_bfloat16(bits));
    }

    template <class T>
    T get(std::size_t i) const {
        if (dtype == Dtype::float32) return T(static_cast<const float*>(data)[i]);
        if (dtype == Dtype::float64) return T(static_cast<const double*>(data)[i]);
        const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
        return T(dtype == Dtype::float16 ? from_float16(bits) : from_bfloat16(bits));
    }

    void clear(std::size_t begin, std::size_t end) const {
        const std::size_t size = dtype == Dtype::float32 ? 4 : dtype == Dtype::float64 ? 8 : 2;
        std::memset(static_cast<char*>(data) + begin * size, 0, (end - begin) * size);
    }

    // Whether all of begin..end are zero (of either sign).
    bool zero(std::size_t begin, std::size_t end) const {
        bool all = true;
        for (std::size_t i = begin; i < end; ++i) all &= get<double>(i) == 0.0;
        return all;
    }

    // Whether the first n are finite.
    bool finite(std::size_t n) const {
        if (dtype == Dtype::float32) return finite_bits(static_cast<const std::uint32_t*>(data), n, 0x7f800000u);
        if (dtype == Dtype::float64) return finite_bits(static_cast<const std::uint64_t*>(data), n, std::uint64_t(0x7ff) << 52);
        return finite_bits(static_cast<const std::uint16_t*>(data), n, dtype == Dtype::float16 ? 0x7c00 : 0x7f80);
    }

private:
    template <class U>
    static bool finite_bits(const U* x, std::size_t n, std::uint64_t exponent) {
        const U mask = U(exponent);
        U bad = 0;
        for (std::size_t i = 0; i < n; ++i) bad = U(bad | U((x[i] & mask) == mask));
        return !bad;
    }
};

// f(get) with get(rank) the value sent at a rank.
template <class T, class F>
static inline auto with_values(const WireValues& values, F f) {
    if (values.plain<T>()) {
        const T* sent = static_cast<const T*>(values.data);
        return f([=](std::size_t rank) { return sent[rank]; });
    }
    return f([=](std::size_t rank) { return values.get<T>(rank); });
}

}  // namespace GRACE_ISA
}  // namespace grace
