#include "bind.hpp"

void bind_sparse(nb::module_&) {}
