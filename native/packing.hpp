// Codes of any width from 1 to 16 bits in a stream of bytes, lowest bits first.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace grace {
namespace GRACE_ISA {

class BitWriter {
public:
    BitWriter(std::uint8_t* out, int bits) : out_(out), bits_(bits) {}

    void put(const std::int32_t* codes, std::size_t n) {
        std::uint64_t held = held_;
        int filled = filled_;
        for (std::size_t i = 0; i < n; ++i) {
            held |= std::uint64_t(std::uint32_t(codes[i])) << filled;
            filled += bits_;
            if (filled >= 32) {
                for (int byte = 0; byte < 4; ++byte) *out_++ = std::uint8_t(held >> (8 * byte));
                held >>= 32;
                filled -= 32;
            }
        }
        held_ = held, filled_ = filled;
    }

    void finish() {
        for (; filled_ > 0; filled_ -= 8, held_ >>= 8) *out_++ = std::uint8_t(held_);
    }

private:
    std::uint8_t* out_;
    int bits_, filled_ = 0;
    std::uint64_t held_ = 0;
};

class BitReader {
public:
    BitReader(const std::uint8_t* in, const std::uint8_t* end, int bits) : in_(in), end_(end), bits_(bits) {}

    void get(std::int32_t* codes, std::size_t n) {
        const std::uint32_t mask = (1u << bits_) - 1;
        std::uint64_t held = held_;
        int filled = filled_;
        for (std::size_t i = 0; i < n; ++i) {
            if (filled < bits_) {
                if (end_ - in_ >= 4) {
                    std::uint32_t next = std::uint32_t(in_[0]) | std::uint32_t(in_[1]) << 8 |
                                         std::uint32_t(in_[2]) << 16 | std::uint32_t(in_[3]) << 24;
                    held |= std::uint64_t(next) << filled;
                    in_ += 4, filled += 32;
                } else {
                    for (; in_ < end_ && filled < bits_; filled += 8) held |= std::uint64_t(*in_++) << filled;
                }
            }
            codes[i] = std::int32_t(std::uint32_t(held) & mask);
            held >>= bits_;
            filled -= bits_;
        }
        held_ = held, filled_ = filled;
    }

private:
    const std::uint8_t *in_, *end_;
    int bits_, filled_ = 0;
    std::uint64_t held_ = 0;
};

// Codes of one width at many places of an array that ends at `end`: where the instruction set allows, eight at a time, each
// found by itself rather than behind the one before.
class CodeReader {
public:
    CodeReader(const std::uint8_t* end, int bits) : end_(end), bits_(bits) {
#if defined(__AVX2__)
        for (int lane = 0; lane < 8; ++lane) {
            shifts_[lane] = lane * bits % 8;
            for (int byte = 0; byte < 4; ++byte) {
                const int at = lane * bits / 8 + byte;
                bytes_[4 * lane + byte] = std::int8_t(at < 16 ? at : -1);
            }
        }
#endif
    }

    void get(const std::uint8_t* in, std::int32_t* codes, std::size_t n) const {
        std::size_t i = 0;
#if defined(__AVX2__)
        const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes_));
        const __m256i shifts = _mm256_load_si256(reinterpret_cast<const __m256i*>(shifts_));
        const __m256i mask = _mm256_set1_epi32((1 << bits_) - 1);
        for (; i + 8 <= n && end_ - in >= 16; i += 8, in += bits_) {
            const __m256i eight = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
            const __m256i words = _mm256_srlv_epi32(_mm256_shuffle_epi8(eight, bytes), shifts);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i), _mm256_and_si256(words, mask));
        }
#endif
        BitReader(in, end_, bits_).get(codes + i, n - i);
    }

private:
    const std::uint8_t* end_;
    int bits_;
#if defined(__AVX2__)
    alignas(32) std::int8_t bytes_[32];
    alignas(32) std::int32_t shifts_[8];
#endif
};

}  // namespace GRACE_ISA
}  // namespace grace
