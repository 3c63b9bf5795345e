// The k largest magnitudes, bracketed by a sample.
#pragma once

#include <cmath>

#include "picker.hpp"
#include "random.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

template <class T>
void topk_encode_(const Source<T>& s, size_t k, const Values& values, uint8_t* index, int threads) {
    using B = typename Bits<T>::type;
    Picker<T> picker(s, threads);
    const size_t d = s.n;
    if (d >= 65536 && k < d) {
        const size_t samples = d / 8 < 32768 ? d / 8 : 32768, stride = d / samples;
        const double expected = double(samples) * double(k) / double(d);
        const double slack = 4 * std::sqrt(expected * (1 - double(k) / double(d))) + 8;
        const size_t rank = expected + slack < double(samples) ? size_t(expected + slack) : samples;
        // A place drawn in each stretch, so that no period of the tensor meets the sample's.
        B* keys = picker.sample(samples, [=](size_t j) {
            return j * stride + size_t((std::uint64_t(draw(0x5eed, j)) * stride) >> 32);
        });
        B ceiling = Bits<T>::magnitude;
        size_t ties, room_for = 2 * (rank * stride) + 4096;
        if (k > d / 16 && expected > slack + 1) {
            B* copy = keys + samples;
            std::memcpy(copy, keys, samples * sizeof(B));
            ceiling = nth(copy, samples, size_t(expected - slack), ties);
            room_for = 4 * size_t(slack) * stride + 4096;
        }
        const B least = nth(keys, samples, rank, ties);
        if ((k <= d / 16 || ceiling < Bits<T>::magnitude) && picker.collect(least - 1, room_for, ceiling) >= k &&
            picker.over() < k && picker.stored())
            return picker.emit(picker.cut_collected(k), k, values, index);
    }
    picker.emit(picker.cut_all(k), k, values, index);
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
