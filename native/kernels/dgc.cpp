// Deep gradient compression: momentum correction and selection above a sampled threshold, in one pass where it pays.
#include "methods/dgc.hpp"

#include <cmath>
#include <limits>

#include "encoder_input.hpp"
#include "index_decoder.hpp"
#include "parallel.hpp"
#include "random.hpp"
#include "sampled_topk.hpp"
#include "selector.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

struct DgcBuffers {
    ScratchBuffer guess_keys;      // the sample that the first guess of a threshold comes from
    ScratchBuffer threshold_keys;  // the threshold's own sample, those above the guess, by chunk
    ScratchBuffer progress;        // per chunk: how many of these keys there are, and how far the correction came
};

// As many elements as a register holds; left to itself the compiler unrolls a short loop into single elements.
#if defined(__AVX2__)
constexpr size_t register_bytes = 32;
#else
constexpr size_t register_bytes = 16;
#endif
template <class T>
struct Register {
    typedef T type __attribute__((vector_size(register_bytes)));
};

// m = mu m + g, v = v + m, with g scaled (Lin 2018, equations 4 and 5). Elements of g that reach `limit` are refused, as are
// those that are not finite.
template <class T>
struct Correction {
    using Key = typename Bits<T>::type;
    T *m, *v;
    const T* g;
    T mu, scale;
    bool nesterov;
    T limit = std::numeric_limits<T>::infinity();

    template <bool ahead, class V>
    static inline void one(V& m, V& v, V g, T mu) {
        if (ahead) {
            m = (m + g) * mu;
            v = (v + m) + g;
        } else {
            m = m * mu + g;
            v += m;
        }
    }

    template <bool ahead>
    inline void some(size_t begin, size_t n) const {
        T *__restrict momentum = m + begin, *__restrict sum = v + begin;
        const T* __restrict grad = g + begin;
        const T factor = mu, times = scale;
        for (size_t i = 0; i < n; ++i) one<ahead>(momentum[i], sum[i], grad[i] * times, factor);
    }

    void apply(size_t begin, size_t end) const {
        nesterov ? some<true>(begin, end - begin) : some<false>(begin, end - begin);
    }

    template <bool ahead>
    inline void sixteen(size_t begin) const {
        using V = typename Register<T>::type;
        constexpr size_t n = sizeof(V) / sizeof(T);
        for (size_t i = begin; i < begin + lanes; i += n) {
            V a, b, grad;
            std::memcpy(&a, m + i, sizeof a), std::memcpy(&b, v + i, sizeof b), std::memcpy(&grad, g + i, sizeof grad);
            one<ahead>(a, b, V(grad * scale), mu);
            std::memcpy(m + i, &a, sizeof a), std::memcpy(v + i, &b, sizeof b);
        }
    }

    // Ask for memory that will be needed; hardware looks ahead no further than a page.
    void fetch(size_t i) const { __builtin_prefetch(g + i), __builtin_prefetch(m + i, 1), __builtin_prefetch(v + i, 1); }

    // The same up to an element of g that is refused; returns where it stopped. hit(i, v[i]) for the new v above `floor`.
    template <class B, class Hit>
    size_t apply_above(size_t begin, size_t end, B floor, Hit hit) const {
        return nesterov ? above<true>(begin, end, floor, hit) : above<false>(begin, end, floor, hit);
    }

    template <bool ahead, class B, class Hit>
    size_t above(size_t begin, size_t end, B floor, Hit hit) const {
        const B refused = key(limit);
        size_t i = begin;
        for (; i + lanes <= end; i += lanes) {
            if (above16(g + i, B(refused - 1))) break;
            fetch(i + 512);
            sixteen<ahead>(i);
            for (std::uint32_t bits = above16(v + i, floor); bits; bits &= bits - 1) {
                const size_t at = i + size_t(__builtin_ctz(bits));
                hit(at, v[at]);
            }
        }
        for (; i < end && key(g[i]) < refused; ++i) {
            some<ahead>(i, 1);
            if (key(v[i]) > floor) hit(i, v[i]);
        }
        return i;
    }

    // v[i] as it will be.
    T ahead_of(size_t i) const {
        const T one = g[i] * scale;
        if (nesterov) return (v[i] + (m[i] + one) * mu) + one;
        return v[i] + (m[i] * mu + one);
    }

