// Top-k and threshold selection.
#include "picker.hpp"
#include "sparse.hpp"
#include "topk.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// A threshold's payload has as many places as it has hits, so the caller allocates between finding and emitting.
template <class T>
Picker<T>*& waiting() {
    struct Holder {
        Picker<T>* picker = nullptr;
        ~Holder() { delete picker; }
    };
    static thread_local Holder holder;
    return holder.picker;
}

template <class T>
size_t threshold_find_(const Source<T>& s, T threshold, int threads) {
    Picker<T>*& picker = waiting<T>();
    delete picker;
    picker = nullptr;
    picker = new Picker<T>(s, threads);
    return picker->collect(key(threshold) - 1, s.n / 16 + 4096);
}

template <class T>
bool threshold_emit_(const Source<T>& s, T threshold, size_t k, const Values& values, uint8_t* index) {
    Picker<T>*& picker = waiting<T>();
    if (!picker) return false;
    if (s.n) picker->emit({key(threshold), k, k, true}, k, values, index);
    delete picker;
    picker = nullptr;
    return true;
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                              \
    void topk_encode(const Source<T>& s, std::uint64_t k, void* values, Kind kind, std::uint8_t* index, int threads) { \
        topk_encode_(s, size_t(k), Values{values, kind}, index, threads);                                            \
    }                                                                                                                \
    std::uint64_t threshold_find(const Source<T>& s, T threshold, int threads) {                                     \
        return threshold_find_(s, threshold, threads);                                                               \
    }                                                                                                                \
    bool threshold_emit(const Source<T>& s, T threshold, std::uint64_t k, void* values, Kind kind,                    \
                        std::uint8_t* index, int) {                                                                  \
        return threshold_emit_(s, threshold, size_t(k), Values{values, kind}, index);                                \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
