#include <vector>

#include "bind_typed.hpp"
#include "dense.hpp"

using namespace grace;
using std::size_t;

void bind_dense(nb::module_& m) {
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

    m.def("cast_encode", [](FROM, bool brain, int workers, double limit, address out, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(cast_encode, SOURCE(T), brain, T(1.0 / workers), T(workers), T(limit), at<u16>(out), threads);
        });
    });
    m.def("cast_add", [](bool wide, address out, size_t n, bool brain, address payload, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(cast_add, at<T>(out), at<const u16>(payload), brain, n, threads);
        });
    });

    m.def("fp8_encode", [](FROM, size_t block, address codes, address scales, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(fp8_encode, SOURCE(T), block, at<u8>(codes), at<T>(scales), threads);
        });
    });
    m.def("fp8_add", [](bool wide, address out, size_t n, size_t block, address codes, address scales, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(fp8_add, at<T>(out), at<const u8>(codes), at<const T>(scales), n, block, threads);
        });
    });

    m.def("block_encode", [](FROM, size_t block, int levels, int bits, bool l2, u64 word, address codes, address scales,
                             int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(block_encode, SOURCE(T), block, levels, bits, l2, word, at<u8>(codes), at<T>(scales), threads);
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

    m.def("u8bit_encode", [](FROM, address values, address middle, address starts, address codes, address scale,
                             int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(u8bit_encode, SOURCE(T), at<const T>(values), at<const T>(middle), at<const u8>(starts),
                       at<u8>(codes), at<T>(scale), threads);
        });
    });
    m.def("u8bit_add", [](bool wide, address out, size_t n, address values, address codes, double scale, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(u8bit_add, at<T>(out), at<const u8>(codes), T(scale), at<const T>(values), n, threads);
        });
    });

    m.def("natural_encode", [](FROM, u64 word, address codes, address bases, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(natural_encode, SOURCE(T), word, at<u8>(codes), at<std::int16_t>(bases), threads);
        });
    });
    m.def("natural_add", [](bool wide, address out, size_t n, address codes, address bases, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(natural_add, at<T>(out), at<const u8>(codes), at<const std::int16_t>(bases), n, threads);
        });
    });
    m.def("exponents_within", [](address bases, size_t n, int low, int high) {
        auto exponents = at<const std::int16_t>(bases);
        bool inside = true;
        for (size_t i = 0; i < n; ++i) inside &= exponents[i] >= low && exponents[i] <= high;
        return inside;
    });

    m.def("ternary_encode", [](FROM, double clip, u64 word, address codes, address scale, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(ternary_encode, SOURCE(T), clip, word, at<u8>(codes), at<T>(scale), threads);
        });
    });
    m.def("ternary_add", [](bool wide, address out, size_t n, address codes, double scale, int threads) {
        return typed(wide, [=](auto zero) {
            using T = decltype(zero);
            return GRACE_CALL(ternary_add, at<T>(out), at<const u8>(codes), T(scale), n, threads);
        });
    });

    m.def("sign_encode", [](FROM, u64 word, address bits, address flag, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(sign_encode, SOURCE(T), word, at<u8>(bits), at<u8>(flag), threads);
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
    m.def("scaled_sign_encode", [](FROM, address owed, address bits, address scale, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(scaled_sign_encode, SOURCE(T), at<T>(owed), at<u8>(bits), at<T>(scale), threads);
        });
    });
    m.def("onebit_encode", [](FROM, address owed, address bits, address means, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(onebit_encode, SOURCE(T), at<T>(owed), at<u8>(bits), at<T>(means), threads);
        });
    });
    m.def("two_add", [](bool wide, address out, size_t n, address bits, double low, double high, int threads) {
        typed(wide, [=](auto zero) {
            using T = decltype(zero);
            GRACE_CALL(two_add, at<T>(out), at<const u8>(bits), T(low), T(high), n, threads);
        });
    });
}
