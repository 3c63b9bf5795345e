// Random-k: one element drawn from each of k strata, so that indices need not be sent.
#include "methods/randomk.hpp"

#include "encoder_input.hpp"
#include "indices.hpp"
#include "parallel.hpp"
#include "random.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// act(i, stratum size, rank) for the drawn index of every stratum; it touches data[i].
template <class T, class Act>
void visit_strata(T* data, uint64_t d, uint64_t k, uint64_t word, int threads, Act act) {
    constexpr size_t piece = 2048;
    const uint64_t whole = d / k, part = d % k;
    each(size_t((k + piece - 1) / piece), k < 8 * piece ? 1 : threads, [=](size_t p) {
        std::uint32_t bits[piece];
        uint64_t places[piece];
        uint8_t carries[piece];
        const size_t begin = p * piece, n = begin + piece < k ? piece : size_t(k) - begin;
        draws(word, begin, n, bits);
        // floor(i * d / k), updated by addition.
        uint64_t edge = uint64_t(begin) * whole + uint64_t(begin) * part / k, rest = uint64_t(begin) * part % k;
        for (size_t r = 0; r < n; ++r) {
            rest += part;
            const uint64_t carry = rest >= k, size = whole + carry;
            rest -= carry ? k : 0;
            places[r] = edge + ((uint64_t(bits[r]) * size) >> 32);
            carries[r] = uint8_t(carry);
            edge += size;
        }
        for (size_t r = 0; r < n; ++r) {
            if (r + prefetch_distance < n) __builtin_prefetch(data + places[r + prefetch_distance], 1);
            act(size_t(places[r]), whole + carries[r], begin + r);
        }
    });
}

template <class T>
void randomk_encode_(EncoderInput<T> s, uint64_t word, bool scaled, T* values, uint64_t k, int threads) {
    if (s.g && s.ef) {
        parallel(s.n, grain, threads, [=](size_t begin, size_t end) { load_in_place<T>(s, begin, end - begin, nullptr); });
        s.g = nullptr;
    }
    visit_strata(s.x, s.n, k, word, threads, [=](size_t i, uint64_t size, size_t rank) {
        const T v = value_at(s, i), sent = scaled ? v * T(size) : v;
        values[rank] = sent;
        if (s.ef) s.x[i] = v - sent;
    });
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                              \
    void randomk_encode(const EncoderInput<T>& s, u64 word, bool scaled, T* values, u64 k, int threads) {            \
        randomk_encode_(s, word, scaled, values, k, threads);                                                        \
    }                                                                                                                \
    void randomk_add(T* out, u64 d, const T* values, u64 k, u64 word, T alpha, int threads) {                        \
        visit_strata(out, d, k, word, threads, [=](size_t i, u64, size_t rank) { out[i] += values[rank] * alpha; }); \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
