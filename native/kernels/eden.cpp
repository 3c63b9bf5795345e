// EDEN: H D2 H D1 on blocks, then 1 to 4 bits a coordinate (grace_dl/kernels/reference/eden.py).
//
// Vectors are written with the compiler's own vector types, so that one text serves every instruction set; butterflies
// run from the nearest to the farthest in all of them, so that every sum is rounded alike.
#include "methods/eden.hpp"

#include <cmath>

#include "encoder_input.hpp"
#include "packing.hpp"
#include "parallel.hpp"
#include "random.hpp"
#include "reduce.hpp"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace grace {
namespace GRACE_ISA {
namespace {

using std::int32_t;
using std::size_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr size_t block = 4096, least = 256, lanes = 32;
constexpr uint64_t second = 0x9E3779B97F4A7C15ull;

// GCC before 12 lacks the one spelling, Clang the other.
#if defined(__clang__)
#define GRACE_SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define GRACE_SHUFFLE(v, ...) __builtin_shuffle(v, I{__VA_ARGS__})
#endif

typedef double Quad __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));

template <class T>
struct Pack;
template <>
struct Pack<float> {
    static constexpr size_t width = 8;
    typedef float V __attribute__((vector_size(32)));
    typedef int32_t I __attribute__((vector_size(32)));
    static constexpr I bit = {1, 2, 4, 8, 16, 32, 64, 128};
    static constexpr I sign = I{} + int32_t(0x80000000);
    static V swap1(V v) { return GRACE_SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6); }
    static V swap2(V v) { return GRACE_SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5); }
    static V swap4(V v) { return GRACE_SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3); }
    static V near(V v) {
        v = swap1(v) + v * V{1, -1, 1, -1, 1, -1, 1, -1};
        v = swap2(v) + v * V{1, 1, -1, -1, 1, 1, -1, -1};
        return swap4(v) + v * V{1, 1, 1, 1, -1, -1, -1, -1};
    }
};
template <>
struct Pack<double> {
    static constexpr size_t width = 4;
    typedef double V __attribute__((vector_size(32)));
    typedef std::int64_t I __attribute__((vector_size(32)));
    static constexpr I bit = {1, 2, 4, 8};
    static constexpr I sign = I{} + std::int64_t(0x8000000000000000ull);
    static V near(V v) {
        v = GRACE_SHUFFLE(v, 1, 0, 3, 2) + v * V{1, -1, 1, -1};
        return GRACE_SHUFFLE(v, 2, 3, 0, 1) + v * V{1, 1, -1, -1};
    }
};

template <class T>
using V = typename Pack<T>::V;
template <class T>
using I = typename Pack<T>::I;

// A mask of sign bits: set in lane j where bit j of `bits` is.
template <class T>
inline I<T> signs(uint32_t bits) {
    const I<T> bit = Pack<T>::bit;
    const I<T> all = I<T>{} + decltype(bit[0] + 0)(bits);
    return ((all & bit) == bit) & Pack<T>::sign;
}

template <class T>
inline V<T> flip(V<T> v, uint32_t bits) {
    return (V<T>)((I<T>)v ^ signs<T>(bits));
}

// One stage of butterflies at a distance of `h` vectors.
template <class T>
inline void stage2(V<T>* y, size_t n, size_t h) {
    for (size_t i = 0; i < n; i += 2 * h)
        for (size_t j = i; j < i + h; ++j) {
            const V<T> a = y[j], b = y[j + h];
            y[j] = a + b, y[j + h] = a - b;
        }
}

// Three stages at once, from distance `h`: each vector is loaded and stored once.
template <class T>
inline void stage8(V<T>* y, size_t n, size_t h) {
    for (size_t i = 0; i < n; i += 8 * h)
        for (size_t j = i; j < i + h; ++j) {
            V<T>* p = y + j;
            const V<T> a0 = p[0] + p[h], a1 = p[0] - p[h], a2 = p[2 * h] + p[3 * h], a3 = p[2 * h] - p[3 * h];
            const V<T> a4 = p[4 * h] + p[5 * h], a5 = p[4 * h] - p[5 * h], a6 = p[6 * h] + p[7 * h], a7 = p[6 * h] - p[7 * h];
            const V<T> b0 = a0 + a2, b1 = a1 + a3, b2 = a0 - a2, b3 = a1 - a3;
            const V<T> b4 = a4 + a6, b5 = a5 + a7, b6 = a4 - a6, b7 = a5 - a7;
            p[0] = b0 + b4, p[h] = b1 + b5, p[2 * h] = b2 + b6, p[3 * h] = b3 + b7;
            p[4 * h] = b0 - b4, p[5 * h] = b1 - b5, p[6 * h] = b2 - b6, p[7 * h] = b3 - b7;
        }
}

