// What the binding files share. Tensors arrive as addresses: the Python side (grace_dl/kernels/native) checks dtype,
// device, contiguity and size, which costs a tenth of converting a tensor object, and passes numbers.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

namespace nb = nanobind;

using address = std::uintptr_t;

template <class T>
inline T* at(address where) {
    return reinterpret_cast<T*>(where);
}

// One function per group of kernels, each in a file bind_<group>.cpp.
void bind_dense(nb::module_& m);
void bind_lowrank(nb::module_& m);
void bind_research(nb::module_& m);
void bind_sparse(nb::module_& m);
