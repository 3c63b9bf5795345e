// Codes of any width from 1 to 16 bits in a stream of bytes, lowest bits first.
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace GRACE_ISA
}  // namespace grace
