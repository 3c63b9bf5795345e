// Names that declarations, kernels and bindings share.
#pragma once

#include <cstddef>
#include <cstdint>

namespace grace {

using std::size_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

// What an encoder compresses: v = x, or v = beta * x + gamma * g with every operation rounded.
template <class T>
struct EncoderInput {
    T* x;
    const T* g;  // null: v = x
    T beta, gamma;
    size_t n;
    bool ef;  // error feedback: the encoder overwrites x with the residual
};

// The dtype of sent values, by the codes that the Python side passes.
enum class Dtype : int { float32 = 0, float64 = 1, float16 = 2, bfloat16 = 3 };

// A rank's selected elements of a tensor: `count` values and coded indices, in room for `k`.
struct SparsePayload {
    void* values;
    Dtype dtype;
    u64 k, count;
    const u8* index;
};

}  // namespace grace
