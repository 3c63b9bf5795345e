// A libFuzzer target: whatever bytes a peer sends, decoders stay within their buffers, and every instruction set and
// number of threads gives the same answer.
//
// Input: decoder, flags, size (16 bits), k (16), count (16), setting, then the payload. What Python checks before it
// calls a decoder (lengths, count <= k <= d, the range of a single scale) holds here by construction.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "methods/adaq.hpp"
#include "methods/basic.hpp"
#include "methods/blocks.hpp"
#include "methods/cast.hpp"
#include "methods/chunks.hpp"
#include "methods/dct.hpp"
#include "methods/eden.hpp"
#include "methods/inceptionn.hpp"
#include "methods/natural.hpp"
#include "methods/randomk.hpp"
#include "methods/signs.hpp"
#include "methods/sketch.hpp"
#include "methods/sparse.hpp"
#include "methods/ternary.hpp"
#include "methods/u8bit.hpp"
#include "require.hpp"

using namespace grace;

namespace {

// Large takes three bits, because changes that hit upon it make the search slow.
enum Flag { wide = 1, coded = 2, fresh_thread = 4, large = 0x38 };

struct Input {
    const u8* at;
    std::size_t left;

    std::size_t take(void* to, std::size_t bytes) {
        const std::size_t got = std::min(bytes, left);
        if (got) std::memcpy(to, at, got);
        at += got, left -= got;
        return got;
    }
    template <class T>
    T number() {
        T value = 0;
        take(&value, sizeof value);
        return value;
    }
};

// Memory of exactly this size, so that the address sanitizer sees the first byte beyond it.
template <class T>
struct Exact {
    std::size_t n;
    T* data;

    explicit Exact(std::size_t count) : n(count), data(static_cast<T*>(std::malloc(count * sizeof(T)))) {}
    Exact(const Exact&) = delete;
    ~Exact() { std::free(data); }

    std::size_t bytes() const { return n * sizeof(T); }

