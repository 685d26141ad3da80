// The functions of the Python module _XLAC that make custom calls, call targets
// without XLA, and register targets.
#ifndef TORCH_XLA_EXT_CSRC_PYTHON_BINDINGS_H_
#define TORCH_XLA_EXT_CSRC_PYTHON_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace torch_xla_ext {

// Registers the kernels that are linked in, throwing if that throws, and then
// adds these functions and those of definitions.h to `module`. The module must
// not have functions of these names yet: pybind11 would treat the new ones as
// overloads.
void DefineFunctions(pybind11::module_& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_PYTHON_BINDINGS_H_
