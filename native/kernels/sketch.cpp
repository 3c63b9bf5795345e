// SketchML's quantile buckets (Jiang 2018), each decoded to its mean (grace_dl/kernels/reference/sketch.py).
//
// An element's bucket is looked up by 16 of its bits: sign, exponent and seven bits of mantissa name a cell, and a table
// says how many boundaries lie below the cell. As a rule one at most lies inside, and one comparison settles it.
#include "methods/sketch.hpp"

#include <atomic>
#include <cfloat>
#include <cmath>
#include <utility>

#include "encoder_input.hpp"
#include "indices.hpp"
#include "parallel.hpp"
#include "reduce.hpp"
#include "scratch.hpp"
#include "squeeze.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

using std::int32_t;
using std::int64_t;

constexpr size_t sample_size = 4096;
constexpr size_t block = 8192;
constexpr size_t ahead = 256;  // elements whose successors memory is asked for at a time
constexpr int precision = 35;
constexpr int lowest = -988, highest = 1024;
constexpr size_t cells = 65536;
constexpr int most_rounds = 6;

template <class T>
constexpr T infinity = T(__builtin_huge_val());

struct SketchBuffers {
    ScratchBuffer sample_keys;  // and behind them the space to sort them
    ScratchBuffer cell_starts;  // by cell: how many boundaries lie in lower ones
    ScratchBuffer sums, sizes;  // of the buckets, by block
    ScratchBuffer column;       // sums of one bucket
};

// The 16 bits of an element. Going from float64 to float32 keeps the order, which is all that counts.
template <class T>
inline std::uint32_t cell(T v) {
    return cast_bits<std::uint32_t>(float(v)) >> 16;
}

// Cells numbered in the order of their numbers, from -32768.
inline int32_t rank_of(std::uint32_t cell) { return cell & 0x8000 ? -1 - int32_t(cell & 0x7fff) : int32_t(cell); }

// Bits so that as unsigned integers they sort as the numbers do, and back.
template <class T>
inline auto ordered(T v) {
    using B = typename Bits<T>::type;
    using U = std::make_unsigned_t<B>;
    const U bits = cast_bits<U>(v), sign = U(1) << (8 * sizeof(T) - 1);
    return U(bits & sign ? ~bits : bits | sign);
}
template <class T, class U>
inline T unordered(U bits) {
    const U sign = U(1) << (8 * sizeof(T) - 1);
    return cast_bits<T>(U(bits & sign ? bits ^ sign : ~bits));
}

// Radix sort of `n` keys by digits of 11 bits; the result is in one of the two arrays.
template <class U>
U* sort(U* keys, U* other, size_t n) {
    constexpr int digit = 11;
    constexpr U mask = (U(1) << digit) - 1;
    for (int shift = 0; shift < int(8 * sizeof(U)); shift += digit) {
        std::uint32_t places[size_t(mask) + 1] = {};
        for (size_t i = 0; i < n; ++i) ++places[(keys[i] >> shift) & mask];
        if (places[(keys[0] >> shift) & mask] == n) continue;
        std::uint32_t before = 0;
        for (auto& place : places) {
            const std::uint32_t count = place;
            place = before;
            before += count;
        }
        for (size_t i = 0; i < n; ++i) other[places[(keys[i] >> shift) & mask]++] = keys[i];
        std::swap(keys, other);
    }
    return keys;
}

template <class T>
struct Buckets {
    size_t count;
    T edge[256];         // bucket c ends before edge[c]
    uint8_t after[256];  // how many boundaries are at most edge[c]
    uint8_t skip[256];   // and how many more than c these are
    int rounds = 1;      // how many different ones a cell holds at most
    int inner[256];      // numbers of a bucket between two boundaries are at most 2^this in magnitude
    uint8_t* start;      // by cell