    // Take `apply` back, to rounding.
    void undo(size_t begin, size_t end) const {
        for (size_t i = begin; i < end; ++i) {
            const T one = g[i] * scale;
            v[i] -= m[i];
            if (nesterov) v[i] -= one;
            if (mu == T(0)) m[i] = T(0);
            else m[i] = nesterov ? m[i] / mu - one : (m[i] - one) / mu;
        }
    }

    bool accepted(size_t begin, size_t end) const {
        const Key refused = key(limit);
        Key bad = 0;
        for (size_t i = begin; i < end; ++i) bad |= key(g[i]) >= refused;
        return !bad;
    }
};

// Adapt the threshold and emit (reference/sparse.py, _sampled); `collected` says whether the selector holds candidates.
template <class T>
size_t select(Selector<T>& selector, bool collected, typename Bits<T>::type first, typename Bits<T>::type floor_first, size_t k,
              const Sampling& p, const WireValues& values, uint8_t* index) {
    using B = typename Bits<T>::type;
    T threshold = cast_bits<T>(first);
    size_t total = selector.met();
    bool enough = false;
    auto hits = [&](T limit) {
        const B floor = key(limit) - 1;
        // Candidates that number k or more hold the k largest, and how many more there are makes no difference.
        enough = collected && p.resample && selector.stored() && total >= k && floor < selector.floor();
        if (enough) return total;
        if (!collected || (selector.stored() ? floor < selector.floor() : floor != selector.floor())) {
            // A little lower than asked for: should the threshold have to come down, all is at hand.
            const B low = key(T(limit * T(p.lower))), lower = low > floor_first ? low : floor_first;
            total = selector.collect(lower <= floor ? lower - 1 : floor, 2 * k + 4096);
            if (!selector.stored()) total = selector.collect(floor, 2 * k + 4096);
            collected = true;
        }
        return selector.stored() ? selector.count(floor) : total;
    };
    for (int i = 0; i < p.iterations; ++i) {
        const double found = double(hits(threshold));
        if (found < p.lower * double(k)) threshold = threshold * T(p.lower);
        else if (found > p.upper * double(k) && !p.resample) threshold = threshold * T(p.upper);
        else break;
    }
    const size_t found = hits(threshold);
    if (found > k || enough) {
        selector.emit(selector.stored() ? selector.cut_collected(k) : selector.cut_all(k), k, values, index);
        return k;
    }
    selector.emit(Cut<B>{key(threshold), found, found, true}, k, values, index);
    return found;
}

template <class T>
typename Bits<T>::type* sample(Selector<T>& selector, size_t d, const Sampling& p) {
    if (p.stride) return selector.sample(p.samples, [=](size_t j) { return p.start + j * p.stride; });
    return selector.sample(p.samples, [=](size_t j) { return draw_below(p.word, j, d); });
}

template <class T>
size_t encode(const EncoderInput<T>& s, size_t k, const Sampling& p, const WireValues& values, uint8_t* index, int threads) {
    using B = typename Bits<T>::type;
    if (p.samples >= s.n) {
        encode_topk(s, k, values, index, threads);
        return k;
    }
    Selector<T> selector(s, threads);
    B* keys = sample(selector, s.n, p);
    B floor = 0;
    size_t ties;
    const size_t rank = size_t(p.rank) + 3 * size_t(std::sqrt(double(p.rank))) + 2;
    if (p.samples >= 512 && rank < p.samples) {
        B* copy = keys + p.samples;
        std::memcpy(copy, keys, p.samples * sizeof(B));
        floor = radix_select(copy, p.samples, rank, ties);
    }
    return select(selector, false, radix_select(keys, p.samples, p.rank, ties), floor, k, p, values, index);
}

