#include "bind_typed.hpp"
#include "research.hpp"

using namespace grace;
using std::int16_t;
using std::size_t;
using std::uint64_t;
using std::uint8_t;

void bind_research(nb::module_& m) {
    m.attr("inceptionn_piece") = inceptionn_piece;
    m.def("inceptionn_find", [](FROM, double bound, address tags, address starts, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(inceptionn_find, SOURCE(T), T(bound), at<uint8_t>(tags), at<uint64_t>(starts), threads);
        });
    });
    m.def("inceptionn_emit",
          [](FROM, double bound, address starts, address small, address medium, address raw, int threads) {
              typed(wide, [=](auto zero) {
                  using T = decltype(zero);
                  GRACE_CALL(inceptionn_emit, SOURCE(T), T(bound), at<const uint64_t>(starts), at<uint8_t>(small),
                             at<int16_t>(medium), at<T>(raw), threads);
              });
          });
    m.def("inceptionn_add", [](bool wide, address out, size_t n, address tags, address small, uint64_t smalls,
                               address medium, uint64_t mediums, address raw, uint64_t raws, double bound, double alpha,
                               int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(inceptionn_add, at<T>(out), n, at<const uint8_t>(tags), at<const uint8_t>(small), smalls,
                              at<const int16_t>(medium), mediums, at<const T>(raw), raws, T(bound), T(alpha), threads);
        });
    });
    m.def("sketch_encode", [](FROM, int bits, address codes, address means, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(sketch_encode, SOURCE(T), bits, at<uint8_t>(codes), at<T>(means), threads);
        });
    });
    m.def("sketch_add", [](bool wide, address out, size_t n, address codes, address means, int bits, double alpha,
                           int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(sketch_add, at<T>(out), n, at<const uint8_t>(codes), at<const T>(means), bits, T(alpha),
                              threads);
        });
    });
    m.def("adaq_encode", [](FROM, double ratio, uint64_t slots, address means, address counts, address index,
                            address signs, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(adaq_encode, SOURCE(T), ratio, slots, at<T>(means), at<std::int32_t>(counts), at<uint8_t>(index),
                       at<uint8_t>(signs), threads);
        });
    });
    m.def("adaq_add", [](bool wide, address out, uint64_t d, uint64_t slots, uint64_t positive, uint64_t negative,
                         address means, address index, address signs, double alpha, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(adaq_add, at<T>(out), d, slots, positive, negative, at<const T>(means),
                              at<const uint8_t>(index), at<const uint8_t>(signs), T(alpha), threads);
        });
    });
}