    Buckets(const EncoderInput<T>& s, int bits) : count(size_t(1) << bits) {
        using U = decltype(ordered(T()));
        const size_t stride = s.n / sample_size ? s.n / sample_size : 1, samples = (s.n + stride - 1) / stride;
        U* keys = scratch<SketchBuffers>().sample_keys.get<U>(2 * samples);
        for (size_t j = 0; j < samples; ++j) keys[j] = ordered(value_at(s, j * stride));
        keys = sort(keys, keys + samples, samples);
        for (size_t c = 1; c < count; ++c) edge[c - 1] = unordered<T>(keys[c * samples / count]);
        edge[count - 1] = infinity<T>;
        after[count - 1] = uint8_t(count - 1);
        for (size_t c = count - 1; c-- > 0;)
            after[c] = c + 1 < count - 1 && edge[c + 1] == edge[c] ? after[c + 1] : uint8_t(c + 1);
        for (size_t c = 0; c < count; ++c) skip[c] = uint8_t(after[c] - c);
        for (size_t c = 1; c + 1 < count; ++c) inner[c] = exponent(larger(magnitude(edge[c - 1]), magnitude(edge[c])));
        look_up();
    }

    // A power of two that `peak` does not exceed, within the range that has an inverse.
    static int exponent(T peak) {
        int e = 0;
        if (peak < infinity<T>) std::frexp(double(peak), &e);
        return e < lowest ? lowest : e > highest ? highest : e;
    }

    size_t bucket(T v) const {
        if (rounds > most_rounds) {
            size_t c = 0;
            for (size_t step = count / 2; step; step /= 2) c += edge[c + step - 1] <= v ? step : 0;
            return c;
        }
        size_t c = start[cell(v)];
        for (int r = 0; r < rounds; ++r) c = v >= edge[c] ? after[c] : c;
        return c < count ? c : count - 1;
    }

private:
    void look_up() {
        start = scratch<SketchBuffers>().cell_starts.get<uint8_t>(cells);
        int32_t from = -32768;
        int different = 0;
        for (size_t c = 0; c < count; ++c) {
            const int32_t last = c + 1 < count ? rank_of(cell(edge[c])) : 32767;
            if (last < from) {  // in the cell of the boundary before
                different += edge[c] != edge[c - 1];
                if (c + 1 < count && different > rounds) rounds = different;
                continue;
            }
            if (from < 0) {
                const int32_t end = last < -1 ? last : -1;
                std::memset(start + 0x7fff - end, int(c), size_t(end - from + 1));
            }
            if (last >= 0) {
                const int32_t begin = from > 0 ? from : 0;
                std::memset(start + begin, int(c), size_t(last - begin + 1));
            }
            from = last + 1;
            different = 1;
        }
    }
};

// f of the number of bits as a constant.
template <class F>
inline void with_bits(int bits, F f) {
    switch (bits) {
        case 1: return f(std::integral_constant<int, 1>());
        case 2: return f(std::integral_constant<int, 2>());
        case 3: return f(std::integral_constant<int, 3>());
        case 4: return f(std::integral_constant<int, 4>());
        case 5: return f(std::integral_constant<int, 5>());
        case 6: return f(std::integral_constant<int, 6>());
        case 7: return f(std::integral_constant<int, 7>());
        default: return f(std::integral_constant<int, 8>());
    }
}

// out += table[code]; `bytes` of codes may be read.
template <int bits, class T>
inline void add_codes(T* __restrict out, size_t n, const uint8_t* __restrict codes, size_t bytes, const T* __restrict table) {
    constexpr uint64_t mask = (uint64_t(1) << bits) - 1;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint64_t w = word_at(codes, bytes, i / 8 * bits);
        for (int k = 0; k < 8; ++k) out[i + size_t(k)] += table[(w >> (bits * k)) & mask];
    }
    if (i < n)
        for (uint64_t w = word_at(codes, bytes, i / 8 * bits); i < n; ++i, w >>= bits) out[i] += table[w & mask];
}

template <class T>
void add_all(T* out, size_t n, const uint8_t* codes, int bits, const T* table, int threads) {
    const size_t bytes = (n * size_t(bits) + 7) / 8;
    parallel(n, grain, threads, [=](size_t begin, size_t end) {
        const size_t first = begin / 8 * size_t(bits);
        with_bits(bits, [=](auto b) { add_codes<b.value>(out + begin, end - begin, codes + first, bytes - first, table); });
    });
}

// The largest magnitudes of the positive and of the negative elements; what is not finite comes out on top.
template <class T>
inline void peaks(const T* __restrict v, size_t n, T& top, T& bottom) {
    using B = typename Bits<T>::type;
    constexpr B sign = B(~Bits<T>::magnitude);
    B up = cast_bits<B>(top), down = cast_bits<B>(bottom);
    for (size_t i = 0; i < n; ++i) {
        const B bits = cast_bits<B>(v[i]), other = bits ^ sign;
        up = bits > up ? bits : up;
        down = other > down ? other : down;
    }
    top = cast_bits<T>(up), bottom = cast_bits<T>(down);
}

