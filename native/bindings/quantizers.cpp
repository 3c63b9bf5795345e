// Methods that send a code for every element.
#include "arguments.hpp"
#include "methods/blocks.hpp"
#include "methods/cast.hpp"
#include "methods/eden.hpp"
#include "methods/inceptionn.hpp"
#include "methods/natural.hpp"
#include "methods/sketch.hpp"
#include "methods/ternary.hpp"
#include "methods/u8bit.hpp"

using namespace grace;

void bind_quantizers(nb::module_& m) {
    m.def("cast_encode", [](ENCODER_ARGUMENTS, bool bfloat, int workers, double limit, address out, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(cast_encode, ENCODER_INPUT(T), bfloat, T(1.0 / workers), T(workers), T(limit), at<u16>(out), threads);
        });
    });
    m.def("cast_add", [](bool wide, address out, size_t n, bool bfloat, address payload, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(cast_add, at<T>(out), at<const u16>(payload), bfloat, n, threads);
        });
    });

    m.def("fp8_encode", [](ENCODER_ARGUMENTS, size_t block, address codes, address scales, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(fp8_encode, ENCODER_INPUT(T), block, at<u8>(codes), at<T>(scales), threads);
        });
    });
    m.def("fp8_add", [](bool wide, address out, size_t n, size_t block, address codes, address scales, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(fp8_add, at<T>(out), at<const u8>(codes), at<const T>(scales), n, block, threads);
        });
    });

    m.def("fp8_combine", [](bool wide, address out, size_t n, size_t block, nb::list codes, nb::list scales, double divisor,
                            int threads) {
        return typed_lists(wide, [&](auto zero) {
            using T = decltype(zero);
            const auto code = addresses<u8>(codes);
            const auto scale = addresses<T>(scales);
            nb::gil_scoped_release release;
            return GRACE_CALL(fp8_combine, at<T>(out), code.data(), scale.data(), code.size(), T(divisor), n, block, threads);
        });
    });

    m.def("block_encode", [](ENCODER_ARGUMENTS, size_t block, int levels, int bits, bool l2, u64 word, address codes, address scales,
                             int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(block_encode, ENCODER_INPUT(T), block, levels, bits, l2, word, at<u8>(codes), at<T>(scales), threads);
        });
    });
    m.def("block_add", [](bool wide, address out, size_t n, size_t block, int levels, int bits, address codes,
                          address scales, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(block_add, at<T>(out), at<const u8>(codes), at<const T>(scales), n, block, levels, bits,
                              threads);
        });
    });

    m.def("block_combine", [](bool wide, address out, size_t n, size_t block, int levels, int bits, nb::list codes,
                              nb::list scales, double divisor, int threads) {
        return typed_lists(wide, [&](auto zero) {
            using T = decltype(zero);
            const auto code = addresses<u8>(codes);
            const auto scale = addresses<T>(scales);
            nb::gil_scoped_release release;
            return GRACE_CALL(block_combine, at<T>(out), code.data(), scale.data(), code.size(), T(divisor), n, block, levels,
                              bits, threads);
        });
    });

    m.def("u8bit_encode", [](ENCODER_ARGUMENTS, address values, address entries, address codes, address scale, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            using Entry = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
            GRACE_CALL(u8bit_encode, ENCODER_INPUT(T), at<const T>(values), at<const Entry>(entries), at<u8>(codes), at<T>(scale),
                       threads);
        });
    });
    m.def("u8bit_add", [](bool wide, address out, size_t n, address values, address codes, double scale, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(u8bit_add, at<T>(out), at<const u8>(codes), T(scale), at<const T>(values), n, threads);
        });
    });

    m.def("u8bit_combine", [](bool wide, address out, size_t n, address values, nb::list codes, nb::list scales, double divisor,
                              int threads) {
        typed_lists(wide, [&](auto zero) {
            using T = decltype(zero);
            const auto code = addresses<u8>(codes);
            const auto scale = reals<T>(scales);
            nb::gil_scoped_release release;
            GRACE_CALL(u8bit_combine, at<T>(out), code.data(), scale.data(), at<const T>(values), code.size(), T(divisor), n,
                       threads);
        });
    });

    m.def("natural_encode", [](ENCODER_ARGUMENTS, u64 word, address codes, address bases, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(natural_encode, ENCODER_INPUT(T), word, at<u8>(codes), at<std::int16_t>(bases), threads);
        });
    });
    m.def("natural_add", [](bool wide, address out, size_t n, address codes, address bases, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(natural_add, at<T>(out), at<const u8>(codes), at<const std::int16_t>(bases), n, threads);
        });
    });
    m.def("natural_combine", [](bool wide, address out, size_t n, nb::list codes, nb::list bases, double divisor, int threads) {
        typed_lists(wide, [&](auto zero) {
            using T = decltype(zero);
            const auto code = addresses<u8>(codes);
            const auto base = addresses<std::int16_t>(bases);
            nb::gil_scoped_release release;
            GRACE_CALL(natural_combine, at<T>(out), code.data(), base.data(), code.size(), T(divisor), n, threads);
        });
    });
    m.def("exponents_within", [](address bases, size_t n, int low, int high) {
        auto exponents = at<const std::int16_t>(bases);
        bool inside = true;
        for (size_t i = 0; i < n; ++i) inside &= exponents[i] >= low && exponents[i] <= high;
        return inside;
    });

    m.def("ternary_encode", [](ENCODER_ARGUMENTS, double clip, u64 word, address codes, address scale, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(ternary_encode, ENCODER_INPUT(T), clip, word, at<u8>(codes), at<T>(scale), threads);
        });
    });
    m.def("ternary_add", [](bool wide, address out, size_t n, address codes, double scale, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(ternary_add, at<T>(out), at<const u8>(codes), T(scale), n, threads);
        });
    });

    m.def("ternary_combine", [](bool wide, address out, size_t n, nb::list codes, nb::list scales, double divisor, int threads) {
        return typed_lists(wide, [&](auto zero) {
            using T = decltype(zero);
            const auto code = addresses<u8>(codes);
            const auto scale = reals<T>(scales);
            nb::gil_scoped_release release;
            return GRACE_CALL(ternary_combine, at<T>(out), code.data(), scale.data(), code.size(), T(divisor), n, threads);
        });
    });

    m.def("eden_encode", [](ENCODER_ARGUMENTS, int bits, address centroids, bool least_squares, u64 word, address codes,
                            address scales, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(eden_encode, ENCODER_INPUT(T), bits, at<const double>(centroids), least_squares, word,
                       at<u8>(codes), at<T>(scales), threads);
        });
    });
    m.def("eden_add", [](bool wide, address out, size_t n, address codes, address scales, int bits, address centroids,
                         u64 word, double alpha, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(eden_add, at<T>(out), n, at<const u8>(codes), at<const T>(scales), bits,
                              at<const double>(centroids), word, T(alpha), threads);
        });
    });

    m.def("sketch_encode", [](ENCODER_ARGUMENTS, int bits, address codes, address means, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(sketch_encode, ENCODER_INPUT(T), bits, at<u8>(codes), at<T>(means), threads);
        });
    });
    m.def("sketch_add", [](bool wide, address out, size_t n, address codes, address means, int bits, double alpha,
                           int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return int(GRACE_CALL(sketch_add, at<T>(out), n, at<const u8>(codes), at<const T>(means), bits, T(alpha),
                              threads));
        });
    });

    m.attr("inceptionn_piece") = inceptionn_piece;
    m.def("inceptionn_find", [](ENCODER_ARGUMENTS, double bound, address tags, address starts, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(inceptionn_find, ENCODER_INPUT(T), T(bound), at<u8>(tags), at<u64>(starts), threads);
        });
    });
    m.def("inceptionn_emit",
          [](ENCODER_ARGUMENTS, double bound, address starts, address small, address medium, address raw, int threads) {
              typed(wide, [=](auto zero) {
                  using T = decltype(zero);
                  GRACE_CALL(inceptionn_emit, ENCODER_INPUT(T), T(bound), at<const u64>(starts), at<u8>(small),
                             at<std::int16_t>(medium), at<T>(raw), threads);
              });
          });
    m.def("inceptionn_check", [](size_t n, address tags, u64 smalls, u64 mediums, u64 raws, int threads) {
        nb::gil_scoped_release release;
        return int(GRACE_CALL(inceptionn_check, n, at<const u8>(tags), smalls, mediums, raws, threads));
    });
    m.def("inceptionn_add", [](bool wide, address out, size_t n, address tags, address small, u64 smalls,
                               address medium, u64 mediums, address raw, u64 raws, double bound, double alpha,
                               int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return int(GRACE_CALL(inceptionn_add, at<T>(out), n, at<const u8>(tags), at<const u8>(small), smalls,
                              at<const std::int16_t>(medium), mediums, at<const T>(raw), raws, T(bound), T(alpha), threads));
        });
    });
}
