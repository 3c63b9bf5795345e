// Top-k: the k largest magnitudes, bracketed by a sample.
#pragma once

#include <cmath>

#include "random.hpp"
#include "selector.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

template <class T>
void encode_topk(const EncoderInput<T>& s, size_t k, const WireValues& values, uint8_t* index, int threads) {
    using B = typename Bits<T>::type;
    Selector<T> selector(s, threads);
    const size_t d = s.n;
    if (d >= serial_below && k < d) {
        const size_t samples = d / 8 < 32768 ? d / 8 : 32768, stride = d / samples;
        const double expected = double(samples) * double(k) / double(d);
        const double slack = 4 * std::sqrt(expected * (1 - double(k) / double(d))) + 8;
        const size_t rank = expected + slack < double(samples) ? size_t(expected + slack) : samples;
        B* keys = selector.sample(samples, [=](size_t j) { return sampled_place(j, stride); });
        B ceiling = Bits<T>::magnitude;
        size_t ties, capacity = 2 * (rank * stride) + 4096;
        if (k > d / 16 && expected > slack + 1) {
            B* copy = keys + samples;
            std::memcpy(copy, keys, samples * sizeof(B));
            ceiling = radix_select(copy, samples, size_t(expected - slack), ties);
            capacity = 4 * size_t(slack) * stride + 4096;
        }
        const B least = radix_select(keys, samples, rank, ties);
        if ((k <= d / 16 || ceiling < Bits<T>::magnitude) && selector.collect(least - 1, capacity, ceiling) >= k &&
            selector.over() < k && selector.stored())
            return selector.emit(selector.cut_collected(k), k, values, index);
    }
    selector.emit(selector.cut_all(k), k, values, index);
}

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
