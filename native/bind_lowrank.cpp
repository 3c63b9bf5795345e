#include "bind.hpp"
#include "lowrank.hpp"

using namespace grace;

void bind_lowrank(nb::module_& m) {
    m.attr("max_rank") = max_rank;
    m.def("orthonormal_rows", [](bool wide, address rows, std::size_t count, int rank, std::size_t n, int threads) {
        nb::gil_scoped_release release;
        if (wide) GRACE_CALL(orthonormal_rows, at<double>(rows), count, rank, n, threads);
        else GRACE_CALL(orthonormal_rows, at<float>(rows), count, rank, n, threads);
    });
    m.def("unit_rows", [](bool wide, address rows, std::size_t count, std::size_t n) {
        nb::gil_scoped_release release;
        if (wide) return GRACE_CALL(unit_rows, at<double>(rows), count, n);
        return GRACE_CALL(unit_rows, at<float>(rows), count, n);
    });
    m.def("project_rows", [](bool wide, address e, address g, address q, address p, std::size_t n, std::size_t width,
                             int rank, int threads) {
        nb::gil_scoped_release release;
        if (wide) GRACE_CALL(project_rows, at<double>(e), at<double>(g), at<double>(q), at<double>(p), n, width, rank, threads);
        else GRACE_CALL(project_rows, at<float>(e), at<float>(g), at<float>(q), at<float>(p), n, width, rank, threads);
    });
    m.def("project_columns", [](bool wide, address e, address g, address p, address q, std::size_t n,
                                std::size_t width, int rank, int threads) {
        nb::gil_scoped_release release;
        if (wide) GRACE_CALL(project_columns, at<double>(e), at<double>(g), at<double>(p), at<double>(q), n, width, rank, threads);
        else GRACE_CALL(project_columns, at<float>(e), at<float>(g), at<float>(p), at<float>(q), n, width, rank, threads);
    });
    m.def("settle_factors", [](bool wide, address e, address g, address p, address q, address out, address p_mean,
                               address q_mean, std::size_t n, std::size_t width, int rank, int threads) {
        nb::gil_scoped_release release;
        if (wide) {
            GRACE_CALL(settle_factors, at<double>(e), at<double>(g), at<double>(p), at<double>(q), at<double>(out),
                       at<double>(p_mean), at<double>(q_mean), n, width, rank, threads);
        } else {
            GRACE_CALL(settle_factors, at<float>(e), at<float>(g), at<float>(p), at<float>(q), at<float>(out),
                       at<float>(p_mean), at<float>(q_mean), n, width, rank, threads);
        }
    });
}
