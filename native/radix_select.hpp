// Radix selection: the rank-th largest of many keys, found digit by digit from histograms, highest digit first.
//
// RadixDescent holds the search; callers count a digit of the keys they have (an array, or a tensor read in chunks) and
// hand it the histogram.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "parallel.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

constexpr int digit_bits = 11;
constexpr std::size_t bins = std::size_t(1) << digit_bits;

// The digit of keys that is counted next. Only keys that share all higher digits with the one looked for count.
template <class B>
struct Digit {
    int low, high;  // the digit's bits are low ... high - 1
    B mask, prefix;

    B of(B key) const { return (key >> low) & mask; }
    // Two shifts: a single one by the full width of the type would be undefined.
    B higher(B key) const { return key >> (high - 1) >> 1; }
    bool counts(B key) const { return higher(key) == prefix; }
};

template <class B>
class RadixDescent {
public:
    explicit RadixDescent(std::size_t rank) : rank_(rank) {}

    bool finished() const { return shift_ == 0; }

    Digit<B> digit() const {
        const int width = shift_ < digit_bits ? shift_ : digit_bits;
        return {shift_ - width, shift_, (B(1) << width) - 1, found_ >> (shift_ - 1) >> 1};
    }

    // Take the histogram of digit(); returns the bin that holds the key looked for.
    template <class Count>
    B take(const Count* histogram) {
        const Digit<B> digit = this->digit();
        B bin = digit.mask;
        while (histogram[bin] < rank_) rank_ -= histogram[bin--];
        found_ |= bin << digit.low;
        shift_ = digit.low;
        inside_ = std::size_t(histogram[bin]);
        return bin;
    }

    // The key looked for lies in least() ... most(), as do inside() keys in all, of which it is the rank()-th largest.
    B least() const { return found_; }
    B most() const { return found_ + ((B(1) << shift_) - 1); }
    std::size_t inside() const { return inside_; }
    std::size_t rank() const { return rank_; }

private:
    int shift_ = int(sizeof(B)) * 8 - 1;  // bits not yet found; keys are not negative
    B found_ = 0;
    std::size_t rank_, inside_ = 0;
};

// The rank-th largest of n keys (overwritten), and how many of those equal to it are needed to make up the rank.
template <class B>
B radix_select(B* keys, std::size_t n, std::size_t rank, std::size_t& ties) {
    std::uint32_t histogram[bins];
    RadixDescent<B> descent(rank);
    while (!descent.finished()) {
        const Digit<B> digit = descent.digit();
        std::memset(histogram, 0, (std::size_t(digit.mask) + 1) * sizeof histogram[0]);
        for (std::size_t i = 0; i < n; ++i) ++histogram[digit.of(keys[i])];
        const B bin = descent.take(histogram);
        std::size_t kept = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const B one = keys[i];
            keys[kept] = one;
            kept += digit.of(one) == bin;
        }
        n = kept;
        if (n == 1) return ties = descent.rank(), keys[0];
    }
    return ties = descent.rank(), descent.least();
}

// Histograms of `size` bins over the chunks of a tensor: count(c, histogram) counts chunk c. The first chunk's becomes the
// sum of all; the others stay as counted.
template <class Count, class CountChunk>
void count_chunks(const Chunks& chunks, int threads, Count* histograms, std::size_t size, CountChunk count) {
    each(chunks.count, threads, [=](std::size_t c) {
        std::memset(histograms + c * size, 0, size * sizeof *histograms);
        count(c, histograms + c * size);
    });
    for (std::size_t c = 1; c < chunks.count; ++c)
        for (std::size_t b = 0; b < size; ++b) histograms[b] += histograms[c * size + b];
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
