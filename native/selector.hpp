// Exact selection of the largest magnitudes: what top-k, threshold and DGC share.
//
// One pass forms v, writes it where it belongs, and collects candidates: for small k all elements above a floor, among
// which the exact choice is made; for large k those inside a bracket, which give the exact cut for a second pass. Where a
// sample misled, radix selection over the whole tensor finds the k-th magnitude. The result is the same either way:
// exactly the k largest, equal magnitudes by lowest index.
#pragma once

#include "encoder_input.hpp"
#include "indices.hpp"
#include "magnitude_keys.hpp"
#include "radix_select.hpp"
#include "scratch.hpp"
#include "wire_values.hpp"

namespace grace {
namespace GRACE_ISA {
namespace {

// hit(i, v) for the elements of begin..end whose key is above `floor`, in order.
template <class T, class B, class Hit>
inline void scan(const EncoderInput<T>& s, size_t begin, size_t end, B floor, Hit hit) {
    alignas(64) T buffer[tile];
    for (size_t i = begin; i < end; i += tile) {
        const size_t m = end - i < tile ? end - i : tile;
        const T* v = load_in_place(s, i, m, buffer);
        size_t j = 0;
        for (; j + lanes <= m; j += lanes)
            for (std::uint32_t bits = above16(v + j, floor); bits; bits &= bits - 1) {
                const size_t at = j + size_t(__builtin_ctz(bits));
                hit(i + at, v[at]);
            }
        for (; j < m; ++j)
            if (key(v[j]) > floor) hit(i + j, v[j]);
    }
}

// hit(i, v) for the elements with keys above `floor` but not above `ceiling`; returns how many are above that.
template <class T, class B, class Hit>
inline size_t scan_between(const EncoderInput<T>& s, size_t begin, size_t end, B floor, B ceiling, Hit hit) {
    alignas(64) T buffer[tile];
    size_t over = 0;
    for (size_t i = begin; i < end; i += tile) {
        const size_t m = end - i < tile ? end - i : tile;
        const T* v = load_in_place(s, i, m, buffer);
        size_t j = 0;
        for (; j + lanes <= m; j += lanes) {
            const std::uint32_t above = above16(v + j, ceiling);
            over += size_t(__builtin_popcount(above));
            for (std::uint32_t bits = above16(v + j, floor) & ~above; bits; bits &= bits - 1) {
                const size_t at = j + size_t(__builtin_ctz(bits));
                hit(i + at, v[at]);
            }
        }
        for (; j < m; ++j) {
            const B one = key(v[j]);
            if (one > ceiling) ++over;
            else if (one > floor) hit(i + j, v[j]);
        }
    }
    return over;
}

// Which elements are selected: keys above `least`, and the first `ties` of those equal to it; or all that reach it.
template <class B>
struct Cut {
    B least;
    size_t ties, count;
    bool all = false;
};

struct SelectorBuffers {
    ScratchBuffer counts;             // four numbers of elements per chunk
    ScratchBuffer candidate_offsets;  // within the chunk
    ScratchBuffer candidate_values;
    ScratchBuffer candidate_keys;     // for the choice among candidates, which overwrites them
    ScratchBuffer sample_keys;        // of the sample, and behind it the space for a copy
    ScratchBuffer histograms;         // of a digit, one per chunk
};

template <class T>
class Selector {
public:
    using B = typename Bits<T>::type;

    Selector(const EncoderInput<T>& source, int threads) : s_(source), threads_(threads), chunks_(source.n, threads) {
        counts_ = scratch<SelectorBuffers>().counts.get<size_t>(4 * chunks_.count);
    }

    // Collect elements with keys above `floor`; those above `ceiling` are only counted. Returns how many were met. They
    // are stored if no chunk has more than `capacity`, else only counted, too.
    size_t collect(B floor, size_t capacity, B ceiling = Bits<T>::magnitude) {
        gather(capacity, [this, floor, ceiling](size_t c, auto keep) -> size_t {
            const size_t begin = chunks_.begin(c), end = chunks_.end(c);
            if (ceiling != Bits<T>::magnitude) return scan_between(s_, begin, end, floor, ceiling, keep);
            scan(s_, begin, end, floor, keep);
            return 0;
        });
        formed();
        return tally(floor);
    }

