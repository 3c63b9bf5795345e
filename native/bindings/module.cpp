#include <nanobind/nanobind.h>

#include "faults.hpp"
#include "isa.hpp"

namespace nb = nanobind;

// One function per file of this folder.
void bind_basic(nb::module_& m);
void bind_lowrank(nb::module_& m);
void bind_quantizers(nb::module_& m);
void bind_signs(nb::module_& m);
void bind_sparsifiers(nb::module_& m);

NB_MODULE(_native, m) {
    m.doc() = "GRACE's compiled kernels; call them through grace_dl.kernels, which checks the arguments.";
    m.def("isa", [] { return grace::isa_name(); }, "The instruction set in use.");
    m.def("set_isa", [](const char* name) { return grace::set_isa(name); }, "Force an instruction set by name.");
    nb::list faults;
    for (const char* message : grace::fault_messages) faults.append(message);
    m.attr("FAULTS") = nb::tuple(faults);  // by the numbers that decoders return
    bind_basic(m);
    bind_lowrank(m);
    bind_quantizers(m);
    bind_signs(m);
    bind_sparsifiers(m);
}
