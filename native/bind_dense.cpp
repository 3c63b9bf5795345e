#include "bind.hpp"
#include "dense.hpp"

using namespace grace;

void bind_dense(nb::module_& m) {
    m.def("axpby", [](bool wide, address x, address g, double beta, double gamma, std::size_t n, int threads) {
        nb::gil_scoped_release release;
        if (wide) GRACE_CALL(axpby, at<double>(x), at<double>(g), beta, gamma, n, threads);
        else GRACE_CALL(axpby, at<float>(x), at<float>(g), float(beta), float(gamma), n, threads);
    });
    m.def("all_finite", [](address x, std::size_t n, int size, std::uint64_t mask, int threads) {
        nb::gil_scoped_release release;
        return GRACE_CALL(all_finite, at<void>(x), n, size, mask, threads);
    });
}