    // At most `most` elements are taken from the input, and repeated to the end: short inputs make large payloads.
    Exact(Input& in, std::size_t count, std::size_t most = ~std::size_t(0)) : Exact(count) {
        u8* raw = reinterpret_cast<u8*>(data);
        std::size_t got = in.take(raw, std::min(n, most) * sizeof(T));
        got -= got % sizeof(T);
        for (std::size_t i = got; i < bytes(); ++i) raw[i] = got ? raw[i - got] : u8(0);
    }
};

struct Case {
    Input in;
    int flags;
    std::size_t n, k, count;
    u8 setting;
    bool is_large() const { return (flags & large) == large; }
    u64 word() const { return u64(setting) * 0x9E3779B97F4A7C15ull; }
};

template <class T>
bool same(T a, T b) {
    return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

// decode(out, threads) at every instruction set and on one thread and three; the answer must not depend on it.
template <class T, class Decode>
int everywhere(const Case& c, Decode decode, bool untouched_if_wrong = false) {
    std::vector<T> start(c.n), first;
    for (std::size_t i = 0; i < c.n; ++i) start[i] = T(int(i % 7) - 3);
    int answer = 0;
    for (const char* isa : {"baseline", "avx2"})
        for (int threads : {1, 3}) {
            if (!set_isa(isa) || (threads > 1 && !c.is_large())) continue;
            Exact<T> out(c.n);
            std::copy(start.begin(), start.end(), out.data);
            const int result = int(decode(out.data, threads));
            if (first.empty()) {
                first.assign(out.data, out.data + c.n), answer = result;
                if (untouched_if_wrong && result) REQUIRE(first == start);
            }
            REQUIRE(result == answer);
            if (c.n == 0 || std::memcmp(out.data, first.data(), out.bytes()) == 0) continue;
            for (std::size_t i = 0; i < c.n; ++i) REQUIRE(same(out.data[i], first[i]));
        }
    return answer;
}

// A scale that the Python side lets through: finite, not negative.
template <class T>
T scale_of(Input& in) {
    const T value = std::abs(in.number<T>());
    return value < T(__builtin_huge_val()) ? value : T(1);
}

// As grace_dl/kernels/reference/indices.py, not as indices.hpp: lengths that differ would show.
std::size_t index_bytes(u64 d, u64 k) {
    if (k == 0) return 0;
    int width = 0;
    for (u64 q = d / k; q > 1; q >>= 1) ++width;
    return std::min<std::size_t>((d + 7) / 8, (k * width + 7) / 8 + (k + (d >> width) + 1 + 7) / 8);
}

// Any bytes, or a valid code of evenly spread indices with up to eight bytes changed.
struct Index : Exact<u8> {
    explicit Index(Case& c)
        : Exact<u8>(c.in, index_bytes(c.n, c.k), c.flags & coded ? 0 : ~std::size_t(0)) {
        if (!(c.flags & coded) || c.k == 0) return;
        std::vector<std::int64_t> chosen(c.count);
        // Those that end with the last element are one changed bit away from an index beyond it.
        const u64 last = c.setting & 128 ? 0 : 1;
        for (u64 i = 0; i < c.count; ++i) chosen[i] = std::int64_t((i + last) * c.n / c.count - last);
        GRACE_CALL(encode_indices, chosen.data(), c.count, c.n, c.k, data);
        for (int change = c.in.number<u8>() % 9; change-- > 0;) {
            const std::size_t place = c.in.number<std::uint32_t>() % n;
            data[place] = u8(data[place] ^ c.in.number<u8>());
        }
    }
};

template <class T>
void indices(Case& c) {
    const Index index(c);
    for (const char* isa : {"baseline", "avx2"}) {
        if (!set_isa(isa)) continue;
        Exact<std::int64_t> out(c.count);
        if (GRACE_CALL(decode_indices, index.data, c.n, c.k, c.count, out.data, 3) != Fault::none || c.k == 0) continue;
        for (std::size_t i = 0; i < c.count; ++i)
            REQUIRE(out.data[i] >= (i ? out.data[i - 1] + 1 : 0) && std::size_t(out.data[i]) < c.n);
        Exact<u8> again(index.n);  // there is one code of a set of indices
        GRACE_CALL(encode_indices, out.data, c.count, c.n, c.k, again.data);
        REQUIRE(std::memcmp(again.data, index.data, index.n) == 0);
    }
}

template <class T>
void sparse(Case& c) {
    static const std::size_t sizes[] = {4, 8, 2, 2};
    const Dtype dtype = Dtype(c.setting % 4);
    const Index index(c);
    const std::size_t size = sizes[int(dtype)];
    Exact<u8> values(c.in, c.k * size, 64 * size);
    if (c.flags & coded && c.count < c.k) std::memset(values.data + c.count * size, 0, (c.k - c.count) * size);
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(sparse_add, out, c.n, values.data, dtype, c.k, c.count, index.data, T(-0.5), threads);
    }, true);
    const SparsePayload sent{values.data, dtype, c.k, c.count, index.data}, both[] = {sent, sent};
    everywhere<T>(c, [&](T* out, int threads) {
        const Fault fault = GRACE_CALL(sparse_combine, out, c.n, both, 2, T(-0.5), threads);
        if (fault != Fault::none) std::fill(out, out + c.n, T(0));  // unspecified
        return fault;
    });
}

template <class T>
void zero(Case& c) {
    const Index index(c);
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(sparse_zero, out, c.n, c.k, c.count, index.data, threads);
    }, true);
}

template <class T>
void randomk(Case& c) {
    if (c.k == 0) return;
    const Exact<T> values(c.in, c.k);
    everywhere<T>(c, [&](T* out, int threads) {
        GRACE_CALL(randomk_add, out, c.n, values.data, c.k, c.word(), T(1), threads);
        return 0;
    });
}

template <class T>
void blocks(Case& c) {
    const int levels = 1 + int(c.count % 32767), asked = c.setting % 17;
    int bits = 1;
    while ((2 * levels) >> bits) ++bits;
    bits = std::max(bits, asked);
    const std::size_t block = 1 + c.k;
    const Exact<T> scales(c.in, (c.n + block - 1) / block, 4);
    const Exact<u8> codes(c.in, (c.n * std::size_t(bits) + 7) / 8);
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(block_add, out, codes.data, scales.data, c.n, block, levels, bits, threads);
    });
    const u8* const all_codes[] = {codes.data, codes.data};
    const T* const all_scales[] = {scales.data, scales.data};
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(block_combine, out, all_codes, all_scales, 2, T(2), c.n, block, levels, bits, threads);
    });
}

