// Adding sparse payloads, and coding their indices.
#include "methods/sparse.hpp"

#include "index_decoder.hpp"
#include "wire_values.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

template <class T>
Fault sparse_add_(T* out, uint64_t d, const WireValues& values, uint64_t k, uint64_t count, const uint8_t* index, T alpha,
                  int threads) {
    if (!values.zero(size_t(count), size_t(k))) return Fault::stray_values;
    const auto fetch = [=](size_t i) { __builtin_prefetch(out + i, 1); };
    return with_values<T>(values, [=](auto get) {
        return visit_indices(d, k, count, index, threads, fetch,
                             [=](size_t i, size_t rank) { out[i] += get(rank) * alpha; });
    });
}

}  // namespace

Fault sparse_check(u64 d, void* values, Dtype dtype, u64 k, u64 count, const u8* index, int threads) {
    const WireValues sent{values, dtype};
    if (!sent.zero(size_t(count), size_t(k))) return Fault::stray_values;
    const Fault fault = visit_indices(d, k, count, index, threads, [](size_t) {}, [](size_t, size_t) {});
    return fault == Fault::none && !sent.finite(size_t(count)) ? Fault::value_not_finite : fault;
}

#define GRACE_DEFINE(T)                                                                                      \
    Fault sparse_add(T* out, u64 d, void* values, Dtype dtype, u64 k, u64 count, const u8* index, T alpha,   \
                     int threads) {                                                                          \
        return sparse_add_(out, d, WireValues{values, dtype}, k, count, index, alpha, threads);              \
    }                                                                                                        \
    Fault sparse_zero(T* out, u64 d, u64 k, u64 count, const u8* index, int threads) {                       \
        return visit_indices(d, k, count, index, threads, [=](size_t i) { __builtin_prefetch(out + i, 1); }, \
                             [=](size_t i, size_t) { out[i] = T(0); });                                      \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

void encode_indices(const std::int64_t* indices, u64 count, u64 d, u64 k, u8* out) {
    const IndexLayout layout(d, k);
    std::memset(out, 0, layout.bytes);
    IndexWriter writer(layout, out, 0);
    for (uint64_t i = 0; i < count; ++i) writer.put(uint64_t(indices[i]));
    if (!layout.bitmap)
        for (uint64_t i = count; i < k; ++i) writer.put(d - 1);
    writer.finish();
}

Fault decode_indices(const u8* index, u64 d, u64 k, u64 count, std::int64_t* out, int threads) {
    return visit_indices(d, k, count, index, threads, [](size_t) {},
                         [=](size_t i, size_t rank) { out[rank] = std::int64_t(i); });
}

}  // namespace GRACE_ISA
}  // namespace grace