// Numbers times a power of two become integers of at most 35 bits by adding `magic`; 50 bits of the sum of 8192 of them are
// kept above a count of 14 bits, so that one addition does both.
constexpr double magic = 0x1.8p52;
constexpr int count_bits = 14;

template <class T>
inline uint64_t fixed(T v, double scale) {
    return (cast_bits<uint64_t>(double(v) * scale + magic) << count_bits) + 1;
}

// The codes of a block. The comparison becomes a mask: as a branch it could not be predicted. (Not inlined, nor one loop with
// the sums: places known so late would hold up the loads behind them.)
template <class T>
[[gnu::noinline]] void find_codes(const T* __restrict v, size_t n, const Buckets<T>& by, uint8_t* __restrict code) {
    const uint8_t *const start = by.start, *const skip = by.skip;
    const T* const edge = by.edge;
    for (size_t j = 0; j < n; ++j) {
        const size_t c = start[cell(v[j])];
        code[j] = uint8_t(c + (skip[c] & (0 - size_t(v[j] >= edge[c]))));
    }
}

// Four sets of sums, because neighbours often share a bucket and additions to one place wait for each other.
template <class T>
[[gnu::noinline]] void add_up(const T* __restrict v, size_t n, const uint8_t* __restrict code, const double* __restrict scale,
                              uint64_t (*__restrict sums)[256]) {
    size_t j = 0;
    for (; j + 4 <= n; j += 4)
        for (size_t k = 0; k < 4; ++k) sums[k][code[j + k]] += fixed(v[j + k], scale[code[j + k]]);
    for (; j < n; ++j) sums[0][code[j]] += fixed(v[j], scale[code[j]]);
}

template <class T>
class Encoder {
public:
    Encoder(const EncoderInput<T>& s, int bits, uint8_t* codes)
        : s_(s), bits_(bits), codes_(codes), buckets_(s, bits), spare_(0) {
        for (size_t n = s.n; n; n >>= 1) ++spare_;
        const size_t blocks = (s.n + block - 1) / block;
        sums_ = scratch<SketchBuffers>().sums.get<double>(blocks * buckets_.count);
        sizes_ = scratch<SketchBuffers>().sizes.get<std::uint32_t>(blocks * buckets_.count);
    }

    // Codes of all elements and sums of the blocks; false if an element is not finite. Leaves v in x under error feedback.
    bool run(int threads) {
        std::atomic<bool> finite{true};
        parallel(s_.n, 4 * block, threads, [&](size_t begin, size_t end) {
            alignas(64) T buffer[block];
            alignas(64) uint8_t code[block];
            for (size_t i = begin; i < end; i += block) {
                const size_t m = end - i < block ? end - i : block;
                if (!one(i, m, buffer, code)) finite.store(false, std::memory_order_relaxed);
            }
        });
        return finite.load();
    }

    void means(T* out) {
        const size_t blocks = (s_.n + block - 1) / block, count = buckets_.count;
        constexpr double most = sizeof(T) == 4 ? double(FLT_MAX) : DBL_MAX;
        double* column = scratch<SketchBuffers>().column.get<double>(blocks);
        for (size_t c = 0; c < count; ++c) {
            uint64_t size = 0;
            for (size_t b = 0; b < blocks; ++b) column[b] = sums_[b * count + c], size += sizes_[b * count + c];
            const double sum = tree_sum(column, blocks) + 0.0;  // no negative zero, as the padding of a sum leaves none
            double mean = sum / double(size ? size : 1) * std::ldexp(1.0, spare_);
            mean = mean < most ? mean : most;
            out[c] = T(mean > -most ? mean : -most);
        }
    }

private:
    void find(const T* v, size_t n, uint8_t* code) const {
        if (buckets_.rounds == 1) return find_codes(v, n, buckets_, code);
        for (size_t j = 0; j < n; ++j) code[j] = uint8_t(buckets_.bucket(v[j]));
    }