// A magnitude that a few more than k elements of the corrected v are likely to reach.
template <class T>
typename Bits<T>::type guess(const Correction<T>& c, size_t d, size_t k, size_t& capacity) {
    using B = typename Bits<T>::type;
    constexpr size_t group = 8;
    size_t samples = d / 512 < 2048 ? 2048 : d / 512 / group * group;
    if (samples > 16384) samples = 16384;
    const size_t stride = d / samples;
    const double expected = double(samples) * double(k) / double(d);
    size_t rank = size_t(expected + 3 * std::sqrt(expected)) + 5, ties;
    if (rank > samples) rank = samples;
    B* keys = scratch<DgcBuffers>().guess_keys.get<B>(samples);
    // As sampled_place, but of each drawn place a few neighbours, which cost nothing more.
    const auto place = [=](size_t j) { return j * stride + draw_below(0x5eed, j, group * (stride - 1) + 1); };
    for (size_t j = 0; j < samples; j += group) {
        if (j + 16 * group < samples) c.fetch(place(j + 16 * group));
        const size_t at = place(j);
        for (size_t i = 0; i < group; ++i) keys[j + i] = key(c.ahead_of(at + i));
    }
    capacity = 2 * rank * stride + 4096;
    return radix_select(keys, samples, rank, ties);
}

// What the pass over all elements left for the selection.
template <class T>
struct Pass {
    bool finite, few;
    typename Bits<T>::type* keys;  // of the threshold's sample, those above the floor
    size_t kept;
};

// Check g, correct, and collect candidates and the threshold's sample while all is in the cache.
template <class T>
Pass<T> correct(const Correction<T>& c, Selector<T>& selector, size_t d, size_t k, const Sampling& p, int threads) {
    using B = typename Bits<T>::type;
    const Chunks& chunks = selector.chunks();
    // Where many are sent, candidates would be many, too: the selection goes its own way then.
    Pass<T> pass{true, k <= d / 16, nullptr, 0};
    size_t capacity = 0;
    const B floor = pass.few ? B(guess(c, d, k, capacity) - 1) : Bits<T>::magnitude;
    const size_t stride = size_t(p.stride), start = size_t(p.start);
    const bool sampled = pass.few && stride && p.samples < d;
    const size_t of_chunk = sampled ? chunks.length / stride + 1 : 0;
    B* keys = pass.keys = scratch<DgcBuffers>().threshold_keys.get<B>(of_chunk * chunks.count);
    size_t *kept = scratch<DgcBuffers>().progress.get<size_t>(2 * chunks.count), *done = kept + chunks.count;
    for (size_t q = 0; q < chunks.count; ++q) kept[q] = 0, done[q] = chunks.begin(q);
    bool bad = false;
    selector.collect_making(floor, capacity, [&](size_t q, auto keep) {
        B* out = keys + q * of_chunk;
        size_t at = 0, next = chunks.begin(q);
        if (sampled) next = start + (next > start ? (next - start + stride - 1) / stride * stride : 0);
        for (size_t i = chunks.begin(q), end = chunks.end(q); i < end; i += tile) {
            if (__atomic_load_n(&bad, __ATOMIC_RELAXED)) return;
            const size_t stop = end - i < tile ? end : i + tile;
            done[q] = c.apply_above(i, stop, floor, keep);
            if (done[q] < stop) return __atomic_store_n(&bad, true, __ATOMIC_RELAXED);
            if (!sampled) continue;
            for (; next < stop; next += stride) {
                out[at] = key(c.v[next]);
                at += out[at] > floor;
            }
        }
        kept[q] = at;
    });
    if (bad) {
        each(chunks.count, threads, [&](size_t q) { c.undo(chunks.begin(q), done[q]); });
        pass.finite = false;
    }
    for (size_t q = 0; q < chunks.count; ++q) {
        std::memmove(keys + pass.kept, keys + q * of_chunk, kept[q] * sizeof(B));
        pass.kept += kept[q];
    }
    return pass;
}

template <class T>
size_t after(const Pass<T>& pass, Selector<T>& selector, const EncoderInput<T>& s, size_t k, const Sampling& p, const WireValues& values,
             uint8_t* index, int threads) {
    if (p.samples >= s.n && pass.few && selector.stored() && selector.met() >= k) {
        selector.emit(selector.cut_collected(k), k, values, index);
        return k;
    }
    if (p.samples >= s.n || !pass.few) return encode(s, k, p, values, index, threads);
    size_t ties;
    const auto first = pass.kept >= p.rank ? radix_select(pass.keys, pass.kept, p.rank, ties)
                                           : radix_select(sample(selector, s.n, p), p.samples, p.rank, ties);
    return select(selector, true, first, typename Bits<T>::type(0), k, p, values, index);
}

