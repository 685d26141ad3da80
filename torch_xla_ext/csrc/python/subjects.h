// The functions of bindings.h, by subject: one file each.
#ifndef TORCH_XLA_EXT_CSRC_PYTHON_SUBJECTS_H_
#define TORCH_XLA_EXT_CSRC_PYTHON_SUBJECTS_H_

#include <pybind11/pybind11.h>

namespace torch_xla_ext {

void DefineCustomCalls(pybind11::module_& module);
void DefineDispatcherKernels(pybind11::module_& module);
void DefineGraph(pybind11::module_& module);
void DefineLaunchers(pybind11::module_& module);
void DefinePartitioning(pybind11::module_& module);
void DefinePlugin(pybind11::module_& module);
void DefineProcess(pybind11::module_& module);
void DefineRegistry(pybind11::module_& module);
void DefineRuntimeFixes(pybind11::module_& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_PYTHON_SUBJECTS_H_
