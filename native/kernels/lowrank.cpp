// Low-rank kernels. One pass over memory each, the rank a template parameter so that sums stay in registers.
//
// Every number is computed in an order that depends on n, m and rank alone: threads share out whole rows or whole
// columns, and vectors have 32 bytes in every instruction set.
#include "methods/lowrank.hpp"

#include <atomic>
#include <cstring>
#include <type_traits>

#include "parallel.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// Vectors are passed by value only between functions of this file, so how calls pass them does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

template <class T>
struct Pack {
    typedef T type __attribute__((vector_size(32)));
};
template <class T>
using Vec = typename Pack<T>::type;

template <class T>
inline Vec<T> load(const T* from) {
    Vec<T> v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class T>
inline void store(T* to, const Vec<T>& v) {
    std::memcpy(to, &v, sizeof v);
}

template <class T>
constexpr std::size_t lanes = 32 / sizeof(T);

template <class T>
inline T total(const Vec<T>& v) {
    T parts[lanes<T>];
    std::memcpy(parts, &v, sizeof v);
    for (std::size_t half = lanes<T> / 2; half; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    }
    return parts[0];
}

// body(begin, end) over [0, count) in at most a few pieces a thread, cut at multiples of `unit`.
template <class Body>
inline void share(std::size_t count, std::size_t unit, std::size_t elements, int threads, Body body) {
    if (elements < serial_below) threads = 1;
    std::size_t pieces = threads > 1 ? std::size_t(threads) * 4 : 1;
    std::size_t grain = (count + pieces - 1) / pieces;
    grain = (grain + unit - 1) / unit * unit;
    each_piece(count, grain, threads, body);
}

// p = (e + g) q^T -----------------------------------------------------------------------------------------

// One row at a time: memory is then read from end to end, which is faster than sharing loads of q between rows.
// Returns the sum of squares of the row, which overflows if an element is very large: it is only compared with a limit.
template <class T, int R>
inline T project_row(const T* e, const T* g, const T* q, T* p, std::size_t m) {
    Vec<T> sums[R] = {}, squares = {};
    std::size_t j = 0;
    for (; j + lanes<T> <= m; j += lanes<T>) {
        const Vec<T> v = load(e + j) + load(g + j);
        squares += v * v;
        for (int k = 0; k < R; ++k) sums[k] += v * load(q + k * m + j);
    }
    T square = total<T>(squares);
    for (std::size_t rest = j; rest < m; ++rest) square += (e[rest] + g[rest]) * (e[rest] + g[rest]);
    for (int k = 0; k < R; ++k) {
        T sum = total<T>(sums[k]);
        for (std::size_t rest = j; rest < m; ++rest) sum += (e[rest] + g[rest]) * q[k * m + rest];
        p[k] = sum;
    }
    return square;
}

// Whether all sums of squares were below `most`, which they are not if an element reaches its root, or is not finite.
template <class T, int R>
bool project_rows_of(const T* e, const T* g, const T* q, T* p, std::size_t n, std::size_t m, T most, int threads) {
    std::atomic<bool> ordinary{true};
    share(n, 1, n * m, threads, [=, &ordinary](std::size_t i, std::size_t end) {
        bool good = true;
        for (; i < end; ++i) good &= project_row<T, R>(e + i * m, g + i * m, q, p + i * R, m) < most;
        if (!good) ordinary.store(false, std::memory_order_relaxed);
    });
    return ordinary.load();
}

// q = p^T (e + g) -----------------------------------------------------------------------------------------

constexpr std::size_t column_block = 2048;
constexpr std::size_t short_row = 512;
constexpr std::size_t row_block = 128;

// Adds N rows to the sums of `width` columns, which lie `column_block` apart by k; returns the sum of their squares.
template <class T, int R, int N>
inline T project_columns_group(const T* e, const T* g, const T* p, T* sums, std::size_t m, std::size_t width) {
    Vec<T> squares[N] = {};  // a sum a row: one sum alone would make every row wait for the one before
    T square = 0;
    std::size_t j = 0;
    for (; j + lanes<T> <= width; j += lanes<T>) {
        Vec<T> v[N];
        for (int i = 0; i < N; ++i) {
            v[i] = load(e + i * m + j) + load(g + i * m + j);
            squares[i] += v[i] * v[i];
        }
        for (int k = 0; k < R; ++k) {
            Vec<T> sum = load(sums + k * column_block + j);
            for (int i = 0; i < N; ++i) sum += p[i * R + k] * v[i];
            store<T>(sums + k * column_block + j, sum);
        }
    }
    for (; j < width; ++j) {
        for (int i = 0; i < N; ++i) square += (e[i * m + j] + g[i * m + j]) * (e[i * m + j] + g[i * m + j]);
        for (int k = 0; k < R; ++k) {
            T sum = sums[k * column_block + j];
            for (int i = 0; i < N; ++i) sum += p[i * R + k] * (e[i * m + j] + g[i * m + j]);
            sums[k * column_block + j] = sum;
        }
    }
    for (const Vec<T>& row : squares) square += total<T>(row);
    return square;
}

template <class T, int R>
bool project_columns_of(const T* e, const T* g, const T* p, T* q, std::size_t n, std::size_t m, T most, int threads) {
    constexpr int N = 4;
    std::atomic<bool> ordinary{true};
    share(m, 2 * lanes<T>, n * m, threads, [=, &ordinary](std::size_t begin, std::size_t end) {
        alignas(64) T sums[R * column_block];
        bool good = true;
        for (; begin < end; begin += column_block) {
            std::size_t width = end - begin < column_block ? end - begin : column_block;
            for (int k = 0; k < R; ++k) std::memset(q + k * m + begin, 0, width * sizeof(T));
            // Sums of blocks of rows, then of these: rounding errors grow with the block, not with n.
            for (std::size_t first = 0; first < n; first += row_block) {
                std::size_t last = n - first < row_block ? n : first + row_block;
                for (int k = 0; k < R; ++k) std::memset(sums + k * column_block, 0, width * sizeof(T));
                std::size_t i = first;
                // Short rows one by one: several at once are read out of order, which costs more than it saves.
                for (; m > short_row && i + N <= last; i += N) {
                    good &= project_columns_group<T, R, N>(e + i * m + begin, g + i * m + begin, p + i * R, sums, m, width) < most;
                }
                for (; i < last; ++i) {
                    good &= project_columns_group<T, R, 1>(e + i * m + begin, g + i * m + begin, p + i * R, sums, m, width) < most;
                }
                for (int k = 0; k < R; ++k) {
                    for (std::size_t j = 0; j < width; ++j) q[k * m + begin + j] += sums[k * column_block + j];
                }
            }
        }
        if (!good) ordinary.store(false, std::memory_order_relaxed);
    });
    return ordinary.load();
}

// e = (e + g) - p q, out = p_mean q_mean ------------------------------------------------------------------

template <class T, int R, class V>
inline V product(const T (&p)[R], const V (&columns)[R]) {
    V sum = p[0] * columns[0];
    for (int k = 1; k < R; ++k) sum += p[k] * columns[k];
    return sum;
}

// What the two products have in common, known when compiling: nothing, q, or everything.
enum class Shared { nothing, q, all };

// A row. Without `Residual` only `out` is written, without `Result` only `e`.
template <class T, int R, bool Residual, bool Result, Shared shared>
inline void settle_row(T* e, const T* g, const T* p, const T* q, T* out, const T* p_mean, const T* q_mean,
                       std::size_t m) {
    // Copies: the compiler must not think that writing a row changes the factors.
    T local[R], mean[R];
    std::memcpy(local, p, sizeof local);
    std::memcpy(mean, p_mean, sizeof mean);
    auto at = [&](std::size_t j, auto get, auto put) {
        using V = decltype(get(q));
        V columns[R], other[R];
        for (int k = 0; k < R; ++k) columns[k] = get(q + k * m + j);
        if constexpr (Result && shared == Shared::nothing) {
            for (int k = 0; k < R; ++k) other[k] = get(q_mean + k * m + j);
        }
        const V own = product<T, R>(local, columns);
        if constexpr (Residual) put(e + j, (get(e + j) + get(g + j)) - own);
        if constexpr (Result && shared == Shared::all) put(out + j, own);
        else if constexpr (Result && shared == Shared::q) put(out + j, product<T, R>(mean, columns));
        else if constexpr (Result) put(out + j, product<T, R>(mean, other));
    };
    std::size_t j = 0;
    for (; j + lanes<T> <= m; j += lanes<T>) {
        at(j, [](const T* from) { return load(from); }, [](T* to, const Vec<T>& v) { store<T>(to, v); });
    }
    for (; j < m; ++j) at(j, [](const T* from) { return *from; }, [](T* to, T v) { *to = v; });
}

template <class T, int R, bool Residual, bool Result, Shared shared>
void settle_rows(T* e, const T* g, const T* p, const T* q, T* out, const T* p_mean, const T* q_mean, std::size_t n,
                 std::size_t m, int threads) {
    share(n, 1, n * m, threads, [=](std::size_t i, std::size_t end) {
        for (; i < end; ++i) {
            settle_row<T, R, Residual, Result, shared>(Residual ? e + i * m : nullptr, Residual ? g + i * m : nullptr,
                                                       p + i * R, q, Result ? out + i * m : nullptr, p_mean + i * R,
                                                       q_mean, m);
        }
    });
}

template <class T, int R>
void settle_of(T* e, const T* g, const T* p, const T* q, T* out, const T* p_mean, const T* q_mean, std::size_t n,
               std::size_t m, int threads) {
    auto* go = settle_rows<T, R, true, true, Shared::nothing>;
    if (!out) go = settle_rows<T, R, true, false, Shared::all>;
    else if (!e) go = settle_rows<T, R, false, true, Shared::all>;
    else if (q == q_mean) go = p == p_mean ? settle_rows<T, R, true, true, Shared::all> : settle_rows<T, R, true, true, Shared::q>;
    go(e, g, p, q, out, p_mean, q_mean, n, m, threads);
}

}  // namespace