template <class T>
void fp8(Case& c) {
    const std::size_t block = 1 + c.k;
    const Exact<T> scales(c.in, (c.n + block - 1) / block, 4);
    const Exact<u8> codes(c.in, c.n);
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(fp8_add, out, codes.data, scales.data, c.n, block, threads);
    });
    const u8* const all_codes[] = {codes.data, codes.data};
    const T* const all_scales[] = {scales.data, scales.data};
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(fp8_combine, out, all_codes, all_scales, 2, T(2), c.n, block, threads);
    });
}

template <class T>
void cast(Case& c) {
    const Exact<u16> payload(c.in, c.n);
    everywhere<T>(c, [&](T* out, int threads) {
        GRACE_CALL(cast_add, out, payload.data, c.setting % 2 == 1, c.n, threads);
        return 0;
    });
}

template <class T>
void two(Case& c) {
    const T low = -scale_of<T>(c.in), high = scale_of<T>(c.in);
    const Exact<u8> bits(c.in, (c.n + 7) / 8);
    everywhere<T>(c, [&](T* out, int threads) {
        GRACE_CALL(two_add, out, bits.data, low, high, c.n, threads);
        return 0;
    });
    const u8* const all[] = {bits.data, bits.data};
    const T lows[] = {low, low}, highs[] = {high, high};
    everywhere<T>(c, [&](T* out, int threads) {
        GRACE_CALL(two_combine, out, all, lows, highs, 2, T(2), c.n, threads);
        return 0;
    });
}

template <class T>
void vote(Case& c) {
    const std::size_t ranks = 1 + c.setting % 20;
    std::vector<Exact<u8>*> bits;
    std::vector<const u8*> ballots;
    for (std::size_t r = 0; r < ranks; ++r) {
        bits.push_back(new Exact<u8>(c.in, (c.n + 7) / 8, 1 + c.count % 256));
        ballots.push_back(bits.back()->data);
    }
    everywhere<T>(c, [&](T* out, int threads) {
        GRACE_CALL(sign_vote, out, ballots.data(), ranks, c.word(), c.n, threads);
        return 0;
    });
    for (auto* one : bits) delete one;
}

template <class T>
void ternary(Case& c) {
    const T scale = scale_of<T>(c.in);
    const Exact<u8> codes(c.in, (c.n + 4) / 5);
    const int fine = everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(ternary_add, out, codes.data, scale, c.n, threads);
    });
    const u8* const all[] = {codes.data, codes.data};
    const T scales[] = {scale, scale};
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(ternary_combine, out, all, scales, 2, T(2), c.n, threads);
    });
    REQUIRE(bool(fine) == std::all_of(codes.data, codes.data + codes.n, [](u8 code) { return code < 243; }));
}

template <class T>
void u8bit(Case& c) {
    const T scale = scale_of<T>(c.in);
    Exact<T> values(128);
    for (int i = 0; i < 128; ++i) values.data[i] = T(i) / T(127);
    const Exact<u8> codes(c.in, c.n);
    everywhere<T>(c, [&](T* out, int threads) {
        GRACE_CALL(u8bit_add, out, codes.data, scale, values.data, c.n, threads);
        return 0;
    });
    const u8* const all[] = {codes.data, codes.data};
    const T scales[] = {scale, scale};
    everywhere<T>(c, [&](T* out, int threads) {
        GRACE_CALL(u8bit_combine, out, all, scales, values.data, 2, T(2), c.n, threads);
        return 0;
    });
}

