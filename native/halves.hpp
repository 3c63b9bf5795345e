// Values in the dtype they travel in. What is finite stays finite: a value beyond the range saturates.
#pragma once

#include <cstddef>
#include <cstdint>

#include "source.hpp"

namespace grace {

// The codes the Python side passes for a dtype.
enum class Kind : int { float32 = 0, float64 = 1, float16 = 2, bfloat16 = 3 };

namespace GRACE_ISA {

static inline std::uint16_t half_bits(float value) {
    std::uint32_t bits = cast_bits<std::uint32_t>(value);
    const std::uint16_t sign = std::uint16_t((bits >> 16) & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return std::uint16_t(sign | 0x7e00u);
    if (bits >= 0x47800000u) return std::uint16_t(sign | 0x7c00u);  // 2^16 and more
    if (bits < 0x38800000u) {
        // Subnormal halves are multiples of 2^-24, the spacing of floats at 0.5: adding 0.5 rounds to one.
        float shifted = cast_bits<float>(bits) + 0.5f;
        return std::uint16_t(sign | (cast_bits<std::uint32_t>(shifted) - 0x3f000000u));
    }
    bits += 0xfffu + ((bits >> 13) & 1u);
    return std::uint16_t(sign | ((bits - 0x38000000u) >> 13));
}

static inline float half_value(std::uint16_t half) {
    const std::uint32_t sign = std::uint32_t(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return cast_bits<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    // 2^112 moves the exponent's bias and makes subnormals normal; it is exact.
    float value = cast_bits<float>(rest << 13) * 0x1p112f;
    return cast_bits<float>(sign | cast_bits<std::uint32_t>(value));
}

static inline std::uint16_t brain_bits(float value) {
    const std::uint32_t bits = cast_bits<std::uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
    return std::uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float brain_value(std::uint16_t brain) { return cast_bits<float>(std::uint32_t(brain) << 16); }

// An array of sent values.
struct Values {
    void* data;
    Kind kind;

    // Store v, return what is decoded from it.
    template <class T>
    T put(std::size_t i, T v) const {
        const bool finite = magnitude(v) < T(__builtin_huge_val());
        if (kind == Kind::float64) {
            static_cast<double*>(data)[i] = double(v);
            return v;
        }
        float f = float(v);
        if (kind == Kind::float32) {
            if (finite && magnitude(f) == __builtin_huge_valf()) f = f < 0 ? -0x1.fffffep127f : 0x1.fffffep127f;
            static_cast<float*>(data)[i] = f;
            return T(f);
        }
        std::uint16_t bits = kind == Kind::float16 ? half_bits(f) : brain_bits(f);
        const std::uint16_t infinity = kind == Kind::float16 ? 0x7c00u : 0x7f80u;
        if (finite && (bits & 0x7fffu) == infinity) --bits;
        static_cast<std::uint16_t*>(data)[i] = bits;
        return T(kind == Kind::float16 ? half_value(bits) : brain_value(bits));
    }

    template <class T>
    T get(std::size_t i) const {
        if (kind == Kind::float32) return T(static_cast<const float*>(data)[i]);
        if (kind == Kind::float64) return T(static_cast<const double*>(data)[i]);
        const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
        return T(kind == Kind::float16 ? half_value(bits) : brain_value(bits));
    }

    void clear(std::size_t begin, std::size_t end) const {
        const std::size_t size = kind == Kind::float32 ? 4 : kind == Kind::float64 ? 8 : 2;
        std::memset(static_cast<char*>(data) + begin * size, 0, (end - begin) * size);
    }

    // Whether all of begin..end are zero (of either sign).
    bool zero(std::size_t begin, std::size_t end) const {
        bool all = true;
        for (std::size_t i = begin; i < end; ++i) all &= get<double>(i) == 0.0;
        return all;
    }
};

}  // namespace GRACE_ISA
}  // namespace grace
