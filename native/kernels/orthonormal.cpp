// Orthonormal rows by Gram-Schmidt, repeated until nothing changes ("twice is enough"), with sums in double.
//
// Ranks must agree on these numbers to the last bit whatever their processors and thread counts, which no library's QR
// promises: here the order of every sum depends on n alone, and a matrix is worked on by one thread.
#include <cfloat>
#include <cmath>
#include <cstring>

#include "methods/lowrank.hpp"
#include "parallel.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

#pragma GCC diagnostic ignored "-Wpsabi"

typedef double Wide __attribute__((vector_size(32)));
constexpr std::size_t lanes = 4;

template <class T>
inline Wide widen(const T* from) {
    typedef T Narrow __attribute__((vector_size(lanes * sizeof(T))));
    Narrow v;
    std::memcpy(&v, from, sizeof v);
    return __builtin_convertvector(v, Wide);
}

template <class T>
inline void narrow(T* to, const Wide& v) {
    typedef T Narrow __attribute__((vector_size(lanes * sizeof(T))));
    Narrow out = __builtin_convertvector(v, Narrow);
    std::memcpy(to, &out, sizeof out);
}

template <class T>
double dot(const T* a, const T* b, std::size_t n) {
    Wide even = {}, odd = {};
    std::size_t j = 0;
    for (; j + 2 * lanes <= n; j += 2 * lanes) {
        even += widen(a + j) * widen(b + j);
        odd += widen(a + j + lanes) * widen(b + j + lanes);
    }
    double parts[lanes];
    even += odd;
    std::memcpy(parts, &even, sizeof parts);
    double sum = (parts[0] + parts[2]) + (parts[1] + parts[3]);
    for (; j < n; ++j) sum += double(a[j]) * double(b[j]);
    return sum;
}

// row -= sum of weights[k] * rows[k]
template <class T>
void subtract(T* row, const T* rows, const double* weights, int count, std::size_t n) {
    std::size_t j = 0;
    for (; j + lanes <= n; j += lanes) {
        Wide v = widen(row + j);
        for (int k = 0; k < count; ++k) v -= weights[k] * widen(rows + k * n + j);
        narrow(row + j, v);
    }
    for (; j < n; ++j) {
        double v = double(row[j]);
        for (int k = 0; k < count; ++k) v -= weights[k] * double(rows[k * n + j]);
        row[j] = T(v);
    }
}

// Makes a row of largest entry 1 orthogonal to those before it; returns its length, 0 if it depends on them.
template <class T>
double project(T* row, const T* rows, int count, std::size_t n, double tolerance) {
    double first = std::sqrt(dot(row, row, n)), before = first, weights[max_rank];
    for (int pass = 0; count && pass < 4; ++pass) {
        for (int k = 0; k < count; ++k) weights[k] = dot(row, rows + k * n, n);
        subtract(row, rows, weights, count, n);
        double now = std::sqrt(dot(row, row, n));
        if (!(now > tolerance * first)) return 0;
        if (pass && now > 0.5 * before) return now;
        before = now;
    }
    return before;
}

// Instead of a row that depends on the others: the first unit vector that is far enough from their span.
template <class T>
void replace(T* row, const T* rows, int count, std::size_t n) {
    std::size_t chosen = 0;
    for (std::size_t j = 0; j < n; ++j) {
        double left = 1;
        for (int k = 0; k < count; ++k) left -= double(rows[k * n + j]) * double(rows[k * n + j]);
        // The average over j is 1 - count / n, so one of at least half of that exists.
        if (left >= 0.5 * (1 - double(count) / double(n))) {
            chosen = j;
            break;
        }
    }
    std::memset(row, 0, n * sizeof(T));
    row[chosen] = 1;
}

template <class T>
void scale(T* row, std::size_t n, double divisor) {
    for (std::size_t j = 0; j < n; ++j) row[j] = T(double(row[j]) / divisor);
}

template <class T>
inline T largest_of(const T* row, std::size_t n) {
    T largest = 0;
    for (std::size_t j = 0; j < n; ++j) {
        T size = row[j] < 0 ? -row[j] : row[j];
        largest = size > largest ? size : largest;
    }
    return largest;
}

template <class T>
bool unit(T* rows, std::size_t count, std::size_t n) {
    bool all = true;
    for (T* row = rows; row != rows + count * n; row += n) {
        T largest = largest_of(row, n);
        all &= largest != 0;
        if (largest != 0)
            for (std::size_t j = 0; j < n; ++j) row[j] /= largest;
    }
    return all;
}

template <class T>
void orthonormal_matrix(T* rows, int rank, std::size_t n, double tolerance) {
    for (int i = 0; i < rank; ++i) {
        T* row = rows + i * n;
        T largest = largest_of(row, n);
        bool finite = true;
        for (std::size_t j = 0; j < n; ++j) finite &= row[j] - row[j] == 0;
        if (!finite) {
            for (std::size_t j = 0; j < rank * n; ++j) rows[j] = T(NAN);
            return;
        }
        double length = 0;
        if (largest > 0) {
            scale(row, n, double(largest));
            length = project(row, rows, i, n, tolerance);
        }
        if (length == 0) {
            replace(row, rows, i, n);
            length = project(row, rows, i, n, 0.0);
        }
        scale(row, n, length);
    }
}

template <class T>
void orthonormal(T* rows, std::size_t count, int rank, std::size_t n, int threads, double tolerance) {
    each(count, count * rank * n < serial_below ? 1 : threads, [=](std::size_t index) {
        orthonormal_matrix(rows + index * rank * n, rank, n, tolerance);
    });
}

}  // namespace

void orthonormal_rows(float* rows, std::size_t count, int rank, std::size_t n, int threads) {
    orthonormal(rows, count, rank, n, threads, 16 * double(FLT_EPSILON));
}

void orthonormal_rows(double* rows, std::size_t count, int rank, std::size_t n, int threads) {
    orthonormal(rows, count, rank, n, threads, 16 * DBL_EPSILON);
}

bool unit_rows(float* rows, std::size_t count, std::size_t n) { return unit(rows, count, n); }
bool unit_rows(double* rows, std::size_t count, std::size_t n) { return unit(rows, count, n); }

}  // namespace GRACE_ISA
}  // namespace grace