    // The same while v is computed: make(c, keep) writes the v of chunk c to x, and calls keep(i, v) for the elements
    // above `floor`, in order.
    template <class Make>
    void collect_making(B floor, size_t capacity, Make make) {
        gather(capacity, [&make](size_t c, auto keep) -> size_t { return make(c, keep), 0; });
        tally(floor);
    }

    const Chunks& chunks() const { return chunks_; }
    bool stored() const { return stored_; }
    size_t met() const { return total_ + above_; }
    B floor() const { return floor_; }

    // How many collected elements have a key above `floor`, which is not below that of the collection.
    size_t count(B floor) const {
        size_t n = 0;
        for (size_t c = 0; c < chunks_.count; ++c)
            for (size_t i = 0; i < counts_[c]; ++i) n += key(values_[c * capacity_ + i]) > floor;
        return n;
    }

    size_t over() const { return above_; }

    // The cut that leaves exactly k; what was collected must reach down to it.
    Cut<B> cut_collected(size_t k) {
        B* keys = scratch<SelectorBuffers>().candidate_keys.get<B>(total_);
        size_t n = 0;
        for (size_t c = 0; c < chunks_.count; ++c)
            for (size_t i = 0; i < counts_[c]; ++i) keys[n++] = key(values_[c * capacity_ + i]);
        Cut<B> cut{0, 0, k, false};
        cut.least = radix_select(keys, n, k - above_, cut.ties);
        return cut;
    }

    // The same from histograms over all elements, without a copy of them.
    Cut<B> cut_all(size_t k) {
        stored_ = false, floor_ = Bits<T>::magnitude;
        if (k >= s_.n) return {0, s_.n, s_.n, true};
        std::uint64_t* histograms = scratch<SelectorBuffers>().histograms.get<std::uint64_t>(bins * chunks_.count);
        RadixDescent<B> descent(k);
        while (!descent.finished()) {
            const Digit<B> digit = descent.digit();
            count_chunks(chunks_, threads_, histograms, bins, [this, digit](size_t c, std::uint64_t* histogram) {
                alignas(64) T buffer[tile];
                for (size_t i = chunks_.begin(c), end = chunks_.end(c); i < end; i += tile) {
                    const size_t m = end - i < tile ? end - i : tile;
                    const T* v = load_in_place(s_, i, m, buffer);
                    for (size_t j = 0; j < m; ++j) {
                        const B one = key(v[j]);
                        histogram[digit.of(one)] += digit.counts(one);
                    }
                }
            });
            formed();
            const B bin = descent.take(histograms);
            if (!descent.finished() && descent.inside() <= s_.n / 16 + 4096) {
                size_t others = 0;
                for (size_t c = 1; c < chunks_.count; ++c)
                    others += counts_[c] = size_t(histograms[c * bins + size_t(bin)]);
                counts_[0] = descent.inside() - others;
                return cut_bin(descent, k);
            }
        }
        return {descent.least(), descent.rank(), k, false};
    }

