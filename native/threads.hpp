// A small pool of helper threads that outlives calls. The caller always works too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace grace {

using Task = void (*)(void* context, std::size_t index);

// Run task(context, i) for every i < count on at most `threads` threads (the caller included) and return when all
// are done. Indices are handed out in order, one at a time. If another thread is using the pool, the caller does
// all the work itself: results never depend on who computes them.
void run(std::size_t count, int threads, Task task, void* context);

}  // namespace grace
