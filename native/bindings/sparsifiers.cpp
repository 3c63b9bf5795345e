// Methods that send few elements.
#include <nanobind/stl/tuple.h>

#include "arguments.hpp"
#include "methods/adaq.hpp"
#include "methods/chunks.hpp"
#include "methods/dct.hpp"
#include "methods/dgc.hpp"
#include "methods/randomk.hpp"
#include "methods/sparse.hpp"
#include "methods/topk.hpp"

using namespace grace;

void bind_sparsifiers(nb::module_& m) {
    m.def("topk_encode", [](ENCODER_ARGUMENTS, u64 k, address values, int dtype, address index, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(topk_encode, ENCODER_INPUT(T), k, at<void>(values), Dtype(dtype), at<u8>(index), threads);
        });
    });
    m.def("threshold_find", [](ENCODER_ARGUMENTS, double threshold, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(threshold_find, ENCODER_INPUT(T), T(threshold), threads);
        });
    });
    m.def("threshold_emit",
          [](ENCODER_ARGUMENTS, double threshold, u64 k, address values, int dtype, address index, int threads) {
              return typed(wide, [=](auto zero) {
                  using T = decltype(zero);
                  return GRACE_CALL(threshold_emit, ENCODER_INPUT(T), T(threshold), k, at<void>(values), Dtype(dtype),
                                    at<u8>(index), threads);
              });
          });

    m.def("chunktopk_encode", [](ENCODER_ARGUMENTS, size_t size, size_t kept, size_t kept_of_rest, int bits, int width,
                                 address positions, address codes, address means, int threads) {
        const ChunkLayout layout{size, kept, kept_of_rest, bits, width};
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(chunktopk_encode, ENCODER_INPUT(T), layout, at<u8>(positions), at<u8>(codes), at<u16>(means), threads);
        });
    });
    m.def("chunktopk_check", [](size_t n, size_t size, size_t kept, size_t kept_of_rest, int bits, int width,
                                address positions, address codes, address means, int threads) {
        const ChunkLayout layout{size, kept, kept_of_rest, bits, width};
        nb::gil_scoped_release release;
        return int(GRACE_CALL(chunktopk_check, n, layout, at<const u8>(positions), at<const u8>(codes),
                              at<const u16>(means), threads));
    });
    m.def("chunktopk_add", [](bool wide, address out, size_t n, size_t size, size_t kept, size_t kept_of_rest, int bits,
                              int width, address positions, address codes, address means, double alpha, int threads) {
        const ChunkLayout layout{size, kept, kept_of_rest, bits, width};
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return int(GRACE_CALL(chunktopk_add, at<T>(out), n, layout, at<const u8>(positions), at<const u8>(codes),
                                  at<const u16>(means), T(alpha), threads));
        });
    });

    m.def("dct_encode", [](ENCODER_ARGUMENTS, size_t kept, size_t columns, size_t rows_of_rest, size_t kept_of_rest,
                           address factors, address positions, address values, int dtype, int threads) {
        const DctLayout layout{kept, columns, rows_of_rest, kept_of_rest, at<const double>(factors)};
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(dct_encode, ENCODER_INPUT(T), layout, at<u8>(positions), at<void>(values), Dtype(dtype), threads);
        });
    });
    m.def("dct_check", [](size_t n, size_t kept, size_t columns, size_t rows_of_rest, size_t kept_of_rest, address factors,
                          address positions, address values, int dtype, int threads) {
        const DctLayout layout{kept, columns, rows_of_rest, kept_of_rest, at<const double>(factors)};
        const DctPayload payload{at<const u8>(positions), at<void>(values), Dtype(dtype)};
        nb::gil_scoped_release release;
        return int(GRACE_CALL(dct_check, n, layout, payload, threads));
    });
    m.def("dct_add", [](bool wide, address out, size_t n, size_t kept, size_t columns, size_t rows_of_rest,
                        size_t kept_of_rest, address factors, nb::list positions, nb::list values, int dtype, double alpha,
                        int threads) {
        const DctLayout layout{kept, columns, rows_of_rest, kept_of_rest, at<const double>(factors)};
        const auto places = numbers(positions), sent = numbers(values);
        std::vector<DctPayload> payloads;
        for (size_t p = 0; p < places.size(); ++p)
            payloads.push_back({at<const u8>(places[p]), at<void>(sent[p]), Dtype(dtype)});
        return typed(wide, [&](auto zero) {
            using T = decltype(zero);
            return int(GRACE_CALL(dct_add, at<T>(out), n, layout, payloads.data(), payloads.size(), alpha, threads));
        });
    });

    m.def("dgc_encode", [](ENCODER_ARGUMENTS, u64 k, u64 rank, u64 samples, u64 start, u64 stride,
                           u64 word, double lower, double upper, int iterations, bool resample, address values,
                           int dtype, address index, address count, int threads) {
        const Sampling sampling{rank, samples, start, stride, word, lower, upper, iterations, resample};
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            *at<std::int32_t>(count) = std::int32_t(GRACE_CALL(dgc_encode, ENCODER_INPUT(T), k, sampling, at<void>(values),
                                                               Dtype(dtype), at<u8>(index), threads));
        });
    });
    m.def("dgc_step", [](bool wide, address momentum, address v, address g, double mu, bool nesterov, double scale,
                         double limit, size_t n, u64 k, u64 rank, u64 samples, u64 start, u64 stride,
                         u64 word, double lower, double upper, int iterations, bool resample, address values,
                         int dtype, address index, address count, int threads) {
        const Sampling sampling{rank, samples, start, stride, word, lower, upper, iterations, resample};
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            const u64 sent = GRACE_CALL(dgc_step, at<T>(momentum), at<T>(v), at<const T>(g), T(mu), nesterov, T(scale),
                                             T(limit), n, k, sampling, at<void>(values), Dtype(dtype), at<u8>(index), threads);
            if (sent == not_finite) return false;
            *at<std::int32_t>(count) = std::int32_t(sent);
            return true;
        });
    });
    m.def("dgc_commit", [](bool wide, address v, address momentum, u64 d, address values, int dtype, u64 k,
                           u64 count, address index, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return int(GRACE_CALL(dgc_commit, at<T>(v), at<T>(momentum), d, at<void>(values), Dtype(dtype), k, count,
                              at<const u8>(index), threads));
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

    m.def("sparse_add", [](bool wide, address out, u64 d, address values, int dtype, u64 k, u64 count,
                           address index, double alpha, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return int(GRACE_CALL(sparse_add, at<T>(out), d, at<void>(values), Dtype(dtype), k, count,
                              at<const u8>(index), T(alpha), threads));
        });
    });
    m.def("sparse_combine", [](bool wide, address out, u64 d, nb::list sent, double alpha, int threads) {
        std::vector<SparsePayload> payloads;
        payloads.reserve(sent.size());
        for (auto one : sent) {
            const auto [values, dtype, k, count, index] = nb::cast<std::tuple<address, int, u64, u64, address>>(one);
            payloads.push_back({at<void>(values), Dtype(dtype), k, count, at<const u8>(index)});
        }
        return typed(wide, [&](auto zero) {
            using T = decltype(zero);
            return int(GRACE_CALL(sparse_combine, at<T>(out), d, payloads.data(), payloads.size(), T(alpha), threads));
        });
    });
    m.def("sparse_check", [](u64 d, address values, int dtype, u64 k, u64 count, address index, int threads) {
        nb::gil_scoped_release release;
        return int(GRACE_CALL(sparse_check, d, at<void>(values), Dtype(dtype), k, count, at<const u8>(index), threads));
    });
    m.def("sparse_zero", [](bool wide, address out, u64 d, u64 k, u64 count, address index, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return int(GRACE_CALL(sparse_zero, at<T>(out), d, k, count, at<const u8>(index), threads));
        });
    });
    m.def("encode_indices", [](address indices, u64 count, u64 d, u64 k, address out) {
        nb::gil_scoped_release release;
        GRACE_CALL(encode_indices, at<const std::int64_t>(indices), count, d, k, at<u8>(out));
    });
    m.def("decode_indices", [](address index, u64 d, u64 k, u64 count, address out, int threads) {
        nb::gil_scoped_release release;
        return int(GRACE_CALL(decode_indices, at<const u8>(index), d, k, count, at<std::int64_t>(out), threads));
    });

    m.def("randomk_encode", [](ENCODER_ARGUMENTS, u64 word, bool scaled, address values, u64 k, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(randomk_encode, ENCODER_INPUT(T), word, scaled, at<T>(values), k, threads);
        });
    });
    m.def("randomk_add",
          [](bool wide, address out, u64 d, address values, u64 k, u64 word, double alpha, int threads) {
              typed(wide, [=](auto zero) {
                  using T = decltype(zero);
                  GRACE_CALL(randomk_add, at<T>(out), d, at<const T>(values), k, word, T(alpha), threads);
              });
          });

    m.def("adaq_encode", [](ENCODER_ARGUMENTS, double ratio, u64 slots, address means, address counts, address index,
                            address signs, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(adaq_encode, ENCODER_INPUT(T), ratio, slots, at<T>(means), at<std::int32_t>(counts), at<u8>(index),
                       at<u8>(signs), threads);
        });
    });
    m.def("adaq_check", [](u64 d, u64 slots, u64 positive, u64 negative, address index, address signs, int threads) {
        nb::gil_scoped_release release;
        return int(GRACE_CALL(adaq_check, d, slots, positive, negative, at<const u8>(index), at<const u8>(signs), threads));
    });
    m.def("adaq_add", [](bool wide, address out, u64 d, u64 slots, u64 positive, u64 negative,
                         address means, address index, address signs, double alpha, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return int(GRACE_CALL(adaq_add, at<T>(out), d, slots, positive, negative, at<const T>(means),
                              at<const u8>(index), at<const u8>(signs), T(alpha), threads));
        });
    });
}