    // Write what the cut keeps: values, indices among k places (padded), and the residual.
    void emit(const Cut<B>& cut, size_t k, const WireValues& values, uint8_t* index) {
        const IndexLayout layout(s_.n, k);
        std::memset(index, 0, layout.bytes);
        const B least = cut.least;
        const bool whole = stored_ && above_ == 0;  // every candidate is at hand
        const size_t *start = counts_ + chunks_.count, *quota = counts_ + 2 * chunks_.count;
        size_t rank = divide(cut);
        T* x = s_.x;
        const bool ef = s_.ef;
        const bool plain = values.template plain<T>();
        each(chunks_.count, s_.n < serial_below ? 1 : threads_, [=, &layout, &values](size_t c) {
            size_t at = start[c], left = quota[c];
            if (plain && layout.bitmap && !whole) {
                emit_dense(c, least, left, static_cast<T*>(values.data) + at, index);
                return;
            }
            IndexWriter writer(layout, index, at);
            visit(whole, c, least, [&](size_t i, T v) {
                if (key(v) == least) {
                    if (!left) return;
                    --left;
                }
                writer.put(i);
                const T sent = values.put(at++, v);
                if (ef) x[i] = v - sent;
            });
            writer.finish();
        });
        values.clear(rank, k);
        if (!layout.bitmap && rank < k) {
            IndexWriter writer(layout, index, rank);
            for (; rank < k; ++rank) writer.put(s_.n - 1);
            writer.finish();
        }
    }

    // The keys of the elements place(0) ... place(samples - 1).
    template <class Place>
    B* sample(size_t samples, Place place) {
        B* keys = scratch<SelectorBuffers>().sample_keys.get<B>(2 * samples);
        const size_t piece = 4096;
        each_piece(samples, piece, samples < 2 * piece ? 1 : threads_, [=](size_t begin, size_t end) {
            for (size_t j = begin; j < end; ++j) keys[j] = key(value_at(s_, place(j)));
        });
        return keys;
    }

private:
    // Run scan(c, keep) on every chunk; it returns how many elements it only counted.
    template <class Scan>
    void gather(size_t capacity, Scan scan) {
        capacity_ = capacity < chunks_.length ? capacity : chunks_.length;
        offsets_ = scratch<SelectorBuffers>().candidate_offsets.get<std::uint32_t>(capacity_ * chunks_.count);
        values_ = scratch<SelectorBuffers>().candidate_values.get<T>(capacity_ * chunks_.count);
        over_ = counts_ + 3 * chunks_.count;
        each(chunks_.count, threads_, [this, &scan](size_t c) {
            const size_t begin = chunks_.begin(c), capacity = capacity_;
            std::uint32_t* offsets = offsets_ + c * capacity;
            T* values = values_ + c * capacity;
            size_t n = 0;
            over_[c] = scan(c, [&](size_t i, T v) {
                if (n < capacity) offsets[n] = std::uint32_t(i - begin), values[n] = v;
                ++n;
            });
            counts_[c] = n;
        });
    }

    size_t tally(B floor) {
        floor_ = floor;
        stored_ = true;
        total_ = above_ = 0;
        for (size_t c = 0; c < chunks_.count; ++c) {
            total_ += counts_[c], above_ += over_[c];
            stored_ &= counts_[c] <= capacity_;
        }
        return total_ + above_;
    }

    // For each chunk, the rank of its first selected element and how many ties it may send; returns how many are selected.
    size_t divide(const Cut<B>& cut) {
        size_t *above = counts_ + chunks_.count, *equal = counts_ + 2 * chunks_.count;
        const B least = cut.least;
        if (!stored_ && cut.all && floor_ == least - 1) {
            // All that were counted are selected.
            for (size_t c = 0; c < chunks_.count; ++c) above[c] = 0, equal[c] = counts_[c];
        } else if (stored_ || chunks_.count > 1) {
            each(chunks_.count, stored_ ? 1 : threads_, [=](size_t c) {
                size_t more = stored_ ? over_[c] : 0, same = 0;
                visit(stored_, c, least, [&](size_t, T v) { more += key(v) > least, same += key(v) == least; });
                above[c] = more, equal[c] = same;
            });
            formed();
        } else {
            above[0] = cut.count - cut.ties, equal[0] = cut.ties;
        }
        size_t rank = 0, ties = cut.ties;
        for (size_t c = 0; c < chunks_.count; ++c) {
            const size_t same = equal[c] < ties ? equal[c] : ties, more = above[c];
            above[c] = rank, equal[c] = same;
            rank += more + same, ties -= same;
        }
        if (cut.all)  // no quota: elements above and at the cut may have been counted as one
            for (size_t c = 0; c < chunks_.count; ++c) equal[c] = chunks_.length;
        return rank;
    }

