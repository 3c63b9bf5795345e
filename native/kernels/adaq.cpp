// AdaQ's encoder: the largest share of the positive and of the negative elements, each sent as its mean.
//
// As in selector.hpp, a sample brackets the smallest magnitude that is sent, here one of each sign; one pass forms v and
// collects what is inside the brackets, which gives the exact cuts; where the sample misleads, radix selection narrows the
// brackets. A second pass writes indices and signs and sums, a third subtracts the means from v.
#include "methods/adaq.hpp"

#include <cmath>

#include "encoder_input.hpp"
#include "indices.hpp"
#include "magnitude_keys.hpp"
#include "radix_select.hpp"
#include "random.hpp"
#include "reduce.hpp"
#include "scratch.hpp"
#include "signed_limits.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

constexpr size_t word = 64;

struct AdaqBuffers {
    ScratchBuffer found;        // per chunk, see Found
    ScratchBuffer candidates;   // elements inside the brackets, by chunk
    ScratchBuffer keys;         // of the candidates of one sign, overwritten by the selection among them
    ScratchBuffer sample_keys;  // of the sample by sign, and behind them the space for a copy
    ScratchBuffer histograms;   // of a digit, by chunk and sign
    ScratchBuffer tile_sums;    // of the sent elements, by sign
    ScratchBuffer starts;       // per chunk, the rank of its first sent element
};

// What a pass found in a chunk, by sign: elements, those above the bracket, those inside it.
struct Found {
    PerSign<size_t> members, over, inside;
};

template <class T>
class SignedSelector {
public:
    using B = typename Bits<T>::type;
    static constexpr B top = Bits<T>::magnitude;

    SignedSelector(const EncoderInput<T>& source, double ratio, int threads)
        : s_(source), ratio_(ratio), threads_(threads), chunks_(source.n, threads) {
        found_ = scratch<AdaqBuffers>().found.get<Found>(chunks_.count);
    }

    // Find the cuts: keys above `least_` are sent, and the first `ties_` of those equal to it.
    void choose() {
        PerSign<B> floor{{0, 0}}, ceiling{{top, top}};
        size_t capacity = s_.n;
        if (s_.n >= serial_below) capacity = bracket(floor, ceiling);
        collect(floor, ceiling, capacity);
        if (!settle()) {
            narrow();
            settle();
        }
    }

    size_t count(int side) const { return k_[side]; }

    void emit(size_t slots, uint8_t* index, uint8_t* signs, T* means) {
        const IndexLayout layout(s_.n, slots);
        const size_t sign_bytes = (slots + 7) / 8, tiles = (s_.n + tile - 1) / tile;
        std::memset(index, 0, layout.bytes);
        std::memset(signs, 0, sign_bytes);
        divide();
        double* sums = scratch<AdaqBuffers>().tile_sums.get<double>(2 * tiles);
        each(chunks_.count, threads_, [=, &layout](size_t c) {
            PerSign<size_t> quota = found_[c].inside;
            const PerSign<B> least = least_;
            size_t rank = starts_[c];
            IndexWriter writer(layout, index, rank);
            FieldWriter marks(signs, sign_bytes);
            const bool bitmap = layout.bitmap;
            alignas(64) T buffer[tile], kept[tile];
            for (size_t i = chunks_.begin(c), end = chunks_.end(c); i < end; i += tile) {
                const size_t m = end - i < tile ? end - i : tile;
                const T* v = padded(load_in_place(s_, i, m, buffer), m, buffer);
                keep_above(v, m, least[0], least[1], kept);
                for (size_t j = 0; j < m; j += word) {
                    const uint64_t below = negatives(v + j), equal = ties(v + j, below, quota);
                    const uint64_t sent = above(v + j, least) | equal;
                    for (uint64_t bits = equal; bits; bits &= bits - 1) {
                        const size_t at = j + size_t(__builtin_ctzll(bits));
                        kept[at] = v[at];
                    }
                    uint64_t packed = 0;
                    int n = 0;
                    for (uint64_t bits = sent; bits; bits &= bits - 1) {
                        const int at = __builtin_ctzll(bits);
                        packed |= (below >> at & 1) << n++;
                        if (!bitmap) writer.put(i + j + size_t(at));
                    }
                    if (n) marks.put(rank, packed, n);
                    rank += size_t(n);
                    if (bitmap) store_word(index, layout.bytes, (i + j) / 8, sent);
                }
                const T* y = kept;
                double* sum = sums + i / tile;
                sum[0] = tree<tree_block>(m, [y](size_t l) { return double(y[l] < T(0) ? T(0) : y[l]); });
                sum[tiles] = tree<tree_block>(m, [y](size_t l) { return double(y[l] < T(0) ? y[l] : T(0)); });
            }
            writer.finish(), marks.finish();
        });
        for (int side = 0; side < 2; ++side)
            means[side] = T(tree_sum(sums + size_t(side) * tiles, tiles) / double(k_[side] ? k_[side] : 1));
        if (!layout.bitmap) {
            IndexWriter writer(layout, index, k_[0] + k_[1]);
            for (size_t rank = k_[0] + k_[1]; rank < slots; ++rank) writer.put(s_.n - 1);
            writer.finish();
        }
    }

