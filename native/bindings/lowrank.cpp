// Low-rank factors.
#include "arguments.hpp"
#include "methods/lowrank.hpp"

using namespace grace;

void bind_lowrank(nb::module_& m) {
    m.attr("max_rank") = max_rank;
    m.def("orthonormal_rows", [](bool wide, address rows, size_t count, int rank, size_t n, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(orthonormal_rows, at<T>(rows), count, rank, n, threads);
        });
    });
    m.def("unit_rows", [](bool wide, address rows, size_t count, size_t n) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(unit_rows, at<T>(rows), count, n);
        });
    });
    m.def("project_rows", [](bool wide, address e, address g, address q, address p, size_t n, size_t width, int rank,
                             double most, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(project_rows, at<T>(e), at<T>(g), at<T>(q), at<T>(p), n, width, rank, T(most), threads);
        });
    });
    m.def("project_columns", [](bool wide, address e, address g, address p, address q, size_t n, size_t width, int rank,
                                double most, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(project_columns, at<T>(e), at<T>(g), at<T>(p), at<T>(q), n, width, rank, T(most), threads);
        });
    });
    m.def("settle_factors", [](bool wide, address e, address g, address p, address q, address out, address p_mean,
                               address q_mean, size_t n, size_t width, int rank, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(settle_factors, at<T>(e), at<T>(g), at<T>(p), at<T>(q), at<T>(out), at<T>(p_mean), at<T>(q_mean), n,
                       width, rank, threads);
        });
    });
}
