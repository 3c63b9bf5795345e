// For bindings of kernels in two precisions: the arguments every encoder begins with, and the choice of type.
#pragma once

#include "bind.hpp"

#define FROM bool wide, address x, address g, size_t n, double beta, double gamma, bool ef
#define SOURCE(T) (Source<T>{at<T>(x), at<const T>(g), T(beta), T(gamma), n, ef})

// f(T()) with T the element type, the GIL released.
template <class F>
inline auto typed(bool wide, F f) {
    nb::gil_scoped_release release;
    return wide ? f(double()) : f(float());
}
