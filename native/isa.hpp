// Run-time choice of instruction set.
//
// A kernel is written once, in native/kernels/*.cpp, inside `namespace grace::GRACE_ISA`; the build compiles the
// file once per set. Its declaration goes through GRACE_DECLARE in a header, its callers use GRACE_CALL.
#pragma once

namespace grace {

enum class Isa : int { baseline = 0, avx2 = 1 };

// The set in use: the best the processor has, or what the environment variable GRACE_ISA asks for.
Isa isa();

// Force a set by name ("" returns to the default). False if it is unknown here or the processor lacks it.
bool set_isa(const char* name);

const char* isa_name();

}  // namespace grace

#if GRACE_WITH_AVX2
#define GRACE_DECLARE(result, name, ...)                        \
    namespace grace::baseline { result name(__VA_ARGS__); }     \
    namespace grace::avx2 { result name(__VA_ARGS__); }
#define GRACE_CALL(name, ...) \
    (::grace::isa() == ::grace::Isa::avx2 ? ::grace::avx2::name(__VA_ARGS__) : ::grace::baseline::name(__VA_ARGS__))
#else
#define GRACE_DECLARE(result, name, ...) \
    namespace grace::baseline { result name(__VA_ARGS__); }
#define GRACE_CALL(name, ...) ::grace::baseline::name(__VA_ARGS__)
#endif
