// INCEPTIONN (Li 2018, section 4): elements in four classes by exponent, a tag of two bits each.
#include "methods/inceptionn.hpp"

#include "encoder_input.hpp"
#include "indices.hpp"
#include "lane_moves.hpp"
#include "parallel.hpp"
#include "scratch.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

using std::int16_t;
using std::int32_t;
using std::int8_t;

constexpr size_t lanes = 8;
// Whether elements are handled that many at a time.
#if defined(__AVX2__)
template <class T>
constexpr bool vectors = sizeof(T) == 4;
#else
template <class T>
constexpr bool vectors = false;
#endif
constexpr size_t tag_bytes = tile / 4;

struct InceptionnBuffers {
    ScratchBuffer starts;  // where each piece's part of the classes begins
};

// What separates the classes, as the integers that the limits' bits are.
template <class T>
struct Classes {
    using B = typename Bits<T>::type;
    T bound, inverse;  // powers of two, so that both products are exact
    B first, second, third;

    explicit Classes(T step)
        : bound(step),
          inverse(T(1) / step),
          first(cast_bits<B>(step)),
          second(cast_bits<B>(T(128) * step)),
          third(cast_bits<B>(T(32768) * step)) {}
};

// How many elements of a run of tags, whole words of them, are in each class.
struct Counts {
    uint64_t small = 0, medium = 0, raw = 0;

    void add(uint64_t word) {
        constexpr uint64_t low_bits = 0x5555555555555555;
        const uint64_t low = word & low_bits, high = (word >> 1) & low_bits;
        const uint64_t both = uint64_t(__builtin_popcountll(low & high));
        small += uint64_t(__builtin_popcountll(low)) - both;
        medium += uint64_t(__builtin_popcountll(high)) - both;
        raw += both;
    }
};

// Counts of pieces in `starts` become the places where the pieces begin; the totals follow.
void accumulate(uint64_t* starts, size_t pieces) {
    uint64_t sum[3] = {0, 0, 0};
    for (size_t p = 0; p <= pieces; ++p)
        for (int c = 0; c < 3; ++c) {
            const uint64_t count = p < pieces ? starts[3 * p + c] : 0;
            starts[3 * p + c] = sum[c];
            sum[c] += count;
        }
}

template <class T>
inline void tag_of(const T* __restrict v, size_t n, const Classes<T>& by, uint8_t* __restrict tag) {
    using B = typename Bits<T>::type;
    for (size_t j = 0; j < n; ++j) {
        const B key = cast_bits<B>(v[j]) & Bits<T>::magnitude;
        tag[j] = uint8_t((key >= by.first) + (key >= by.second) + (key >= by.third));
    }
}

// Tags of a tile in bytes, then four to a byte.
inline void pack2(const uint8_t* __restrict tag, uint8_t* __restrict out) {
    for (size_t i = 0; i < tile / 8; ++i) {
        uint64_t w = word_at(tag, tile, 8 * i);
        w = (w | w >> 6) & 0x000f000f000f000f;
        w = (w | w >> 12) & 0x000000ff000000ff;
        out[2 * i] = uint8_t(w);
        out[2 * i + 1] = uint8_t(w >> 32);
    }
}

#if defined(__AVX2__)

// Tags of 32 elements: comparisons narrowed to bytes, in an order that the last step undoes, then pairs of pairs.
inline uint64_t tags32(const float* v, const Classes<float>& by) {
    const __m256i magnitudes = _mm256_set1_epi32(0x7fffffff), first = _mm256_set1_epi32(by.first - 1);
    const __m256i second = _mm256_set1_epi32(by.second - 1), third = _mm256_set1_epi32(by.third - 1);
    const auto negative = [=](const float* at) {
        const __m256i key = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), magnitudes);
        const __m256i two = _mm256_add_epi32(_mm256_cmpgt_epi32(key, first), _mm256_cmpgt_epi32(key, second));
        return _mm256_add_epi32(two, _mm256_cmpgt_epi32(key, third));
    };
    const __m256i a = _mm256_packs_epi32(negative(v), negative(v + 8)), b = _mm256_packs_epi32(negative(v + 16), negative(v + 24));
    const __m256i tag = _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_packs_epi16(a, b));
    const __m256i pairs = _mm256_maddubs_epi16(tag, _mm256_set1_epi16(1 | 4 << 8));
    __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(1 | 16 << 16));
    fours = _mm256_packus_epi32(fours, fours);
    fours = _mm256_packus_epi16(fours, fours);
    return uint64_t(_mm_cvtsi128_si64(_mm_unpacklo_epi8(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1))));
}

