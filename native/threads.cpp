#include "threads.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace grace {
namespace {

struct Pool {
    std::mutex busy;  // one job at a time
    std::mutex lock;
    std::condition_variable start, done;
    std::vector<std::thread> helpers;
    std::uint64_t job = 0;
    int wanted = 0, active = 0;
    bool open = false;  // whether the job may still be joined
    Task task = nullptr;
    void* context = nullptr;
    std::size_t count = 0;
    std::atomic<std::size_t> next{0};

    void work() {
        for (;;) {
            std::size_t index = next.fetch_add(1, std::memory_order_relaxed);
            if (index >= count) return;
            task(context, index);
        }
    }

    void loop(int number, std::uint64_t seen) {
        std::unique_lock<std::mutex> guard(lock);
        for (;;) {
            start.wait(guard, [&] { return job != seen; });
            seen = job;
            if (!open || number >= wanted) continue;
            ++active;
            guard.unlock();
            work();
            guard.lock();
            if (--active == 0) done.notify_one();
        }
    }

    void run(std::size_t tasks, int threads, Task what, void* with) {
        {
            std::lock_guard<std::mutex> guard(lock);
            while (int(helpers.size()) < threads - 1)
                helpers.emplace_back(&Pool::loop, this, int(helpers.size()), job);
            task = what, context = with, count = tasks;
            next.store(0, std::memory_order_relaxed);
            wanted = threads - 1;
            open = true;
            ++job;
        }
        start.notify_all();
        work();
        // Helpers that have not woken by now are not waited for: waking takes longer than many a small job.
        std::unique_lock<std::mutex> guard(lock);
        open = false;
        done.wait(guard, [&] { return active == 0; });
    }
};

// Never destroyed: helpers sleep in it until the process ends. A forked child has none of the helpers, so it
// starts with a pool of its own.
std::atomic<Pool*> pool{nullptr};
std::mutex creation;

Pool& get() {
    Pool* current = pool.load(std::memory_order_acquire);
    if (current) return *current;
    std::lock_guard<std::mutex> guard(creation);
    current = pool.load(std::memory_order_acquire);
    if (!current) {
        current = new Pool;
#if defined(__unix__) || defined(__APPLE__)
        static bool registered = false;
        if (!registered) {
            registered = true;
            pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr, std::memory_order_release); });
        }
#endif
        pool.store(current, std::memory_order_release);
    }
    return *current;
}

}  // namespace

void run(std::size_t count, int threads, Task task, void* context) {
    if (threads > 64) threads = 64;
    if (std::size_t(threads) > count) threads = int(count);
    if (threads > 1) {
        Pool& shared = get();
        std::unique_lock<std::mutex> mine(shared.busy, std::try_to_lock);
        if (mine.owns_lock()) {
            shared.run(count, threads, task, context);
            return;
        }
    }
    for (std::size_t index = 0; index < count; ++index) task(context, index);
}

}  // namespace grace