// The unnormalised Walsh-Hadamard transform of n elements, each vector first passed through `first(number, vector)`.
template <class T, class First>
inline void hadamard(T* data, size_t n, First first) {
    V<T>* y = reinterpret_cast<V<T>*>(data);
    const size_t vectors = n / Pack<T>::width;
    for (size_t i = 0; i < vectors; ++i) y[i] = Pack<T>::near(first(i, y[i]));
    size_t h = 1;
    for (; h * 8 <= vectors; h *= 8) stage8<T>(y, vectors, h);
    for (; h < vectors; h *= 2) stage2<T>(y, vectors, h);
}

// The random signs of a block: bit c % 32 of word c / 32, coordinate c.
struct Rounds {
    uint32_t one[block / 32], two[block / 32];

    Rounds(uint64_t word, size_t first, size_t n) {
        draws(word, first / 32, n / 32, one);
        draws(word ^ second, first / 32, n / 32, two);
    }

    template <class T>
    static uint32_t of(const uint32_t* words, size_t vector) {
        const size_t c = vector * Pack<T>::width;
        return words[c / 32] >> (c % 32);
    }
};

template <class T>
void rotate(T* y, size_t n, const Rounds& r) {
    hadamard(y, n, [&](size_t i, V<T> v) { return flip<T>(v, Rounds::of<T>(r.one, i)); });
    hadamard(y, n, [&](size_t i, V<T> v) { return flip<T>(v, Rounds::of<T>(r.two, i)); });
}

// D1 H D2 H q, but for the last D1. `q(i)` gives the i-th vector.
template <class T, class Q>
void rotate_back(T* y, size_t n, const Rounds& r, Q q) {
    hadamard(y, n, [&](size_t i, V<T>) { return q(i); });
    hadamard(y, n, [&](size_t i, V<T> v) { return flip<T>(v, Rounds::of<T>(r.two, i)); });
}

inline Quad quad(const float* y) {
    Four v;
    std::memcpy(&v, y, sizeof v);
    return __builtin_convertvector(v, Quad);
}
inline Quad quad(const double* y) {
    Quad v;
    std::memcpy(&v, y, sizeof v);
    return v;
}

// Sum of term(y[i]) over n elements: 32 running sums, then halving.
template <class T, class Term>
inline double row_sum(const T* y, size_t n, Term term) {
    Quad sums[lanes / 4];
    for (size_t l = 0; l < lanes / 4; ++l) sums[l] = term(quad(y + 4 * l), 4 * l);
    for (size_t i = lanes; i < n; i += lanes)
        for (size_t l = 0; l < lanes / 4; ++l) sums[l] += term(quad(y + i + 4 * l), i + 4 * l);
    double flat[lanes];
    std::memcpy(flat, sums, sizeof flat);
    return halve(flat, lanes);
}

struct Levels {
    int bits, count;
    double centroid[16], edge[15];

    Levels(int width, const double* positive) : bits(width), count(1 << width) {
        const int half = count / 2;
        for (int i = 0; i < half; ++i) centroid[half + i] = positive[i], centroid[half - 1 - i] = -positive[i];
        for (int i = 0; i + 1 < count; ++i) edge[i] = (centroid[i + 1] + centroid[i]) / 2;
    }
};

// The i-th vector of centroids named by codes.
template <class T>
struct Lookup {
    const Levels& levels;
    const uint8_t* bytes;
    const int32_t* codes;
    T table[16];

    Lookup(const Levels& l, const uint8_t* packed, const int32_t* unpacked) : levels(l), bytes(packed), codes(unpacked) {
        for (int i = 0; i < l.count; ++i) table[i] = T(l.centroid[i]);
    }