    // Subtract the means from what was sent.
    void subtract(const T* means) {
        const PerSign<B> least = least_;
        const T high = means[0], low = means[1];
        each(chunks_.count, threads_, [=](size_t c) {
            PerSign<size_t> quota = found_[c].inside;
            alignas(64) T buffer[tile];
            for (size_t i = chunks_.begin(c), end = chunks_.end(c); i < end; i += tile) {
                const size_t m = end - i < tile ? end - i : tile;
                T* x = s_.x + i;
                const bool some = quota[0] || quota[1];
                const T* v = some ? padded(x, m, buffer) : x;
                if (some && v != buffer) v = static_cast<const T*>(std::memcpy(buffer, x, m * sizeof(T)));
                subtract_means(x, m, least[0], least[1], high, low);
                for (size_t j = 0; some && j < m; j += word)
                    for (uint64_t bits = ties(v + j, negatives(v + j), quota); bits; bits &= bits - 1) {
                        const size_t at = j + size_t(__builtin_ctzll(bits));
                        x[at] = v[at] - (v[at] < T(0) ? low : high);
                    }
            }
        });
    }

private:
    // The last tile filled up with zeros, which have neither sign, so that words are whole.
    static const T* padded(const T* v, size_t n, T* buffer) {
        if (n == tile) return v;
        if (v != buffer) std::memcpy(buffer, v, n * sizeof(T));
        std::memset(buffer + n, 0, (tile - n) * sizeof(T));
        return buffer;
    }

    // Elements equal to the cut that are sent, by lowest index.
    uint64_t ties(const T* v, uint64_t below, PerSign<size_t>& quota) const {
        if (!quota[0] && !quota[1]) return 0;
        uint64_t go = 0;
        const PerSign<B> under{{B(least_[0] - 1), B(least_[1] - 1)}};
        for (uint64_t bits = above(v, under) & ~above(v, least_); bits; bits &= bits - 1) {
            size_t& left = quota[int(below >> __builtin_ctzll(bits) & 1)];
            if (!left) continue;
            --left;
            go |= bits & (0 - bits);
        }
        return go;
    }

    size_t share(size_t n) const {
        const double rounded = std::floor(ratio_ * double(n) + 0.5);
        return n == 0 ? 0 : rounded < 1 ? 1 : size_t(rounded);
    }

    // Brackets that the cuts lie in most probably, from a sample; returns how many elements to expect inside, generously.
    size_t bracket(PerSign<B>& floor, PerSign<B>& ceiling) {
        const size_t samples = s_.n / 8 < 32768 ? s_.n / 8 : 32768, stride = s_.n / samples;
        B* keys = scratch<AdaqBuffers>().sample_keys.get<B>(3 * samples);
        PerSign<size_t> n{{0, 0}};
        for (size_t j = 0; j < samples; ++j) {
            const T v = value_at(s_, sampled_place(j, stride));
            const int side = cast_bits<B>(v) < 0;
            if (key(v)) keys[size_t(side) * samples + n[side]++] = key(v);
        }
        size_t expect = 0;
        for (int side = 0; side < 2; ++side) {
            const double middle = double(n[side]) * ratio_, slack = 4 * std::sqrt(middle * (1 - ratio_)) + 8;
            const B* mine = keys + size_t(side) * samples;
            B* copy = keys + 2 * samples;
            size_t least = n[side], most = 0, unused;
            if (middle + slack < double(n[side])) {
                std::memcpy(copy, mine, n[side] * sizeof(B));
                least = size_t(middle + slack);
                floor[side] = radix_select(copy, n[side], least, unused) - 1;
            }
            if (middle - slack >= 1) {
                std::memcpy(copy, mine, n[side] * sizeof(B));
                most = size_t(middle - slack);
                ceiling[side] = radix_select(copy, n[side], most, unused);
            }
            expect += (least - most) * stride;
        }
        return 2 * expect + 4096;
    }

