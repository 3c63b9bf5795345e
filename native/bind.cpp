#include "bind.hpp"

#include "isa.hpp"

NB_MODULE(_native, m) {
    m.doc() = "GRACE's compiled kernels; call them through grace_dl.kernels, which checks the arguments.";
    m.def("isa", [] { return grace::isa_name(); }, "The instruction set in use.");
    m.def("set_isa", [](const char* name) { return grace::set_isa(name); }, "Force an instruction set by name.");
    bind_dense(m);
    bind_lowrank(m);
    bind_research(m);
    bind_sparse(m);
}