    V<T> operator()(size_t i) const {
        constexpr size_t w = Pack<T>::width;
        if (levels.bits == 1) return flip<T>(V<T>{} + table[1], ~uint32_t(bytes[i * w / 8]) >> (i * w % 8));
        V<T> v;
        for (size_t j = 0; j < w; ++j) v[j] = table[codes[i * w + j]];
        return v;
    }
};

template <class T>
inline void sign_bits(const T* y, size_t n, uint8_t* out) {
    for (size_t i = 0; i < n; i += 8) {
        uint32_t byte = 0;
        for (size_t j = 0; j < 8; ++j) byte |= uint32_t(y[i + j] >= T(0)) << j;
        out[i / 8] = uint8_t(byte);
    }
}

#if defined(__AVX2__)
}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
#include <immintrin.h>
namespace grace {
namespace GRACE_ISA {
namespace {
template <>
inline void sign_bits<float>(const float* y, size_t n, uint8_t* out) {
    for (size_t i = 0; i < n; i += 8)
        out[i / 8] = uint8_t(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(y + i), _mm256_setzero_ps(), _CMP_GE_OQ)));
}
#endif

struct Block {
    size_t start, length, size, first;  // elements, padded size, first coordinate
};

struct Blocks {
    size_t full, count, tail = 0;
    Block tails[16];

    explicit Blocks(size_t d) : full(d / block) {
        size_t start = full * block, first = start, rest = d % block;
        while (rest) {
            size_t size = least;
            while (size < rest) size *= 2;
            if (size > least && size - rest > size / 8) size /= 2;
            const size_t length = rest < size ? rest : size;
            tails[tail++] = {start, length, size, first};
            start += length, first += size, rest -= length;
        }
        count = full + tail;
    }

