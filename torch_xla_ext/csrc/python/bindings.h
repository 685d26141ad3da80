// This project's additions to torch_xla's Python module _XLAC. The front
// library and patches/ call this function.
#ifndef TORCH_XLA_EXT_CSRC_PYTHON_BINDINGS_H_
#define TORCH_XLA_EXT_CSRC_PYTHON_BINDINGS_H_

#include <pybind11/pybind11.h>

namespace torch_xla_ext {

// Registers the overrides of PyTorch's operators and the kernels that are
// linked in, then adds the functions and classes of this folder to `module`.
// Throws if a registration throws. The module must not have functions of these
// names yet: pybind11 would treat the new ones as overloads.
void DefineFunctions(pybind11::module_& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_PYTHON_BINDINGS_H_
