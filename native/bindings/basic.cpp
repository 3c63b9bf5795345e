// Operations on dense tensors.
#include "arguments.hpp"
#include "methods/basic.hpp"

using namespace grace;

void bind_basic(nb::module_& m) {
    m.def("exponents_below", [](address x, size_t n, int size, u64 mask, u64 least, int threads) {
        nb::gil_scoped_release release;
        return GRACE_CALL(exponents_below, at<void>(x), nullptr, n, size, mask, least, threads);
    });
    m.def("largest", [](address x, size_t n, int size, int threads) {
        nb::gil_scoped_release release;
        return GRACE_CALL(largest, at<const void>(x), n, size, threads);
    });
    m.def("divide", [](bool wide, address x, double divisor, size_t n, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(divide, at<T>(x), T(divisor), n, threads);
        });
    });
    m.def("scales_within", [](bool wide, address scales, double most, size_t n) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(scales_within, at<const T>(scales), T(most), n);
        });
    });
    m.def("codes_within", [](address codes, size_t n, int bits, u32 mask, u32 most, int threads) {
        nb::gil_scoped_release release;
        return GRACE_CALL(codes_within, at<const u8>(codes), n, bits, mask, most, threads);
    });
    m.def("copy_finite", [](nb::list outs, nb::list xs, nb::list ns, int size, u64 mask, int threads) {
        return for_each_pair(ns, outs, xs, [=](size_t n, address out, address x) {
            return GRACE_CALL(exponents_below, at<void>(x), at<void>(out), n, size, mask, mask, threads);
        });
    });
    m.def("axpby", [](bool wide, address x, address g, double beta, double gamma, size_t n, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(axpby, at<T>(x), at<const T>(g), T(beta), T(gamma), n, threads);
        });
    });
    m.def("average", [](bool wide, nb::list outs, nb::list parts, nb::list ns, double divisor, int threads) {
        const auto to = numbers(outs), lengths = numbers(ns);
        std::vector<std::vector<size_t>> from;
        for (auto of_rank : parts) from.push_back(numbers(nb::cast<nb::list>(of_rank)));
        typed(wide, [&](auto zero) {
            using T = decltype(zero);
            std::vector<const T*> mine(from.size());
            for (size_t i = 0; i < to.size(); ++i) {
                for (size_t r = 0; r < from.size(); ++r) mine[r] = at<const T>(from[r][i]);
                GRACE_CALL(average, at<T>(to[i]), mine.data(), mine.size(), T(divisor), lengths[i], threads);
            }
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
}
