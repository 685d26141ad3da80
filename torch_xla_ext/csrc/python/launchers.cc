// Bindings for launches of compiled kernels, and for TVM-FFI functions.
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/launchers/compiled_kernel.h"
#include "torch_xla_ext/csrc/launchers/compiled_kernel_handler.h"
#include "torch_xla_ext/csrc/launchers/tvm_ffi_function.h"
#include "torch_xla_ext/csrc/launchers/tvm_ffi_handler.h"
#include "torch_xla_ext/csrc/python/subjects.h"
#include "torch_xla_ext/csrc/registry/registration.h"

namespace torch_xla_ext {
namespace {

namespace py = pybind11;

BufferAddresses AddressesOf(const std::vector<uintptr_t>& addresses) {
  return {addresses.size(), [&addresses](size_t i) {
            return reinterpret_cast<void*>(addresses[i]);
          }};
}

// Launches a kernel without XLA, on arrays that are given by their addresses.
void LaunchOnStream(const py::dict& attributes,
                    const std::vector<uintptr_t>& operands,
                    const std::vector<uintptr_t>& results, uintptr_t stream) {
  const std::string module = attributes["module"].cast<std::string>();
  const std::string digest = attributes["digest"].cast<std::string>();
  const std::string parameters = attributes["parameters"].cast<std::string>();
  using Three = std::array<unsigned, 3>;
  CompiledKernelLaunch launch;
  launch.module = module;
  launch.digest = digest;
  launch.kernel = attributes["kernel"].cast<std::string>();
  launch.grid = attributes["grid"].cast<Three>();
  launch.block = attributes["block"].cast<Three>();
  launch.cluster = attributes["cluster"].cast<Three>();
  launch.shared = attributes["shared"].cast<int>();
  launch.cooperative = attributes["cooperative"].cast<bool>();
  launch.dependent = attributes["dependent"].cast<bool>();
  launch.spread = attributes["spread"].cast<bool>();
  launch.parameters = parameters;
  try {
    const py::gil_scoped_release without_gil;
    LaunchCompiledKernel(reinterpret_cast<CUstream>(stream), launch,
                         AddressesOf(operands), AddressesOf(results));
  } catch (const std::exception& error) {
    throw std::runtime_error(CompiledKernelFailure(launch.kernel, error));
  }
}

void RegisterTvmFfi(const std::string& name, const std::string& platform,
                    uintptr_t function, std::vector<std::string> arguments,
                    bool in_graphs, std::string schema) {
  CheckPlatform(platform);
  XLA_FFI_Handler* const handler =
      HandlerOf({name, platform == kHostPlatform, function,
                 std::move(arguments), in_graphs, std::move(schema)});
  RegisterTarget(name, reinterpret_cast<void*>(handler), platform,
                 TargetApi::kFfi);
}

}  // namespace

void DefineLaunchers(py::module_& module) {
  module.def("_xla_launch_compiled_kernel", &LaunchOnStream,
             py::arg("attributes"), py::arg("operands"), py::arg("results"),
             py::arg("stream"));
  module.def("_xla_load_tvm_ffi", &tvm_ffi::LoadLibrary, py::arg("path"));
  module.def(
      "_xla_tvm_ffi_function",
      [](const std::string& library, const std::string& symbol) {
        const py::gil_scoped_release without_gil;
        return reinterpret_cast<uintptr_t>(
            tvm_ffi::FunctionOfLibrary(library, symbol).Release());
      },
      py::arg("library"), py::arg("symbol"));
  module.def("_xla_register_tvm_ffi_kernel", &RegisterTvmFfi, py::arg("name"),
             py::arg("platform"), py::arg("function"), py::arg("arguments"),
             py::arg("in_graphs"), py::arg("schema"));
}

}  // namespace torch_xla_ext
