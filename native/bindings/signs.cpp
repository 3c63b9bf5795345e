// Methods that send a bit for every element.
#include "arguments.hpp"
#include "methods/signs.hpp"

using namespace grace;

void bind_signs(nb::module_& m) {
    m.def("sign_encode", [](ENCODER_ARGUMENTS, u64 word, address bits, address flag, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(sign_encode, ENCODER_INPUT(T), word, at<u8>(bits), at<u8>(flag), threads);
        });
    });
    m.def("sign_vote", [](bool wide, address out, size_t n, nb::list ballots, u64 word, int threads) {
        std::vector<const u8*> where;
        for (address one : numbers(ballots)) where.push_back(at<const u8>(one));
        typed(wide, [&](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(sign_vote, at<T>(out), where.data(), where.size(), word, n, threads);
        });
    });
    m.def("scaled_sign_encode", [](ENCODER_ARGUMENTS, address owed, address bits, address scale, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(scaled_sign_encode, ENCODER_INPUT(T), at<T>(owed), at<u8>(bits), at<T>(scale), threads);
        });
    });
    m.def("onebit_encode", [](ENCODER_ARGUMENTS, address owed, address bits, address means, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(onebit_encode, ENCODER_INPUT(T), at<T>(owed), at<u8>(bits), at<T>(means), threads);
        });
    });
    m.def("two_add", [](bool wide, address out, size_t n, address bits, double low, double high, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(two_add, at<T>(out), at<const u8>(bits), T(low), T(high), n, threads);
        });
    });
    m.def("two_combine", [](bool wide, address out, size_t n, nb::list bits, nb::list lows, nb::list highs, double divisor,
                            int threads) {
        typed_lists(wide, [&](auto zero) {
            using T = decltype(zero);
            const auto packed = addresses<u8>(bits);
            const auto low = reals<T>(lows), high = reals<T>(highs);
            nb::gil_scoped_release release;
            GRACE_CALL(two_combine, at<T>(out), packed.data(), low.data(), high.data(), packed.size(), T(divisor), n, threads);
        });
    });
}
