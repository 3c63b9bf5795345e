// Exercises the sparse kernels and EDEN on valid and on broken bytes; built with sanitizers by the test suite.
#include <limits>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "methods/dgc.hpp"
#include "methods/eden.hpp"
#include "methods/randomk.hpp"
#include "methods/sparse.hpp"
#include "methods/topk.hpp"
#include "require.hpp"

using namespace grace;

namespace {

std::mt19937_64 generator(1);

template <class T>
std::vector<T> numbers(std::size_t n, int flavour) {
    std::normal_distribution<double> normal;
    std::vector<T> out(n);
    for (auto& value : out) {
        value = T(normal(generator));
        if (flavour == 1) value = T(0);
        if (flavour == 2) value = T(std::round(double(value)));
        if (flavour == 3) value = T(double(value) * 1e-42);
        if (flavour == 4) value = T(double(value) * 1e37);
    }
    return out;
}

std::size_t index_bytes(std::uint64_t d, std::uint64_t k) {
    int width = 0;
    for (std::uint64_t q = d / k; q > 1; q >>= 1) ++width;
    const std::size_t coded = (k * width + 7) / 8 + (k + (d >> width) + 1 + 7) / 8;
    return std::min<std::size_t>((d + 7) / 8, coded);
}

template <class T>
constexpr Dtype plain() {
    return sizeof(T) == 8 ? Dtype::float64 : Dtype::float32;
}

template <class T>
void selection(std::size_t n, std::size_t k, int flavour, int threads) {
    auto x = numbers<T>(n, flavour);
    const auto g = numbers<T>(n, flavour);
    std::vector<T> v(n), sent(k), out(n, T(0));
    for (std::size_t i = 0; i < n; ++i) v[i] = x[i] + g[i];
    std::vector<std::uint8_t> index(index_bytes(n, k));
    EncoderInput<T> s{x.data(), g.data(), T(1), T(1), n, true};
    GRACE_CALL(topk_encode, s, k, sent.data(), plain<T>(), index.data(), threads);
    REQUIRE(GRACE_CALL(sparse_add, out.data(), n, sent.data(), plain<T>(), k, k, index.data(), T(1), threads) == Fault::none);
    auto sorted = v;
    std::nth_element(sorted.begin(), sorted.begin() + std::ptrdiff_t(k - 1), sorted.end(),
                     [](T a, T b) { return std::abs(a) > std::abs(b); });
    std::size_t above = 0;
    for (std::size_t i = 0; i < n; ++i) {
        REQUIRE(x[i] + out[i] == v[i]);
        above += std::abs(v[i]) > std::abs(sorted[k - 1]);
        REQUIRE(!(std::abs(v[i]) > std::abs(sorted[k - 1])) || out[i] == v[i]);
    }
    REQUIRE(above < k);

    const Sampling sampling{std::max<std::size_t>(1, k / 3), std::max<std::size_t>(1, n / 3), 0, 3, 5, 0.8, 1.3, 10, true};
    std::vector<std::uint16_t> halves(k);
    EncoderInput<T> read{v.data(), nullptr, T(1), T(1), n, false};
    if (n >= 3) {
        const auto count = GRACE_CALL(dgc_encode, read, k, sampling, halves.data(), Dtype::float16, index.data(), threads);
        REQUIRE(count <= k);
        REQUIRE(GRACE_CALL(sparse_add, out.data(), n, halves.data(), Dtype::float16, k, count, index.data(), T(-0.5), threads) == Fault::none);
        REQUIRE(GRACE_CALL(sparse_zero, out.data(), n, k, count, index.data(), threads) == Fault::none);
    }

    if (n >= 3) {
        std::vector<T> m = numbers<T>(n, flavour), sum = x;
        const auto m_before = m, sum_before = sum;
        for (bool bad : {false, true}) {
            auto grad = g;
            if (bad) grad[n - 1] = T(INFINITY);
            const auto count = GRACE_CALL(dgc_step, m.data(), sum.data(), grad.data(), T(0.5), bool(k & 1), T(1),
                                          std::numeric_limits<T>::infinity(), n, k, sampling,
                                          sent.data(), plain<T>(), index.data(), threads);
            REQUIRE(bad ? count == not_finite : count <= k);
            if (bad) {
                for (std::size_t i = 0; i < n; ++i) REQUIRE(std::isfinite(m[i]) && std::isfinite(sum[i]));
            } else {
                const auto whole = sum;
                std::fill(out.begin(), out.end(), T(0));
                REQUIRE(GRACE_CALL(sparse_add, out.data(), n, sent.data(), plain<T>(), k, count, index.data(), T(1), threads) == Fault::none);
                REQUIRE(GRACE_CALL(dgc_commit, sum.data(), m.data(), n, sent.data(), plain<T>(), k, count, index.data(), threads) == Fault::none);
                for (std::size_t i = 0; i < n; ++i) {
                    REQUIRE(sum[i] == whole[i] - out[i]);
                    REQUIRE(out[i] == T(0) || m[i] == T(0));
                }
                m = m_before, sum = sum_before;
            }
        }
    }

    const auto hits = GRACE_CALL(threshold_find, read, T(1.5), threads);
    std::vector<T> found(std::max<std::size_t>(1, hits));
    std::vector<std::uint8_t> places(hits ? index_bytes(n, hits) : 1);
    REQUIRE(GRACE_CALL(threshold_emit, read, T(1.5), hits, found.data(), plain<T>(), places.data(), threads));
    if (hits) REQUIRE(GRACE_CALL(sparse_add, out.data(), n, found.data(), plain<T>(), hits, hits, places.data(), T(1), threads) == Fault::none);

    GRACE_CALL(randomk_encode, s, 77, false, sent.data(), k, threads);
    GRACE_CALL(randomk_add, out.data(), n, sent.data(), k, 77, T(1), threads);
}

template <class T>
void hostile(std::size_t n, std::size_t k, int rounds) {
    std::vector<std::uint8_t> index(index_bytes(n, k));
    std::vector<T> values(k, T(1)), out(n, T(0));
    std::vector<std::int64_t> chosen(k), decoded(k);
    for (int round = 0; round < rounds; ++round) {
        for (std::size_t i = 0; i < k; ++i) chosen[i] = std::int64_t(i * n / k);
        GRACE_CALL(encode_indices, chosen.data(), k, n, k, index.data());
        const int changes = 1 + int(generator() % 4);
        for (int c = 0; c < changes; ++c) index[generator() % index.size()] ^= std::uint8_t(generator());
        if (round % 3 == 0)
            for (auto& byte : index) byte = std::uint8_t(generator());
        const std::size_t count = k - generator() % (k + 1) / 2;
        const auto before = out;
        if (GRACE_CALL(sparse_add, out.data(), n, values.data(), plain<T>(), k, k, index.data(), T(1), 2) != Fault::none)
            REQUIRE(out == before);  // nothing is touched unless all is well
        GRACE_CALL(sparse_zero, out.data(), n, k, count, index.data(), 2);
        if (GRACE_CALL(decode_indices, index.data(), n, k, count, decoded.data(), 2) == Fault::none)
            for (std::size_t i = 0; i < count; ++i)
                REQUIRE(decoded[i] >= 0 && std::size_t(decoded[i]) < n && (i == 0 || decoded[i] > decoded[i - 1]));
    }
}

template <class T>
void eden(std::size_t n, int bits, bool least_squares, int threads) {
    static const double centroids[] = {0.128395029851, 0.38804829949,  0.656759118532, 0.942340456487,
                                       1.256231197347, 1.618046386022, 2.069017226531, 2.732589570995};
    auto x = numbers<T>(n, 0);
    const auto before = x;
    std::vector<T> out(n, T(0)), scales(n / 4096 + 16);
    std::vector<std::uint8_t> codes((n + 4096) * std::size_t(bits) / 8 + 256);
    EncoderInput<T> s{x.data(), nullptr, T(1), T(1), n, true};
    GRACE_CALL(eden_encode, s, bits, centroids, least_squares, 42, codes.data(), scales.data(), threads);
    REQUIRE(GRACE_CALL(eden_add, out.data(), n, codes.data(), scales.data(), bits, centroids, 42, T(1), threads));
    for (std::size_t i = 0; i < n; ++i) REQUIRE(std::abs(x[i] + out[i] - before[i]) < 1e-4);
    for (auto& code : codes) code = std::uint8_t(generator());
    REQUIRE(GRACE_CALL(eden_add, out.data(), n, codes.data(), scales.data(), bits, centroids, 42, T(1), threads));
    scales[0] = T(-1);
    REQUIRE(!GRACE_CALL(eden_add, out.data(), n, codes.data(), scales.data(), bits, centroids, 42, T(1), threads));
}

template <class T>
void all() {
    for (int flavour = 0; flavour < 5; ++flavour)
        for (int threads : {1, 3}) {
            for (std::size_t n : {1, 2, 17, 1000, 1025})
                for (std::size_t k : {std::size_t(1), n / 10, n / 3, n})
                    if (k) selection<T>(n, k, flavour, threads);
            for (std::size_t k : {70, 700, 20000}) selection<T>(70001, k, flavour, threads);
        }
    hostile<T>(1000, 10, 2000);
    hostile<T>(1000, 400, 500);
    hostile<T>(7, 3, 500);
    hostile<T>(1000003, 20000, 30);
    for (int bits = 1; bits <= 4; ++bits)
        for (std::size_t n : {1, 300, 2100, 4096, 50001}) eden<T>(n, bits, n % 2 == 0, 3);
}

}  // namespace

int main() {
    for (const char* isa : {"baseline", "avx2"})
        if (set_isa(isa)) {
            all<float>();
            all<double>();
            std::printf("%s: fine\n", isa);
        }
}
