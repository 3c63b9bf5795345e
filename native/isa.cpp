#include "isa.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

#if GRACE_WITH_AVX2
#include <cpuid.h>
#endif

namespace grace {
namespace {

#if GRACE_WITH_AVX2
// Not every compiler knows the name "f16c" in __builtin_cpu_supports.
bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

bool has(Isa which) {
    if (which == Isa::baseline) return true;
#if GRACE_WITH_AVX2
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("bmi") &&
           has_f16c();
#else
    return false;
#endif
}

constexpr const char* names[] = {"baseline", "avx2"};

bool lookup(const char* name, Isa& found) {
    for (int i = 0; i < 2; ++i)
        if (!std::strcmp(name, names[i]) && has(Isa(i))) {
            found = Isa(i);
            return true;
        }
    return false;
}

Isa choose() {
    Isa chosen = has(Isa::avx2) ? Isa::avx2 : Isa::baseline;
    if (const char* asked = std::getenv("GRACE_ISA")) lookup(asked, chosen);
    return chosen;
}

std::atomic<int>& current() {
    static std::atomic<int> value{int(choose())};
    return value;
}

}  // namespace

Isa isa() { return Isa(current().load(std::memory_order_relaxed)); }

bool set_isa(const char* name) {
    Isa wanted = Isa::baseline;
    if (!*name) wanted = choose();
    else if (!lookup(name, wanted)) return false;
    current().store(int(wanted), std::memory_order_relaxed);
    return true;
}

const char* isa_name() { return names[int(isa())]; }

}  // namespace grace