template <class T>
void natural(Case& c) {
    const int low = sizeof(T) == 4 ? -148 : -1073, high = sizeof(T) == 4 ? 127 : 1023;
    Exact<std::int16_t> bases((c.n + 4095) / 4096);
    for (std::size_t i = 0; i < bases.n; ++i) bases.data[i] = std::int16_t(low + int(c.in.number<u16>()) % (high - low + 1));
    const Exact<u8> codes(c.in, c.n);
    everywhere<T>(c, [&](T* out, int threads) {
        GRACE_CALL(natural_add, out, codes.data, bases.data, c.n, threads);
        return 0;
    });
    const u8* const all_codes[] = {codes.data, codes.data};
    const std::int16_t* const all_bases[] = {bases.data, bases.data};
    everywhere<T>(c, [&](T* out, int threads) {
        GRACE_CALL(natural_combine, out, all_codes, all_bases, 2, T(2), c.n, threads);
        return 0;
    });
}

template <class T>
void eden(Case& c) {
    static const double centroids[] = {0.128, 0.388, 0.657, 0.942, 1.256, 1.618, 2.069, 2.733};
    const int bits = 1 + c.setting % 4;
    // Coordinates and blocks, as eden_sizes of grace_dl/kernels/reference/eden.py counts them.
    std::size_t coordinates = c.n / 4096 * 4096, count = c.n / 4096, rest = c.n % 4096;
    while (rest) {
        std::size_t size = 256;
        while (size < rest) size *= 2;
        if (size > 256 && size - rest > size / 8) size /= 2;
        coordinates += size, ++count, rest -= std::min(rest, size);
    }
    const Exact<T> scales(c.in, count, 4);
    const Exact<u8> codes(c.in, coordinates * std::size_t(bits) / 8);
    Exact<double> table(std::size_t(1) << (bits - 1));
    std::copy(centroids, centroids + table.n, table.data);
    everywhere<T>(c, [&](T* out, int threads) {
        return !GRACE_CALL(eden_add, out, c.n, codes.data, scales.data, bits, table.data, c.word(), T(1), threads);
    }, true);
}

template <class T>
void sketch(Case& c) {
    const int bits = 1 + c.setting % 8;
    const Exact<T> means(c.in, std::size_t(1) << bits, 4);
    const Exact<u8> codes(c.in, (c.n * std::size_t(bits) + 7) / 8);
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(sketch_add, out, c.n, codes.data, means.data, bits, T(-0.5), threads);
    }, true);
}

template <class T>
void chunks(Case& c) {
    const int bits = 1 << (c.setting % 3), width = 6;
    const std::size_t size = std::size_t(1) << width, kept = 1 + c.k % size, rest = c.n % size;
    const std::size_t kept_of_rest = rest ? 1 + c.k % rest : 0, full = c.n / size, count = full + (rest > 0);
    const auto bytes = [&](int of) {
        return full * ((kept * std::size_t(of) + 7) / 8) + (kept_of_rest * std::size_t(of) + 7) / 8;
    };
    const Exact<u8> positions(c.in, bytes(width)), codes(c.in, bytes(bits));
    const Exact<u16> means(c.in, count << (bits - 1), 4);
    const ChunkLayout layout{size, kept, kept_of_rest, bits, width};
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(chunktopk_add, out, c.n, layout, positions.data, codes.data, means.data, T(0.5), threads);
    }, true);
}

template <class T>
void dct(Case& c) {
    constexpr std::size_t size = 4096;
    const std::size_t kept = 1 + c.k % size, left = c.n % size, full = c.n / size;
    std::size_t rows = left ? 1 : 0;
    while (rows * 64 < left) rows *= 2;
    const std::size_t kept_of_rest = rows ? 1 + c.k % (rows * 64) : 0;
    const Exact<u8> positions(c.in, full * ((kept * 12 + 7) / 8) + (kept_of_rest * 12 + 7) / 8);
    const Exact<T> values(c.in, full * kept + kept_of_rest, 4);
    const std::vector<double> factors(63, 1.0);
    const DctLayout layout{kept, 0, rows, kept_of_rest, factors.data()};
    const DctPayload payload{positions.data, const_cast<T*>(values.data), sizeof(T) == 4 ? Dtype::float32 : Dtype::float64};
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(dct_add, out, c.n, layout, &payload, 1, 0.5, threads);
    }, true);
}

