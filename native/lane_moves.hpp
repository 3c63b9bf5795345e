// Moving some of a vector's eight lanes to its front, and back.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>

#include <cstdint>

namespace grace {
namespace GRACE_ISA {
namespace {

// For each set of lanes: those of the set moved to the front, and the other way round.
struct Moves {
    alignas(64) std::uint8_t front[256][8], back[256][8];

    constexpr Moves() : front(), back() {
        for (int set = 0; set < 256; ++set) {
            int count = 0;
            for (int lane = 0; lane < 8; ++lane) {
                back[set][lane] = std::uint8_t(count & 7);
                if (set >> lane & 1) front[set][count++] = std::uint8_t(lane);
            }
        }
    }
};
constexpr Moves moves;

inline __m256i order(const std::uint8_t* lane) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(lane)));
}
inline unsigned lanes_of(__m256i mask) { return unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(mask))); }

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace

#endif
