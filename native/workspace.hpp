// Memory a thread keeps between calls, so that steady state allocates nothing. Contents are not initialised, and
// pages that are never touched cost nothing.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#include "threads.hpp"

namespace grace {
namespace GRACE_ISA {

class Room {
public:
    Room() = default;
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() { std::free(data_); }

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

// body(0) ... body(count - 1), on at most `threads` threads.
template <class Body>
inline void each(std::size_t count, int threads, Body body) {
    run(count, threads, [](void* raw, std::size_t index) { (*static_cast<Body*>(raw))(index); }, &body);
}

// A tensor cut into runs of whole tiles, several a thread so that a late thread delays nobody for long.
struct Chunks {
    std::size_t n, count = 1, length;

    Chunks(std::size_t elements, int threads) : n(elements) {
        if (threads > 64) threads = 64;
        if (n >= 65536 && threads > 1) count = std::size_t(threads) * 4;
        length = (n + count - 1) / count;
        constexpr std::size_t most = std::size_t(1) << 31;  // offsets within a chunk fit 32 bits
        if (length > most) length = most;
        length = (length + 1023) / 1024 * 1024;
        if (length == 0) length = 1024;
        count = (n + length - 1) / length;
        if (count == 0) count = 1;
    }

    std::size_t begin(std::size_t c) const { return c * length; }
    std::size_t end(std::size_t c) const { return (c + 1) * length < n ? (c + 1) * length : n; }
};

}  // namespace GRACE_ISA
}  // namespace grace