#endif

// Tags of up to a tile, four to a byte.
template <class T>
inline void tag_tile(const T* v, size_t n, const Classes<T>& by, uint8_t* packed) {
#if defined(__AVX2__)
    if constexpr (vectors<T>)
        if (n == tile) {
            for (size_t i = 0; i < tile; i += 32) {
                const uint64_t word = tags32(v + i, by);
                std::memcpy(packed + i / 4, &word, 8);
            }
            return;
        }
#endif
    alignas(64) uint8_t tag[tile];
    if (n < tile) std::memset(tag, 0, tile);
    tag_of(v, n, by, tag);
    pack2(tag, packed);
}

template <class T>
void find_(const EncoderInput<T>& s, T bound, uint8_t* tags, uint64_t* starts, int threads) {
    const Classes<T> by(bound);
    parallel(s.n, inceptionn_piece, threads, [=, &s](size_t begin, size_t end) {
        alignas(64) T buffer[tile];
        alignas(64) uint8_t packed[tag_bytes];
        Counts counts;
        for (size_t i = begin; i < end; i += tile) {
            const size_t m = end - i < tile ? end - i : tile;
            tag_tile(load_in_place(s, i, m, buffer), m, by, packed);
            for (size_t w = 0; w < tag_bytes; w += 8) counts.add(word_at(packed, tag_bytes, w));
            std::memcpy(tags + i / 4, packed, (m + 3) / 4);
        }
        uint64_t* here = starts + 3 * (begin / inceptionn_piece);
        here[0] = counts.small, here[1] = counts.medium, here[2] = counts.raw;
    });
    accumulate(starts, (s.n + inceptionn_piece - 1) / inceptionn_piece);
}

// The classes of a tile on their way; a few places more than a tile, because vectors are written and read whole.
template <class T>
struct Packed {
    alignas(64) uint8_t small[tile + lanes];
    alignas(64) int16_t medium[tile + lanes];
    alignas(64) T raw[tile + lanes];
    size_t smalls, mediums, raws;
};

// An empty class has no address.
template <class V>
inline void copy(V* to, const V* from, uint64_t n) {
    if (n) std::memcpy(to, from, size_t(n) * sizeof(V));
}

#if defined(__AVX2__)

// Eight numbers from -32768 to 32767 in two bytes each.
inline __m128i narrowed(__m256i q) {
    return _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
}