// Correct, then select from v without changing it.
template <class T>
size_t step(const Correction<T>& c, size_t d, size_t k, const Sampling& p, const WireValues& values, uint8_t* index,
            int threads) {
    const EncoderInput<T> s{c.v, nullptr, T(1), T(1), d, false};
    const bool cached = d < serial_below;  // all of it stays in the cache, where passes cost little
    Selector<T> selector(s, threads);
    Pass<T> pass{true, false, nullptr, 0};
    if (!cached) pass = correct(c, selector, d, k, p, threads);
    else if ((pass.finite = c.accepted(0, d))) c.apply(0, d);
    if (!pass.finite) return not_finite;
    try {
        return after(pass, selector, s, k, p, values, index, threads);
    } catch (...) {  // no memory
        c.undo(0, d);
        throw;
    }
}

template <class T>
bool dense(T* mean, T* m, T mu, bool nesterov, size_t n, int threads) {
    bool bad = false;
    const Correction<T> c{m, mean, mean, mu, T(1), nesterov};
    parallel(n, grain, threads, [&](size_t begin, size_t end) {
        if (!c.accepted(begin, end)) __atomic_store_n(&bad, true, __ATOMIC_RELAXED);
    });
    if (bad) return false;
    parallel(n, grain, threads, [=](size_t begin, size_t end) {
        if (nesterov)
            for (size_t i = begin; i < end; ++i) {
                m[i] = (m[i] + mean[i]) * mu;
                mean[i] = m[i] + mean[i];
            }
        else
            for (size_t i = begin; i < end; ++i) mean[i] = m[i] = m[i] * mu + mean[i];
    });
    return true;
}

template <class T>
Fault commit(T* v, T* m, u64 d, const WireValues& values, u64 k, u64 count, const u8* index, int threads) {
    if (!values.zero(size_t(count), size_t(k))) return Fault::stray_values;
    const auto fetch_v = [=](size_t i) { __builtin_prefetch(v + i, 1); };
    const auto fetch_both = [=](size_t i) { __builtin_prefetch(v + i, 1), __builtin_prefetch(m + i, 1); };
    return with_values<T>(values, [=](auto get) {
        if (!m)
            return visit_indices(d, k, count, index, threads, fetch_v, [=](size_t i, size_t rank) { v[i] -= get(rank); });
        return visit_indices(d, k, count, index, threads, fetch_both,
                             [=](size_t i, size_t rank) { v[i] -= get(rank), m[i] = T(0); });
    });
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                                      \
    std::uint64_t dgc_encode(const EncoderInput<T>& s, std::uint64_t k, const Sampling& sampling, void* values, Dtype dtype, \
                             std::uint8_t* index, int threads) {                                                             \
        return encode(s, size_t(k), sampling, WireValues{values, dtype}, index, threads);                                    \
    }                                                                                                                        \
    std::uint64_t dgc_step(T* m, T* v, const T* g, T mu, bool nesterov, T scale, T limit, std::size_t n, std::uint64_t k,    \
                           const Sampling& sampling, void* values, Dtype dtype, std::uint8_t* index, int threads) {          \
        return step(Correction<T>{m, v, g, mu, scale, nesterov, limit}, n, size_t(k), sampling, WireValues{values, dtype},   \
                    index, threads);                                                                                         \
    }                                                                                                                        \
    Fault dgc_commit(T* v, T* m, u64 d, void* values, Dtype dtype, u64 k, u64 count, const u8* index, int threads) {         \
        return commit(v, m, d, WireValues{values, dtype}, k, count, index, threads);                                         \
    }                                                                                                                        \
    bool dgc_dense(T* mean, T* m, T mu, bool nesterov, std::size_t n, int threads) {                                         \
        return dense(mean, m, mu, nesterov, n, threads);                                                                     \
    }                                                                                                                        \
    void dgc_correct(T* m, T* v, const T* g, T mu, bool nesterov, T scale, std::size_t n, int threads) {                     \
        const Correction<T> c{m, v, g, mu, scale, nesterov};                                                                 \
        parallel(n, grain, threads, [=](std::size_t begin, std::size_t end) { c.apply(begin, end); });                       \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
