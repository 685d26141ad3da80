#include "torch_xla_ext/csrc/python/bindings.h"

#include "torch_xla_ext/csrc/aten_overrides/overrides.h"
#include "torch_xla_ext/csrc/python/subjects.h"
#include "torch_xla_ext/csrc/registry/static_kernels.h"

namespace torch_xla_ext {

void DefineFunctions(pybind11::module_& module) {
  RegisterAtenOverrides();
  RegisterStaticKernels();
  DefineCustomCalls(module);
  DefineDispatcherKernels(module);
  DefineRegistry(module);
  DefineLaunchers(module);
  DefineGraph(module);
  DefinePartitioning(module);
  DefineRuntimeFixes(module);
  DefinePlugin(module);
  DefineProcess(module);
}

}  // namespace torch_xla_ext
