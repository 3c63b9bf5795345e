#include "bind_typed.hpp"
#include "sparse.hpp"

using namespace grace;
using std::size_t;
using std::uint64_t;
using std::uint8_t;

void bind_sparse(nb::module_& m) {
    m.def("topk_encode", [](FROM, uint64_t k, address values, int kind, address index, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(topk_encode, SOURCE(T), k, at<void>(values), Kind(kind), at<uint8_t>(index), threads);
        });
    });
    m.def("dgc_encode", [](FROM, uint64_t k, uint64_t rank, uint64_t samples, uint64_t start, uint64_t stride,
                           uint64_t word, double lower, double upper, int iterations, bool resample, address values,
                           int kind, address index, address count, int threads) {
        const Sampling sampling{rank, samples, start, stride, word, lower, upper, iterations, resample};
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            *at<std::int32_t>(count) = std::int32_t(GRACE_CALL(dgc_encode, SOURCE(T), k, sampling, at<void>(values),
                                                               Kind(kind), at<uint8_t>(index), threads));
        });
    });
    m.def("dgc_step", [](bool wide, address momentum, address v, address g, double mu, bool nesterov, double scale,
                         size_t n, uint64_t k, uint64_t rank, uint64_t samples, uint64_t start, uint64_t stride,
                         uint64_t word, double lower, double upper, int iterations, bool resample, address values,
                         int kind, address index, address count, int threads) {
        const Sampling sampling{rank, samples, start, stride, word, lower, upper, iterations, resample};
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            const uint64_t sent = GRACE_CALL(dgc_step, at<T>(momentum), at<T>(v), at<const T>(g), T(mu), nesterov, T(scale),
                                             n, k, sampling, at<void>(values), Kind(kind), at<uint8_t>(index), threads);
            if (sent == not_finite) return false;
            *at<std::int32_t>(count) = std::int32_t(sent);
            return true;
        });
    });
    m.def("dgc_commit", [](bool wide, address v, address momentum, uint64_t d, address values, int kind, uint64_t k,
                           uint64_t count, address index, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(dgc_commit, at<T>(v), at<T>(momentum), d, at<void>(values), Kind(kind), k, count,
                              at<const uint8_t>(index), threads);
        });
    });
    m.def("threshold_find", [](FROM, double threshold, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(threshold_find, SOURCE(T), T(threshold), threads);
        });
    });
    m.def("threshold_emit",
          [](FROM, double threshold, uint64_t k, address values, int kind, address index, int threads) {
              return typed(wide, [=](auto zero) {
                  using T = decltype(zero);
                  return GRACE_CALL(threshold_emit, SOURCE(T), T(threshold), k, at<void>(values), Kind(kind),
                                    at<uint8_t>(index), threads);
              });
          });
    m.def("sparse_add", [](bool wide, address out, uint64_t d, address values, int kind, uint64_t k, uint64_t count,
                           address index, double alpha, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(sparse_add, at<T>(out), d, at<void>(values), Kind(kind), k, count,
                              at<const uint8_t>(index), T(alpha), threads);
        });
    });
    m.def("sparse_zero", [](bool wide, address out, uint64_t d, uint64_t k, uint64_t count, address index, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(sparse_zero, at<T>(out), d, k, count, at<const uint8_t>(index), threads);
        });
    });
    m.def("encode_indices", [](address indices, uint64_t count, uint64_t d, uint64_t k, address out) {
        nb::gil_scoped_release release;
        GRACE_CALL(encode_indices, at<const std::int64_t>(indices), count, d, k, at<uint8_t>(out));
    });
    m.def("decode_indices", [](address index, uint64_t d, uint64_t k, uint64_t count, address out, int threads) {
        nb::gil_scoped_release release;
        return GRACE_CALL(decode_indices, at<const uint8_t>(index), d, k, count, at<std::int64_t>(out), threads);
    });
    m.def("randomk_encode", [](FROM, uint64_t word, bool scaled, address values, uint64_t k, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(randomk_encode, SOURCE(T), word, scaled, at<T>(values), k, threads);
        });
    });
    m.def("randomk_add",
          [](bool wide, address out, uint64_t d, address values, uint64_t k, uint64_t word, double alpha, int threads) {
              typed(wide, [=](auto zero) {
                  using T = decltype(zero);
                  GRACE_CALL(randomk_add, at<T>(out), d, at<const T>(values), k, word, T(alpha), threads);
              });
          });
    m.def("dgc_correct", [](bool wide, address momentum, address v, address g, double mu, bool nesterov, double scale,
                            size_t n, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(dgc_correct, at<T>(momentum), at<T>(v), at<const T>(g), T(mu), nesterov, T(scale), n, threads);
        });
    });
    m.def("dgc_dense",
          [](bool wide, nb::list means, nb::list momenta, nb::list ns, double mu, bool nesterov, int threads) {
              return for_each_pair(ns, means, momenta, [=](size_t n, address mean, address momentum) {
                  if (wide) return GRACE_CALL(dgc_dense, at<double>(mean), at<double>(momentum), mu, nesterov, n, threads);
                  return GRACE_CALL(dgc_dense, at<float>(mean), at<float>(momentum), float(mu), nesterov, n, threads);
              });
          });
    m.def("clear", [](address data, size_t bytes, int threads) {
        nb::gil_scoped_release release;
        GRACE_CALL(clear, at<void>(data), bytes, threads);
    });
    m.def("square_sum", [](bool wide, address x, size_t n, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(square_sum, at<const T>(x), n, threads);
        });
    });
    m.def("eden_encode", [](FROM, int bits, address centroids, uint64_t word, address codes, address scales, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(eden_encode, SOURCE(T), bits, at<const double>(centroids), word, at<uint8_t>(codes),
                       at<T>(scales), threads);
        });
    });
    m.def("eden_add", [](bool wide, address out, size_t n, address codes, address scales, int bits, address centroids,
                         uint64_t word, double alpha, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(eden_add, at<T>(out), n, at<const uint8_t>(codes), at<const T>(scales), bits,
                              at<const double>(centroids), word, T(alpha), threads);
        });
    });
}
