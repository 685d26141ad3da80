// Registers the target "XlaGpuCompiledKernel", and makes the same launch for
// PyTorch's own CUDA tensors.
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/launchers/compiled_kernel.h"
#include "torch_xla_ext/csrc/launchers/compiled_kernel_handler.h"
#include "torch_xla_ext/csrc/registry/module_extensions.h"
#include "torch_xla_ext/csrc/registry/registration.h"

namespace torch_xla_ext::compiled_kernel_target {
namespace {

namespace py = pybind11;

const bool registered = [] {
  RegisterTarget(kCompiledKernelTarget,
                 reinterpret_cast<void*>(&CompiledKernelOnCuda), kCudaPlatform,
                 TargetApi::kFfi);
  return true;
}();

BufferAddresses AddressesOf(const std::vector<uintptr_t>& addresses) {
  return {addresses.size(), [&addresses](size_t i) {
            return reinterpret_cast<void*>(addresses[i]);
          }};
}

// The launch without XLA, of arrays that are given by their addresses.
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

const bool defined = AddModuleExtension([](py::module_& module) {
  module.def("_xla_launch_compiled_kernel", &LaunchOnStream,
             py::arg("attributes"), py::arg("operands"), py::arg("results"),
             py::arg("stream"));
});

}  // namespace
}  // namespace torch_xla_ext::compiled_kernel_target
