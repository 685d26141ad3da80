// Lets parts of the library that no other code refers to add functions to the
// Python module _XLAC.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_MODULE_EXTENSIONS_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_MODULE_EXTENSIONS_H_

#include <pybind11/pybind11.h>

#include <vector>

namespace torch_xla_ext {

using ModuleExtension = void (*)(pybind11::module_& module);

// Makes DefineFunctions (bindings.h) call `define`, too. For static
// initialisers; returns true.
bool AddModuleExtension(ModuleExtension define);

const std::vector<ModuleExtension>& ModuleExtensions();

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_MODULE_EXTENSIONS_H_
