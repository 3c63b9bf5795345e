// The largest elements of each chunk, values in a few bits (SparseLoCo).
#pragma once

#include "faults.hpp"
#include "isa.hpp"
#include "types.hpp"

namespace grace {

struct ChunkLayout {
    size_t size, kept, kept_of_rest;  // of a full chunk, and of the last one if it is shorter
    int bits, width;                  // of a value's code, and of a position
};

}  // namespace grace

GRACE_DECLARE(Fault, chunktopk_check, size_t n, const ChunkLayout& layout, const u8* positions, const u8* codes,
              const u16* means, int threads)

#define GRACE_DECLARE_BOTH(T)                                                                                        \
    GRACE_DECLARE(void, chunktopk_encode, const EncoderInput<T>& s, const ChunkLayout& layout, u8* positions,        \
                  u8* codes, u16* means, int threads)                                                                \
    GRACE_DECLARE(Fault, chunktopk_add, T* out, size_t n, const ChunkLayout& layout, const u8* positions,            \
                  const u8* codes, const u16* means, T alpha, int threads)

GRACE_DECLARE_BOTH(float)
GRACE_DECLARE_BOTH(double)
#undef GRACE_DECLARE_BOTH