    bool one(size_t begin, size_t n, T* buffer, uint8_t* code) {
        T top = T(0), bottom = T(0);
        const T* const v = s_.g && !s_.ef ? buffer : s_.x + begin;
        for (size_t t = 0; t < n; t += tile) {
            const size_t m = n - t < tile ? n - t : tile;
            peaks(load_in_place(s_, begin + t, m, buffer + t), m, top, bottom);
            for (size_t i = t; i < t + m; i += ahead) {
                const size_t few = t + m - i < ahead ? t + m - i : ahead;
                prefetch(s_, begin + i + tile, few);
                find(v + i, few, code + i);
            }
        }
        store(begin, n, code);
        const size_t count = buckets_.count;
        if (!(top < infinity<T> && bottom < infinity<T>)) return false;
        double scale[256];
        int exponents[256];
        const T* edge = buckets_.edge;
        for (size_t c = 1; c + 1 < count; ++c) exponents[c] = buckets_.inner[c];
        exponents[0] = Buckets<T>::exponent(edge[0] <= T(0) ? bottom : larger(top, bottom));
        exponents[count - 1] = Buckets<T>::exponent(edge[count - 2] >= T(0) ? top : larger(top, bottom));
        for (size_t c = 0; c < count; ++c) scale[c] = power(precision - exponents[c]);
        uint64_t sums[4][256];
        for (auto& set : sums) std::memset(set, 0, count * sizeof *set);
        add_up(v, n, code, scale, sums);
        const size_t at = begin / block * count;
        for (size_t c = 0; c < count; ++c) {
            const uint64_t both = sums[0][c] + sums[1][c] + sums[2][c] + sums[3][c];
            sizes_[at + c] = std::uint32_t(both & ((1u << count_bits) - 1));
            sums_[at + c] = double(int64_t(both) >> count_bits) * power(exponents[c] - precision - spare_);
        }
        return true;
    }

    static double power(int e) {
        if (e < -1022) return std::ldexp(1.0, e);
        return cast_bits<double>(uint64_t(e + 1023) << 52);
    }

    void store(size_t begin, size_t n, uint8_t* code) {
        uint8_t* out = codes_ + begin / 8 * size_t(bits_);
        if (n == block) return with_bits(bits_, [=](auto b) { pack<b.value>(code, block, out); });
        uint8_t packed[block];
        with_bits(bits_, [&](auto b) { pack<b.value>(code, n, packed); });
        std::memcpy(out, packed, (n * size_t(bits_) + 7) / 8);
    }

    const EncoderInput<T>& s_;
    int bits_;
    uint8_t* codes_;
    Buckets<T> buckets_;
    int spare_;
    double* sums_;
    std::uint32_t* sizes_;
};

template <class T>
void encode_(const EncoderInput<T>& s, int bits, uint8_t* codes, T* means, int threads) {
    const size_t count = size_t(1) << bits;
    Encoder<T> encoder(s, bits, codes);
    if (encoder.run(threads)) encoder.means(means);
    else
        for (size_t c = 0; c < count; ++c) means[c] = T(__builtin_nan(""));
    if (!s.ef) return;
    T table[256];
    for (size_t c = 0; c < count; ++c) table[c] = -means[c];
    add_all(s.x, s.n, codes, bits, table, threads);
}

template <class T>
Fault add_(T* out, size_t n, const uint8_t* codes, const T* means, int bits, T alpha, int threads) {
    const size_t count = size_t(1) << bits;
    T table[256];
    bool good = true;
    for (size_t c = 0; c < count; ++c) {
        good &= magnitude(means[c]) < infinity<T>;
        table[c] = means[c] * alpha;
    }
    if (!good) return Fault::mean_not_finite;
    if (n && !padding_bits_clear(codes, (n * size_t(bits) + 7) / 8, uint64_t(n) * uint64_t(bits))) return Fault::padding_bits;
    add_all(out, n, codes, bits, table, threads);
    return Fault::none;
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                        \
    void sketch_encode(const EncoderInput<T>& s, int bits, uint8_t* codes, T* means, int threads) {            \
        encode_(s, bits, codes, means, threads);                                                               \
    }                                                                                                          \
    Fault sketch_add(T* out, size_t n, const uint8_t* codes, const T* means, int bits, T alpha, int threads) { \
        return add_(out, n, codes, means, bits, alpha, threads);                                               \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