#define GRACE_RANKS(call)        \
    switch (rank) {              \
        case 1: return call(1);  \
        case 2: return call(2);  \
        case 3: return call(3);  \
        case 4: return call(4);  \
        case 5: return call(5);  \
        case 6: return call(6);  \
        case 7: return call(7);  \
        default: return call(8); \
    }

#define GRACE_DEFINE(T)                                                                                             \
    bool project_rows(const T* e, const T* g, const T* q, T* p, std::size_t n, std::size_t m, int rank, T most,     \
                      int threads) {                                                                                \
        GRACE_RANKS(GRACE_ROWS_##T)                                                                                 \
    }                                                                                                               \
    bool project_columns(const T* e, const T* g, const T* p, T* q, std::size_t n, std::size_t m, int rank, T most,  \
                         int threads) {                                                                             \
        GRACE_RANKS(GRACE_COLUMNS_##T)                                                                              \
    }                                                                                                               \
    void settle_factors(T* e, const T* g, const T* p, const T* q, T* out, const T* p_mean, const T* q_mean,         \
                        std::size_t n, std::size_t m, int rank, int threads) {                                      \
        GRACE_RANKS(GRACE_SETTLE_##T)                                                                               \
    }

#define GRACE_ROWS_float(R) project_rows_of<float, R>(e, g, q, p, n, m, most, threads)
#define GRACE_ROWS_double(R) project_rows_of<double, R>(e, g, q, p, n, m, most, threads)
#define GRACE_COLUMNS_float(R) project_columns_of<float, R>(e, g, p, q, n, m, most, threads)
#define GRACE_COLUMNS_double(R) project_columns_of<double, R>(e, g, p, q, n, m, most, threads)
#define GRACE_SETTLE_float(R) settle_of<float, R>(e, g, p, q, out, p_mean, q_mean, n, m, threads)
#define GRACE_SETTLE_double(R) settle_of<double, R>(e, g, p, q, out, p_mean, q_mean, n, m, threads)

GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