    Block operator[](size_t b) const {
        return b < full ? Block{b * block, block, block, b * block} : tails[b - full];
    }
};

inline double power(int exponent) { return std::ldexp(1.0, exponent); }

template <class T>
void encode_block(const EncoderInput<T>& s, const Block& b, const Levels& levels, bool least_squares, uint64_t word,
                  uint8_t* codes, T* scale) {
    alignas(64) T y[block];
    alignas(64) int32_t code[block];
    const size_t n = b.size;
    T* x = s.x + b.start;
    if (s.g) axpby_into(x, s.g + b.start, s.beta, s.gamma, b.length, y);
    else std::memcpy(y, x, b.length * sizeof(T));
    if (s.ef && s.g) std::memcpy(x, y, b.length * sizeof(T));
    for (size_t i = b.length; i < n; ++i) y[i] = T(0);

    constexpr int low = sizeof(T) == 8 ? -1000 : -120, high = sizeof(T) == 8 ? 1000 : 126;
    int exponent = 0;
    std::frexp(double(max_abs(y, n)), &exponent);
    exponent = exponent < low ? low : exponent > high ? high : exponent;
    const T down = T(power(-exponent));
    for (size_t i = 0; i < n; ++i) y[i] *= down;
    const double norm = row_sum(y, n, [](Quad v, size_t) __attribute__((always_inline)) { return v * v; });
    const Rounds rounds(word, b.first, n);
    rotate(y, n, rounds);

    uint8_t* packed = codes + b.first * size_t(levels.bits) / 8;
    double dot, squares = 0;  // <R x, q> and |q|^2
    if (levels.bits == 1) {
        sign_bits(y, n, packed);
        const double centroid = levels.centroid[1];
        dot = row_sum(y, n, [=](Quad v, size_t) __attribute__((always_inline)) { return (v < 0.0 ? -v : v) * centroid; });
        if (least_squares)
            squares = row_sum(y, n, [=](Quad, size_t) __attribute__((always_inline)) { return Quad{} + centroid * centroid; });
    } else {
        const double sigma = std::sqrt(norm * double(n));
        for (size_t i = 0; i < n; ++i) code[i] = 0;
        for (int l = 0; l + 1 < levels.count; ++l) {
            const T limit = T(sigma * levels.edge[l]);
            for (size_t i = 0; i < n; ++i) code[i] += y[i] >= limit;
        }
        const auto q = [&](size_t i) __attribute__((always_inline)) {
            return Quad{levels.centroid[code[i]], levels.centroid[code[i + 1]], levels.centroid[code[i + 2]],
                        levels.centroid[code[i + 3]]};
        };
        dot = row_sum(y, n, [&](Quad v, size_t i) __attribute__((always_inline)) { return v * q(i); });
        if (least_squares)
            squares = row_sum(y, n, [&](Quad, size_t i) __attribute__((always_inline)) { return q(i) * q(i); });
        BitWriter writer(packed, levels.bits);
        writer.put(code, n);
        writer.finish();
    }
    // The rotation is not normalised: R^T R is n^2.
    const double ratio = least_squares ? dot / (squares * double(n * n)) : norm / dot;
    *scale = T((dot > 0 ? ratio : 0.0) * power(exponent));
    if (!s.ef) return;
    rotate_back(y, n, rounds, Lookup<T>(levels, packed, code));
    const T factor = *scale;
    V<T>* z = reinterpret_cast<V<T>*>(y);
    for (size_t i = 0; i < n / Pack<T>::width; ++i) z[i] = flip<T>(z[i], Rounds::of<T>(rounds.one, i)) * factor;
    for (size_t i = 0; i < b.length; ++i) x[i] -= y[i];
}

template <class T>
void add_block(T* out, const Block& b, const Levels& levels, uint64_t word, const uint8_t* codes, T scale, T alpha) {
    alignas(64) T y[block];
    alignas(64) int32_t code[block];
    const size_t n = b.size;
    const uint8_t* packed = codes + b.first * size_t(levels.bits) / 8;
    if (levels.bits > 1) {
        BitReader reader(packed, packed + n * size_t(levels.bits) / 8, levels.bits);
        reader.get(code, n);
    }
    const Rounds rounds(word, b.first, n);
    rotate_back(y, n, rounds, Lookup<T>(levels, packed, code));
    V<T>* z = reinterpret_cast<V<T>*>(y);
    for (size_t i = 0; i < n / Pack<T>::width; ++i) z[i] = flip<T>(z[i], Rounds::of<T>(rounds.one, i)) * scale * alpha;
    out += b.start;
    for (size_t i = 0; i < b.length; ++i) out[i] += y[i];
}

constexpr size_t blocks_per_piece = 8;

template <class Body>
inline void over(const Blocks& blocks, int threads, Body body) {
    each_piece(blocks.count, blocks_per_piece, blocks.full < 8 ? 1 : threads, [&](size_t b, size_t end) {
        for (; b < end; ++b) body(b);
    });
}

template <class T>
bool eden_add_(T* out, size_t n, const uint8_t* codes, const T* scales, int bits, const double* centroids,
               uint64_t word, T alpha, int threads) {
    const Blocks blocks(n);
    const Levels levels(bits, centroids);
    bool sound = true;
    for (size_t b = 0; b < blocks.count; ++b) sound &= scales[b] >= T(0) && scales[b] < T(__builtin_huge_val());
    if (!sound) return false;
    over(blocks, threads, [&](size_t b) { add_block(out, blocks[b], levels, word, codes, scales[b], alpha); });
    return true;
}

template <class T>
void eden_encode_(const EncoderInput<T>& s, int bits, const double* centroids, bool least_squares, uint64_t word,
                  uint8_t* codes, T* scales, int threads) {
    const Blocks blocks(s.n);
    const Levels levels(bits, centroids);
    over(blocks, threads, [&](size_t b) { encode_block(s, blocks[b], levels, least_squares, word, codes, scales + b); });
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                                     \
    void eden_encode(const EncoderInput<T>& s, int bits, const double* centroids, bool least_squares, uint64_t word,        \
                     uint8_t* codes, T* scales, int threads) {                                                              \
        eden_encode_(s, bits, centroids, least_squares, word, codes, scales, threads);                                      \
    }                                                                                                                       \
    bool eden_add(T* out, size_t n, const uint8_t* codes, const T* scales, int bits, const double* centroids,               \
                  uint64_t word, T alpha, int threads) {                                                                    \
        return eden_add_(out, n, codes, scales, bits, centroids, word, alpha, threads);                                     \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
