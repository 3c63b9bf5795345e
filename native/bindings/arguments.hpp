// How bindings take arguments. Tensors arrive as addresses: the Python side (grace_dl/kernels/native) checks dtype,
// device, contiguity and size, which costs a tenth of converting a tensor object, and passes numbers.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "types.hpp"

namespace nb = nanobind;

using address = std::uintptr_t;

template <class T>
inline T* at(address where) {
    return reinterpret_cast<T*>(where);
}

// Numbers from a Python list: addresses or lengths of tensors that one call takes together.
inline std::vector<std::size_t> numbers(const nb::list& list) {
    std::vector<std::size_t> found;
    found.reserve(list.size());
    for (auto one : list) found.push_back(nb::cast<std::size_t>(one));
    return found;
}

// Addresses from a Python list, one for each rank.
template <class T>
inline std::vector<const T*> addresses(const nb::list& list) {
    std::vector<const T*> found;
    found.reserve(list.size());
    for (auto one : list) found.push_back(at<const T>(nb::cast<address>(one)));
    return found;
}

// Numbers from a Python list, one for each rank.
template <class T>
inline std::vector<T> reals(const nb::list& list) {
    std::vector<T> found;
    found.reserve(list.size());
    for (auto one : list) found.push_back(T(nb::cast<double>(one)));
    return found;
}

// f(T()) with T the element type, float or double, the GIL held: f releases it when it has read its lists.
template <class F>
inline auto typed_lists(bool wide, F f) {
    return wide ? f(double()) : f(float());
}

// f(n, x, y) for lists of lengths and of the addresses of two tensors each, the GIL released; returns the list of answers.
template <class F>
inline nb::list for_each_pair(const nb::list& ns, const nb::list& xs, const nb::list& ys, F f) {
    const auto lengths = numbers(ns), first = numbers(xs), second = numbers(ys);
    std::vector<char> answers(lengths.size());
    {
        nb::gil_scoped_release release;
        for (std::size_t i = 0; i < lengths.size(); ++i) answers[i] = f(lengths[i], address(first[i]), address(second[i]));
    }
    nb::list found;
    for (char answer : answers) found.append(bool(answer));
    return found;
}

// The arguments that every encoder begins with, and the input they make.
#define ENCODER_ARGUMENTS bool wide, address x, address g, size_t n, double beta, double gamma, bool ef
#define ENCODER_INPUT(T) (EncoderInput<T>{at<T>(x), at<const T>(g), T(beta), T(gamma), n, ef})

// f(T()) with T the element type, float or double, the GIL released.
template <class F>
inline auto typed(bool wide, F f) {
    nb::gil_scoped_release release;
    return wide ? f(double()) : f(float());
}