// As `classify` below, eight elements at a time; returns how many were handled.
inline size_t classify8(const float* v, size_t n, const Classes<float>& by, Packed<float>& out, float* x) {
    const __m256 bound = _mm256_set1_ps(by.bound), inverse = _mm256_set1_ps(by.inverse);
    const __m256i magnitudes = _mm256_set1_epi32(0x7fffffff), first = _mm256_set1_epi32(by.first - 1);
    const __m256i second = _mm256_set1_epi32(by.second - 1), third = _mm256_set1_epi32(by.third - 1);
    const __m256i most_small = _mm256_set1_epi32(127), most_medium = _mm256_set1_epi32(32767);
    size_t j = 0, smalls = out.smalls, mediums = out.mediums, raws = out.raws;
    for (; j + lanes <= n; j += lanes) {
        const __m256 value = _mm256_loadu_ps(v + j);
        const __m256i key = _mm256_and_si256(_mm256_castps_si256(value), magnitudes);
        const __m256i sent = _mm256_cmpgt_epi32(key, first), larger = _mm256_cmpgt_epi32(key, second);
        const __m256i whole = _mm256_cmpgt_epi32(key, third);
        const __m256i most = _mm256_blendv_epi8(most_small, most_medium, larger);
        __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(value, inverse));
        q = _mm256_max_epi32(_mm256_min_epi32(q, most), _mm256_sub_epi32(_mm256_setzero_si256(), most));
        const unsigned in_small = lanes_of(_mm256_andnot_si256(larger, sent));
        const unsigned in_medium = lanes_of(_mm256_andnot_si256(whole, larger)), in_raw = lanes_of(whole);
        const __m128i small = narrowed(_mm256_permutevar8x32_epi32(q, order(moves.front[in_small])));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(out.small + smalls), _mm_packs_epi16(small, small));
        const __m128i medium = narrowed(_mm256_permutevar8x32_epi32(q, order(moves.front[in_medium])));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out.medium + mediums), medium);
        if (in_raw) _mm256_storeu_ps(out.raw + raws, _mm256_permutevar8x32_ps(value, order(moves.front[in_raw])));
        smalls += unsigned(__builtin_popcount(in_small));
        mediums += unsigned(__builtin_popcount(in_medium));
        raws += unsigned(__builtin_popcount(in_raw));
        if (!x) continue;
        __m256 decoded = _mm256_mul_ps(_mm256_cvtepi32_ps(q), bound);
        decoded = _mm256_and_ps(_mm256_blendv_ps(decoded, value, _mm256_castsi256_ps(whole)), _mm256_castsi256_ps(sent));
        _mm256_storeu_ps(x + j, _mm256_sub_ps(value, decoded));
    }
    out.smalls = smalls, out.mediums = mediums, out.raws = raws;
    return j;
}

// As `add` below; `n` is a multiple of eight.
inline void add8(float* out, size_t n, const uint8_t* tags, const Packed<float>& in, float bound, float alpha) {
    const __m256 step = _mm256_set1_ps(bound), times = _mm256_set1_ps(alpha);
    const __m256i shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), three = _mm256_set1_epi32(3);
    size_t smalls = 0, mediums = 0, raws = 0;
    for (size_t j = 0; j < n; j += lanes) {
        const __m256i both = _mm256_set1_epi32(tags[j / 4] | tags[j / 4 + 1] << 8);
        const __m256i tag = _mm256_and_si256(_mm256_srlv_epi32(both, shifts), three);
        const __m256i is_small = _mm256_cmpeq_epi32(tag, _mm256_set1_epi32(1));
        const __m256i is_medium = _mm256_cmpeq_epi32(tag, _mm256_set1_epi32(2));
        const unsigned in_small = lanes_of(is_small), in_medium = lanes_of(is_medium);
        const unsigned in_raw = lanes_of(_mm256_cmpeq_epi32(tag, three));
        __m256i small = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(in.small + smalls)));
        __m256i medium = _mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in.medium + mediums)));
        small = _mm256_and_si256(_mm256_permutevar8x32_epi32(small, order(moves.back[in_small])), is_small);
        medium = _mm256_and_si256(_mm256_permutevar8x32_epi32(medium, order(moves.back[in_medium])), is_medium);
        __m256 decoded = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_or_si256(small, medium)), step);
        if (in_raw) {
            const __m256 raw = _mm256_permutevar8x32_ps(_mm256_loadu_ps(in.raw + raws), order(moves.back[in_raw]));
            decoded = _mm256_blendv_ps(decoded, raw, _mm256_castsi256_ps(_mm256_cmpeq_epi32(tag, three)));
        }
        _mm256_storeu_ps(out + j, _mm256_add_ps(_mm256_loadu_ps(out + j), _mm256_mul_ps(decoded, times)));
        smalls += unsigned(__builtin_popcount(in_small));
        mediums += unsigned(__builtin_popcount(in_medium));
        raws += unsigned(__builtin_popcount(in_raw));
    }
}

#endif

