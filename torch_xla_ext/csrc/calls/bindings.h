// The functions of the Python module _XLAC that make custom calls, call targets
// without XLA, and register them.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_BINDINGS_H_
#define TORCH_XLA_EXT_CSRC_CALLS_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace torch_xla_ext {

// Adds them and those of definitions.h to `module`, after the registration of
// the kernels that are linked in, and throws as that does. Functions of these
// names must not be in it: pybind11 would take the new ones for overloads.
void DefineFunctions(pybind11::module_& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_BINDINGS_H_
