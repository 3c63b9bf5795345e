// Conversions between float32 and the 16-bit formats, to nearest even, without branches so that loops vectorise.
#pragma once

#include "float_bits.hpp"
#include "types.hpp"

namespace grace {
namespace GRACE_ISA {

// Finite numbers must be within float16's range.
static inline u16 to_float16(float f) {
    u32 u = cast_bits<u32>(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    // Below 2^-14 the spacing is 2^-24, which is that of numbers next to one half: let an addition round.
    u32 small = cast_bits<u32>(cast_bits<float>(u) + 0.5f) - 0x3f000000u;
    u32 normal = (u + 0xfffu + ((u >> 13) & 1u) - 0x38000000u) >> 13;
    u32 special = 0x7c00u | (u > 0x7f800000u ? 0x200u : 0u);
    return u16(sign | (u >= 0x7f800000u ? special : u < 0x38800000u ? small : normal));
}

static inline float from_float16(u16 h) {
    u32 u = u32(h & 0x7fffu) << 13, sign = u32(h & 0x8000u) << 16;
    // 2^112 moves the exponent's bias and makes subnormals normal; the product is exact.
    u32 finite = cast_bits<u32>(cast_bits<float>(u) * 0x1p112f);
    return cast_bits<float>(sign | (u >= 0x0f800000u ? u | 0x7f800000u : finite));
}

static inline u16 to_bfloat16(float f) {
    u32 u = cast_bits<u32>(f);
    u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return u16((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

static inline float from_bfloat16(u16 h) { return cast_bits<float>(u32(h) << 16); }

}  // namespace GRACE_ISA
}  // namespace grace