// Elements of a tile to their classes, and the residual to x unless that is null.
template <class T>
inline void classify(const T* __restrict v, size_t n, const Classes<T>& by, Packed<T>& out, T* __restrict x) {
    // Adding this rounds to a whole number, half to even; at most 32768 multiples of the bound are looked at.
    constexpr T magic = sizeof(T) == 4 ? T(0x1.8p23) : T(0x1.8p52);
    alignas(64) uint8_t tag[tile];
    alignas(64) int32_t code[tile];
    tag_of(v, n, by, tag);
    for (size_t j = 0; j < n; ++j) {
        const T most = tag[j] < 2 ? T(127) : T(32767);
        T q = (v[j] * by.inverse + magic) - magic;
        q = q < most ? q : most;
        q = q > -most ? q : -most;
        code[j] = int32_t(q);
    }
    if (x)
        for (size_t j = 0; j < n; ++j) {
            const T near = T(code[j]) * by.bound, decoded = tag[j] == 3 ? v[j] : near;
            x[j] = v[j] - (tag[j] ? decoded : T(0));
        }
    size_t smalls = out.smalls, mediums = out.mediums, raws = out.raws;
    for (size_t j = 0; j < n; ++j) {
        out.small[smalls] = uint8_t(int8_t(code[j]));
        out.medium[mediums] = int16_t(code[j]);
        out.raw[raws] = v[j];
        smalls += tag[j] == 1, mediums += tag[j] == 2, raws += tag[j] == 3;
    }
    out.smalls = smalls, out.mediums = mediums, out.raws = raws;
}

template <class T>
void emit_(const EncoderInput<T>& s, T bound, const uint64_t* starts, uint8_t* small, int16_t* medium, T* raw, int threads) {
    const Classes<T> by(bound);
    parallel(s.n, inceptionn_piece, threads, [=, &s](size_t begin, size_t end) {
        alignas(64) T buffer[tile];
        Packed<T> packed;
        const uint64_t* here = starts + 3 * (begin / inceptionn_piece);
        uint64_t smalls = here[0], mediums = here[1], raws = here[2];
        for (size_t i = begin; i < end; i += tile) {
            const size_t m = end - i < tile ? end - i : tile;
            // Vectors are read before they are written, so that x needs no copy.
            const T* v = vectors<T> && !s.g && m % lanes == 0 ? s.x + i : load(s, i, m, buffer);
            T* x = s.ef ? s.x + i : nullptr;
            packed.smalls = packed.mediums = packed.raws = 0;
            size_t done = 0;
#if defined(__AVX2__)
            if constexpr (vectors<T>) done = classify8(v, m, by, packed, x);
#endif
            if (done < m) classify(v + done, m - done, by, packed, x ? x + done : nullptr);
            // The classes were allocated for what the first step saw; a tensor that someone changes meanwhile must not exceed it.
            if (smalls + packed.smalls > here[3] || mediums + packed.mediums > here[4] || raws + packed.raws > here[5]) return;
            copy(small + smalls, packed.small, packed.smalls);
            copy(medium + mediums, packed.medium, packed.mediums);
            copy(raw + raws, packed.raw, packed.raws);
            smalls += packed.smalls, mediums += packed.mediums, raws += packed.raws;
        }
    });
}

template <class T>
inline void add(T* __restrict out, size_t n, const uint8_t* __restrict tags, const Packed<T>& in, T bound, T alpha) {
    size_t smalls = 0, mediums = 0, raws = 0;
    for (size_t j = 0; j < n; ++j) {
        const int tag = tags[j / 4] >> (2 * (j % 4)) & 3;
        const int code = tag == 1 ? int8_t(in.small[smalls]) : tag == 2 ? in.medium[mediums] : 0;
        const T decoded = tag == 3 ? in.raw[raws] : T(code) * bound;
        out[j] += decoded * alpha;
        smalls += tag == 1, mediums += tag == 2, raws += tag == 3;
    }
}

