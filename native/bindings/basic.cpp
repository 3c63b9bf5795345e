// Operations on dense tensors.
#include "arguments.hpp"
#include "methods/basic.hpp"

using namespace grace;

void bind_basic(nb::module_& m) {
    m.def("all_finite", [](address x, size_t n, int size, u64 mask, int threads) {
        nb::gil_scoped_release release;
        return GRACE_CALL(all_finite, at<void>(x), nullptr, n, size, mask, threads);
    });
    m.def("copy_finite", [](nb::list outs, nb::list xs, nb::list ns, int size, u64 mask, int threads) {
        return for_each_pair(ns, outs, xs, [=](size_t n, address out, address x) {
            return GRACE_CALL(all_finite, at<void>(x), at<void>(out), n, size, mask, threads);
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