    // Count both signs, and store the elements inside the brackets unless a chunk holds more than `capacity`.
    void collect(const PerSign<B>& floor, const PerSign<B>& ceiling, size_t capacity) {
        if (capacity > chunks_.length) capacity = chunks_.length;
        B* values = scratch<AdaqBuffers>().candidates.get<B>(capacity * chunks_.count);
        each(chunks_.count, threads_, [=](size_t c) {
            alignas(64) T buffer[tile];
            B* out = values + c * capacity;
            size_t n = 0;
            Found found{{{0, 0}}, {{0, 0}}, {{0, 0}}};
            const PerSign<B> zero{{0, 0}};
            for (size_t i = chunks_.begin(c), end = chunks_.end(c); i < end; i += tile) {
                const size_t m = end - i < tile ? end - i : tile;
                const T* v = padded(load_in_place(s_, i, m, buffer), m, buffer);
                for (size_t j = 0; j < m; j += word) {
                    const uint64_t below = negatives(v + j), some = above(v + j, zero), over = above(v + j, ceiling);
                    const uint64_t inside = above(v + j, floor) & ~over;
                    found.members[0] += count_ones(some & ~below), found.members[1] += count_ones(some & below);
                    found.over[0] += count_ones(over & ~below), found.over[1] += count_ones(over & below);
                    found.inside[0] += count_ones(inside & ~below), found.inside[1] += count_ones(inside & below);
                    for (uint64_t bits = inside; bits && n < capacity; bits &= bits - 1)
                        out[n++] = cast_bits<B>(v[j + size_t(__builtin_ctzll(bits))]);
                }
            }
            found_[c] = found;
        });
        if (s_.ef) s_.g = nullptr;
        floor_ = floor, ceiling_ = ceiling, values_ = values, capacity_ = capacity;
        stored_ = true;
        total_ = Found{{{0, 0}}, {{0, 0}}, {{0, 0}}};
        for (size_t c = 0; c < chunks_.count; ++c) {
            const Found& one = found_[c];
            for (int side = 0; side < 2; ++side) {
                total_.members[side] += one.members[side], total_.over[side] += one.over[side];
                total_.inside[side] += one.inside[side];
            }
            stored_ &= one.inside[0] + one.inside[1] <= capacity;
        }
    }

    // The cuts, if the brackets hold them.
    bool settle() {
        for (int side = 0; side < 2; ++side) {
            const size_t k = k_[side] = share(total_.members[side]), over = total_.over[side];
            ties_[side] = 0;
            if (k == total_.members[side]) {
                least_[side] = k ? 0 : top;
            } else if (k <= over || k > over + total_.inside[side]) {
                return false;
            } else if (ceiling_[side] - floor_[side] == 1) {
                least_[side] = ceiling_[side], ties_[side] = k - over;
            } else if (!stored_) {
                return false;
            } else {
                B* keys = scratch<AdaqBuffers>().keys.get<B>(total_.inside[side]);
                size_t n = 0;
                for (size_t c = 0; c < chunks_.count; ++c)
                    visit(c, [&](B bits) {
                        if ((bits < 0) == (side == 1)) keys[n++] = bits & top;
                    });
                least_[side] = radix_select(keys, n, k - over, ties_[side]);
            }
        }
        return true;
    }

    template <class F>
    void visit(size_t c, F f) const {
        const B* values = values_ + c * capacity_;
        for (size_t i = 0, n = found_[c].inside[0] + found_[c].inside[1]; i < n; ++i) f(values[i]);
    }

