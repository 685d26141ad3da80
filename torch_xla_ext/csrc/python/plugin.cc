// Bindings for the PJRT plugin, and for the options of programs that it
// compiles.
#include <torch/csrc/utils/pybind.h>

#include <string>

#include "torch_xla_ext/csrc/pjrt_shim/compile_options.h"
#include "torch_xla_ext/csrc/pjrt_shim/shim.h"
#include "torch_xla_ext/csrc/python/subjects.h"

namespace torch_xla_ext {

namespace py = pybind11;

void DefinePlugin(py::module_& module) {
  module.def(
      "_xla_load_pjrt_plugin",
      [](const std::string& path) {
        const pjrt_shim::PluginInfo& info = pjrt_shim::Load(path);
        return py::make_tuple(info.major, info.minor);
      },
      py::arg("path"),
      "Loads the PJRT plugin that the shim in this library stands in front "
      "of. Returns its API version, (major, minor). Raises RuntimeError if "
      "torch_xla cannot use it.");
  module.def("_xla_compile_options",
             [] { return py::bytes(pjrt_shim::CompileOptions()); });
  module.def(
      "_xla_set_compile_options",
      [](const py::bytes& fields) { pjrt_shim::SetCompileOptions(fields); },
      py::arg("fields"));
}

}  // namespace torch_xla_ext
