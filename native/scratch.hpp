// Memory that a thread reuses from call to call, so that steady state allocates nothing.
//
// A kernel file declares its buffers as named members of a struct and has one such struct per thread:
//     struct Buffers { ScratchBuffer keys, counts; };
//     keys = scratch<Buffers>().keys.get<int>(n);
// Contents are not initialised. A later `get` from the same buffer may move it, so a name has one use at a time.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace grace {
namespace GRACE_ISA {

class ScratchBuffer {
public:
    ScratchBuffer() = default;
    ScratchBuffer(const ScratchBuffer&) = delete;
    ScratchBuffer& operator=(const ScratchBuffer&) = delete;
    ~ScratchBuffer() { std::free(data_); }

    template <class T>
    T* get(std::size_t count) {
        const std::size_t bytes = (count ? count : 1) * sizeof(T);
        if (bytes > bytes_) {
            std::free(data_);
            data_ = nullptr, bytes_ = 0;
            void* fresh = std::malloc(bytes);
            if (!fresh) throw std::bad_alloc();
            data_ = fresh, bytes_ = bytes;
        }
        return static_cast<T*>(data_);
    }

private:
    void* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// The calling thread's buffers.
template <class Buffers>
inline Buffers& scratch() {
    static thread_local Buffers buffers;
    return buffers;
}

}  // namespace GRACE_ISA
}  // namespace grace