    // Brackets that surely hold the cuts, by radix selection until they are narrow enough to collect.
    void narrow() {
        PerSign<RadixDescent<B>> descent{{RadixDescent<B>(share(total_.members[0])), RadixDescent<B>(share(total_.members[1]))}};
        std::uint32_t* histograms = scratch<AdaqBuffers>().histograms.get<std::uint32_t>(2 * bins * chunks_.count);
        const auto inside = [&descent] { return descent[0].inside() + descent[1].inside(); };
        do {
            const Digit<B> digit = descent[0].digit();  // the other sign's differs in the prefix alone
            const PerSign<B> prefix{{digit.prefix, descent[1].digit().prefix}};
            count_chunks(chunks_, threads_, histograms, 2 * bins, [this, digit, prefix](size_t c, std::uint32_t* histogram) {
                alignas(64) T buffer[tile];
                for (size_t i = chunks_.begin(c), end = chunks_.end(c); i < end; i += tile) {
                    const size_t m = end - i < tile ? end - i : tile;
                    const T* v = load_in_place(s_, i, m, buffer);
                    for (size_t j = 0; j < m; ++j) {
                        const B one = key(v[j]);
                        const int side = cast_bits<B>(v[j]) < 0;
                        histogram[size_t(side) * bins + size_t(digit.of(one))] +=
                            one > 0 && digit.higher(one) == prefix[side];
                    }
                }
            });
            for (int side = 0; side < 2; ++side) descent[side].take(histograms + size_t(side) * bins);
        } while (!descent[0].finished() && inside() > s_.n / 16 + 4096);
        PerSign<B> floor, ceiling;
        for (int side = 0; side < 2; ++side) {
            const bool any = total_.members[side] > 0;
            floor[side] = any ? descent[side].least() - 1 : top, ceiling[side] = any ? descent[side].most() : top;
        }
        collect(floor, ceiling, descent[0].finished() ? 0 : inside());
    }

    // Where the chunks' elements begin among all that are sent, and in `inside` how many ties a chunk may send.
    void divide() {
        starts_ = scratch<AdaqBuffers>().starts.get<size_t>(chunks_.count);
        PerSign<size_t> left = ties_;
        size_t rank = 0;
        for (size_t c = 0; c < chunks_.count; ++c) {
            Found& one = found_[c];
            PerSign<size_t> more{{0, 0}}, same{{0, 0}};
            const bool exact = ceiling_[0] - floor_[0] == 1 && ceiling_[1] - floor_[1] == 1;
            if (stored_ && !exact)
                visit(c, [&](B bits) {
                    const int side = bits < 0;
                    more[side] += (bits & top) > least_[side], same[side] += (bits & top) == least_[side];
                });
            starts_[c] = rank;
            for (int side = 0; side < 2; ++side) {
                const bool single = ceiling_[side] - floor_[side] == 1;
                size_t above = one.over[side] + (single ? 0 : more[side]), equal = single ? one.inside[side] : same[side];
                if (least_[side] == 0) above = one.members[side], equal = 0;
                one.inside[side] = equal < left[side] ? equal : left[side];
                left[side] -= one.inside[side];
                rank += above + one.inside[side];
            }
        }
    }

    EncoderInput<T> s_;
    double ratio_;
    int threads_;
    Chunks chunks_;
    Found *found_, total_;
    PerSign<B> floor_, ceiling_, least_;
    PerSign<size_t> k_, ties_;
    B* values_ = nullptr;
    size_t* starts_ = nullptr;
    size_t capacity_ = 0;
    bool stored_ = false;
};

template <class T>
void encode_(const EncoderInput<T>& s, double ratio, size_t slots, T* means, std::int32_t* counts, uint8_t* index,
             uint8_t* signs, int threads) {
    SignedSelector<T> selector(s, ratio, threads);
    selector.choose();
    counts[0] = std::int32_t(selector.count(0)), counts[1] = std::int32_t(selector.count(1));
    selector.emit(slots, index, signs, means);
    if (s.ef) selector.subtract(means);
}

}  // namespace

#define GRACE_DEFINE(T)                                                                                                      \
    void adaq_encode(const EncoderInput<T>& s, double ratio, uint64_t slots, T* means, std::int32_t* counts, uint8_t* index, \
                     uint8_t* signs, int threads) {                                                                          \
        encode_(s, ratio, size_t(slots), means, counts, index, signs, threads);                                              \
    }
GRACE_DEFINE(float)
GRACE_DEFINE(double)

}  // namespace GRACE_ISA
}  // namespace grace
