// Lets parts of the library that no other code refers to add functions to the
// Python module _XLAC.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_DEFINITIONS_H_
#define TORCH_XLA_EXT_CSRC_CALLS_DEFINITIONS_H_

#include <pybind11/pybind11.h>

#include <vector>

namespace torch_xla_ext {

using Definitions = void (*)(pybind11::module_& module);

// Makes DefineFunctions (bindings.h) call `define`, too. For static
// initialisers; returns true.
bool AddDefinitions(Definitions define);

const std::vector<Definitions>& AddedDefinitions();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_DEFINITIONS_H_