    // From now on v is in x, where it was left there.
    void formed() {
        if (s_.ef) s_.g = nullptr;
    }

    // The cut inside the bin that a descent reached: one pass gathers the bin's keys, counts_ says how many a chunk has.
    Cut<B> cut_bin(const RadixDescent<B>& descent, size_t k) {
        const B low = descent.least(), high = descent.most();
        B* keys = scratch<SelectorBuffers>().candidate_keys.get<B>(descent.inside());
        size_t* counts = counts_;
        size_t before = 0;
        for (size_t c = 0; c < chunks_.count; ++c) {
            const size_t n = counts[c];
            counts[c] = before;
            before += n;
        }
        each(chunks_.count, threads_, [=](size_t c) {
            B* out = keys + counts[c];
            scan(s_, chunks_.begin(c), chunks_.end(c), B(low - 1), [&](size_t, T v) {
                if (key(v) <= high) *out++ = key(v);
            });
        });
        Cut<B> cut{0, 0, k, false};
        cut.least = radix_select(keys, descent.inside(), descent.rank(), cut.ties);
        return cut;
    }

    // A chunk's part of a bitmap and its values: 16 elements at a time, as most of these hold selected ones.
    void emit_dense(size_t c, B least, size_t left, T* out, uint8_t* index) const {
        alignas(64) T buffer[tile];
        T* x = s_.x;
        const bool ef = s_.ef;
        for (size_t i = chunks_.begin(c), end = chunks_.end(c); i < end; i += tile) {
            const size_t m = end - i < tile ? end - i : tile;
            const T* v = load_in_place(s_, i, m, buffer);
            for (size_t j = 0; j < m; j += lanes) {
                std::uint32_t over, same;
                if (j + lanes <= m) {
                    over = above16(v + j, least);
                    same = left ? above16(v + j, B(least - 1)) & ~over : 0;
                } else {
                    over = same = 0;
                    for (size_t l = 0; j + l < m; ++l)
                        over |= std::uint32_t(key(v[j + l]) > least) << l, same |= std::uint32_t(key(v[j + l]) == least) << l;
                }
                for (; same && left; same &= same - 1, --left) over |= same & (0 - same);
                index[(i + j) / 8] = uint8_t(over);
                if (j + 8 < m) index[(i + j) / 8 + 1] = uint8_t(over >> 8);
                for (; over; over &= over - 1) {
                    const size_t at = j + size_t(__builtin_ctz(over));
                    const T sent = v[at];
                    *out++ = sent;
                    if (ef) x[i + at] = sent - sent;
                }
            }
        }
    }

    // hit(i, v) for the elements of a chunk that reach `least`, from the collection or from the tensor.
    template <class Hit>
    void visit(bool collected, size_t c, B least, Hit hit) const {
        if (!collected) return scan(s_, chunks_.begin(c), chunks_.end(c), B(least - 1), hit);
        const std::uint32_t* offsets = offsets_ + c * capacity_;
        const T* values = values_ + c * capacity_;
        const size_t begin = chunks_.begin(c);
        const size_t n = counts_[c];
        for (size_t i = 0; i < n; ++i) {
            if (s_.ef && i + prefetch_distance < n) __builtin_prefetch(s_.x + begin + offsets[i + prefetch_distance], 1);
            if (key(values[i]) >= least) hit(begin + offsets[i], values[i]);
        }
    }

    EncoderInput<T> s_;
    int threads_;
    Chunks chunks_;
    size_t* counts_ = nullptr;
    std::uint32_t* offsets_ = nullptr;
    T* values_ = nullptr;
    size_t* over_ = nullptr;
    size_t capacity_ = 0, total_ = 0, above_ = 0;
    B floor_ = Bits<T>::magnitude;
    bool stored_ = false;
};

}  // namespace
}  // namespace GRACE_ISA
}  // namespace grace