// Where each piece begins in the three classes, whose sizes must be those that the tags say.
Fault locate(size_t n, const uint8_t* tags, uint64_t smalls, uint64_t mediums, uint64_t raws, uint64_t*& starts, int threads) {
    const size_t bytes = (n + 3) / 4, pieces = (n + inceptionn_piece - 1) / inceptionn_piece;
    if (n == 0) return smalls || mediums || raws ? Fault::class_sizes : Fault::none;
    if (!padding_bits_clear(tags, bytes, 2 * uint64_t(n))) return Fault::padding_bits;
    starts = scratch<InceptionnBuffers>().starts.get<uint64_t>(3 * (pieces + 1));
    parallel(n, inceptionn_piece, threads, [=, starts = starts](size_t begin, size_t end) {
        Counts counts;
        const size_t last = (end + 3) / 4;
        for (size_t at = begin / 4; at < last; at += 8) counts.add(word_at(tags, last, at));
        uint64_t* here = starts + 3 * (begin / inceptionn_piece);
        here[0] = counts.small, here[1] = counts.medium, here[2] = counts.raw;
    });
    accumulate(starts, pieces);
    const uint64_t* total = starts + 3 * pieces;
    return total[0] != smalls || total[1] != mediums || total[2] != raws ? Fault::class_sizes : Fault::none;
}

template <class T>
Fault add_(T* out, size_t n, const uint8_t* tags, const uint8_t* small, uint64_t smalls, const int16_t* medium, uint64_t mediums,
           const T* raw, uint64_t raws, T bound, T alpha, int threads) {
    uint64_t* starts = nullptr;
    const Fault fault = locate(n, tags, smalls, mediums, raws, starts, threads);
    if (fault != Fault::none || n == 0) return fault;
    parallel(n, inceptionn_piece, threads, [=](size_t begin, size_t end) {
        Packed<T> packed;
        std::memset(&packed, 0, sizeof packed);
        const uint64_t* here = starts + 3 * (begin / inceptionn_piece);
        uint64_t at_small = here[0], at_medium = here[1], at_raw = here[2];
        for (size_t i = begin; i < end; i += tile) {
            const size_t m = end - i < tile ? end - i : tile, last = (i + m + 3) / 4;
            Counts counts;
            for (size_t at = i / 4; at < last; at += 8) counts.add(word_at(tags, last, at));
            copy(packed.small, small + at_small, counts.small);
            copy(packed.medium, medium + at_medium, counts.medium);
            copy(packed.raw, raw + at_raw, counts.raw);
            at_small += counts.small, at_medium += counts.medium, at_raw += counts.raw;
#if defined(__AVX2__)
            if constexpr (vectors<T>)
                if (m == tile) {
                    add8(out + i, m, tags + i / 4, packed, bound, alpha);
                    continue;
                }
#endif
            add(out + i, m, tags + i / 4, packed, bound, alpha);
        }
    });
    return Fault::none;
}

}  // namespace

Fault inceptionn_check(size_t n, const uint8_t* tags, uint64_t smalls, uint64_t mediums, uint64_t raws, int threads) {
    uint64_t* starts = nullptr;
    return locate(n, tags, smalls, mediums, raws, starts, threads);
}

#define GRACE_DEFINE(T)                                                                                                   \
    void inceptionn_find(const EncoderInput<T>& s, T bound, uint8_t* tags, uint64_t* starts, int threads) {               \
        find_(s, bound, tags, starts, threads);                                                                           \
    }                                                                                                                     \
    void inceptionn_emit(const EncoderInput<T>& s, T bound, const uint64_t* starts, uint8_t* small, std::int16_t* medium, \
                         T* raw, int threads) {                                                                           \
        emit_(s, bound, starts, small, medium, raw, threads);                                                             \
    }                                                                                                                     \
    Fault inceptionn_add(T* out, size_t n, const uint8_t* tags, const uint8_t* small, uint64_t smalls,                    \
                       const std::int16_t* medium, uint64_t mediums, const T* raw, uint64_t raws, T bound, T alpha,       \
                       int threads) {                                                                                     \
        return add_(out, n, tags, small, smalls, medium, mediums, raw, raws, bound, alpha, threads);                      \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
