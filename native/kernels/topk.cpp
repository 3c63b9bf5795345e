// Top-k and threshold selection.
#include "methods/topk.hpp"

#include "sampled_topk.hpp"
#include "selector.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// The selection between threshold_find and threshold_emit of a thread.
template <class T>
Selector<T>*& waiting() {
    struct Holder {
        Selector<T>* selector = nullptr;
        ~Holder() { delete selector; }
    };
    static thread_local Holder holder;
    return holder.selector;
}

template <class T>
size_t threshold_find_(const EncoderInput<T>& s, T threshold, int threads) {
    Selector<T>*& selector = waiting<T>();
    delete selector;
    selector = nullptr;
    selector = new Selector<T>(s, threads);
    return selector->collect(key(threshold) - 1, s.n / 16 + 4096);
}

template <class T>
bool threshold_emit_(const EncoderInput<T>& s, T threshold, size_t k, const WireValues& values, uint8_t* index) {
    Selector<T>*& selector = waiting<T>();
    if (!selector) return false;
    if (s.n) selector->emit({key(threshold), k, k, true}, k, values, index);
    delete selector;
    selector = nullptr;
    return true;
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                                        \
    void topk_encode(const EncoderInput<T>& s, std::uint64_t k, void* values, Dtype dtype, std::uint8_t* index, int threads) { \
        encode_topk(s, size_t(k), WireValues{values, dtype}, index, threads);                                                  \
    }                                                                                                                          \
    std::uint64_t threshold_find(const EncoderInput<T>& s, T threshold, int threads) {                                         \
        return threshold_find_(s, threshold, threads);                                                                         \
    }                                                                                                                          \
    bool threshold_emit(const EncoderInput<T>& s, T threshold, std::uint64_t k, void* values, Dtype dtype,                     \
                        std::uint8_t* index, int) {                                                                            \
        return threshold_emit_(s, threshold, size_t(k), WireValues{values, dtype}, index);                                     \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
