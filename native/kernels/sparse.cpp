// Adding sparse payloads, and coding their indices.
#include "methods/sparse.hpp"

#include "index_decoder.hpp"
#include "nontemporal.hpp"
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

struct CombineBuffers {
    ScratchBuffer indices;  // of all ranks, one after another
    ScratchBuffer cursors;  // the next element of each rank
    ScratchBuffer sums;     // of a range
};

constexpr size_t range_length = 16384;  // its sums stay in a core's own cache while all ranks are added

// The first of `count` rising indices that is not below `bound`.
template <class I>
size_t first_from(const I* indices, size_t count, size_t bound) {
    size_t low = 0;
    while (count) {
        const size_t half = count / 2;
        if (size_t(indices[low + half]) < bound) low += half + 1, count -= half + 1;
        else count = half;
    }
    return low;
}

// All indices are decoded and checked first. Then every range of `out` is summed in cache and written once.
template <class T, class I>
Fault combine_ranges(T* out, uint64_t d, const SparsePayload* sent, size_t ranks, T alpha, int threads) {
    size_t total = 0;
    for (size_t r = 0; r < ranks; ++r) total += size_t(sent[r].k);
    I* const all = scratch<CombineBuffers>().indices.get<I>(total);
    I* next = all;
    for (size_t r = 0; r < ranks; next += sent[r++].k) {
        const SparsePayload& from = sent[r];
        if (!WireValues{from.values, from.dtype}.zero(size_t(from.count), size_t(from.k))) return Fault::stray_values;
        if (from.k == 0) continue;
        const IndexLayout layout(d, from.k);
        Pieces pieces(layout, from.index);
        const Fault fault = decode(layout, from.index, size_t(from.count), next, pieces, from.k < serial_indices ? 1 : threads);
        if (fault != Fault::none) return fault;
    }
    const bool nontemporal = d * sizeof(T) >= nontemporal_above;
    const Chunks chunks(size_t(d), threads);
    each(chunks.count, threads, [=](size_t c) {
        CombineBuffers& buffers = scratch<CombineBuffers>();
        size_t* const cursors = buffers.cursors.get<size_t>(ranks);
        T* const sums = buffers.sums.get<T>(range_length);
        const I* indices = all;
        for (size_t r = 0; r < ranks; indices += sent[r++].k)
            cursors[r] = first_from(indices, size_t(sent[r].count), chunks.begin(c));
        for (size_t begin = chunks.begin(c); begin < chunks.end(c); begin += range_length) {
            const size_t end = chunks.end(c) - begin < range_length ? chunks.end(c) : begin + range_length;
            std::memset(sums, 0, (end - begin) * sizeof(T));
            indices = all;
            for (size_t r = 0; r < ranks; indices += sent[r++].k) {
                const size_t count = size_t(sent[r].count);
                cursors[r] = with_values<T>(WireValues{sent[r].values, sent[r].dtype}, [=](auto get) {
                    size_t at = cursors[r];
                    for (; at < count && size_t(indices[at]) < end; ++at) sums[size_t(indices[at]) - begin] += get(at) * alpha;
                    return at;
                });
            }
            write(out, begin, end, nontemporal, [=](size_t i) { return sums[i - begin]; });
        }
    });
    return Fault::none;
}

// Where few elements arrive in all, most ranges would only be cleared: elements are then added where they belong, rank by
// rank. So are bitmaps, which have no list of indices.
template <class T>
Fault sparse_combine_(T* out, uint64_t d, const SparsePayload* sent, size_t ranks, T alpha, int threads) {
    bool bitmap = false;
    uint64_t total = 0;
    for (size_t r = 0; r < ranks; ++r) {
        bitmap |= IndexLayout(d, sent[r].k).bitmap;
        total += sent[r].count;
    }
    if (!bitmap && total >= d / 50) {
        if (d < uint64_t(1) << 31) return combine_ranges<T, std::uint32_t>(out, d, sent, ranks, alpha, threads);
        return combine_ranges<T, uint64_t>(out, d, sent, ranks, alpha, threads);
    }
    const bool nontemporal = d * sizeof(T) >= nontemporal_above;
    parallel(size_t(d), size_t(1) << 18, threads,
             [=](size_t begin, size_t end) { write(out, begin, end, nontemporal, [](size_t) { return T(0); }); });
    for (size_t r = 0; r < ranks; ++r) {
        const SparsePayload& from = sent[r];
        const Fault fault = sparse_add_(out, d, WireValues{from.values, from.dtype}, from.k, from.count, from.index, alpha, threads);
        if (fault != Fault::none) return fault;
    }
    return Fault::none;
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
    Fault sparse_combine(T* out, u64 d, const SparsePayload* sent, size_t ranks, T alpha, int threads) {     \
        return sparse_combine_(out, d, sent, ranks, alpha, threads);                                         \
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