// Classes of the sizes that the tags ask for, or of any sizes.
template <class T>
void inceptionn(Case& c) {
    const Exact<u8> tags(c.in, (c.n + 3) / 4);
    std::size_t sizes[4] = {0, 0, 0, 0};
    for (std::size_t i = 0; i < c.n; ++i) ++sizes[tags.data[i / 4] >> (2 * (i % 4)) & 3];
    if (!(c.flags & coded)) sizes[1 + c.setting % 3] = c.k;
    const Exact<u8> small(c.in, sizes[1], 64);
    const Exact<std::int16_t> medium(c.in, sizes[2], 64);
    const Exact<T> raw(c.in, sizes[3], 64);
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(inceptionn_add, out, c.n, tags.data, small.data, sizes[1], medium.data, sizes[2], raw.data,
                          sizes[3], T(0x1p-10), T(-0.5), threads);
    }, true);
}

template <class T>
void adaq(Case& c) {
    if (c.k == 0) return;
    const Index index(c);
    const T means[2] = {scale_of<T>(c.in), -scale_of<T>(c.in)};
    Exact<u8> signs(c.in, (c.k + 7) / 8, 64);
    std::size_t negative = c.setting % (c.count + 1);
    if (c.flags & coded) {
        negative = 0;
        for (std::size_t i = 0; i < signs.n * 8; ++i) {
            if (i >= c.count) signs.data[i / 8] &= u8(~(1 << i % 8));
            negative += signs.data[i / 8] >> i % 8 & 1;
        }
    }
    everywhere<T>(c, [&](T* out, int threads) {
        return GRACE_CALL(adaq_add, out, c.n, c.k, c.count - negative, negative, means, index.data, signs.data, T(-0.5),
                          threads);
    }, true);
}

template <class T>
void finite(Case& c) {
    static const u64 masks[] = {0x7c00, 0x7f80, 0x7f800000, 0x7ff0000000000000};
    static const int sizes[] = {2, 2, 4, 8};
    const int which = c.setting % 4;
    const Exact<u8> payload(c.in, c.n * std::size_t(sizes[which]));
    everywhere<T>(c, [&](T*, int threads) {
        return GRACE_CALL(exponents_below, payload.data, nullptr, c.n, sizes[which], masks[which], masks[which], threads);
    });
}

// The test that makes the seeds counts the entries of this table.
using Decoder = void (*)(Case&);
const Decoder decoders[][2] = {
    {indices<float>, indices<double>},
    {sparse<float>, sparse<double>},
    {zero<float>, zero<double>},
    {randomk<float>, randomk<double>},
    {blocks<float>, blocks<double>},
    {fp8<float>, fp8<double>},
    {cast<float>, cast<double>},
    {two<float>, two<double>},
    {vote<float>, vote<double>},
    {ternary<float>, ternary<double>},
    {u8bit<float>, u8bit<double>},
    {natural<float>, natural<double>},
    {eden<float>, eden<double>},
    {finite<float>, finite<double>},
    {sketch<float>, sketch<double>},
    {inceptionn<float>, inceptionn<double>},
    {adaq<float>, adaq<double>},
    {chunks<float>, chunks<double>},
    {dct<float>, dct<double>},
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const u8* bytes, std::size_t size) {
    Case c{{bytes, size}, 0, 0, 0, 0, 0};
    const std::size_t which = c.in.number<u8>() % (sizeof decoders / sizeof *decoders);
    c.flags = c.in.number<u8>();
    // Large ones are cut into pieces for threads (from 65536 elements, 131072 bits of an index).
    const std::size_t asked = c.in.number<u16>();
    c.n = c.is_large() ? asked * 5 : asked % 5000;
    c.k = c.in.number<u16>() % (c.n + 1);
    c.count = c.k - c.in.number<u16>() % (c.k + 1);
    c.setting = c.in.number<u8>();
    const Decoder decode = decoders[which][c.flags & wide ? 1 : 0];
    // Decoders keep memory by thread; in a new one it has the size this payload asks for, not that of an earlier one.
    if (c.flags & fresh_thread) std::thread([&] { decode(c); }).join();
    else decode(c);
    return 0;
}
