// The target "XlaGpuCompiledKernel", which launches a compiled kernel, and the
// same launch for PyTorch's own CUDA tensors. Its attributes, which
// torch_xla_ext/cuda_kernels/launch.py writes, are the members of
// CompiledKernelLaunch.
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/calls/module_extensions.h"
#include "torch_xla_ext/csrc/calls/registration.h"
#include "torch_xla_ext/csrc/existing_kernels/compiled_kernel.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla_ext::compiled_kernel_target {
namespace {

namespace py = pybind11;

using xla::ffi::AnyBuffer;
using xla::ffi::Dictionary;
using xla::ffi::RemainingArgs;
using xla::ffi::RemainingRets;

constexpr char kTarget[] = "XlaGpuCompiledKernel";

template <typename T>
T Attribute(const Dictionary& attributes, const char* name) {
  const auto value = attributes.get<T>(name);
  if (value.has_value()) return *value;
  throw std::invalid_argument(std::string("attribute ") + name + ": " +
                              value.error().message() +
                              "; call it by torch_xla_ext.cuda_kernel or "
                              "torch_xla_ext.triton_call");
}

std::array<unsigned, 3> ThreeNumbers(const Dictionary& attributes,
                                     const char* name) {
  const auto values =
      Attribute<xla::ffi::Span<const int32_t>>(attributes, name);
  if (values.size() != 3) {
    throw std::invalid_argument(std::string("attribute ") + name +
                                " must have 3 numbers");
  }
  std::array<unsigned, 3> result;
  for (size_t i = 0; i < 3; ++i) {
    if (values[i] < 0) {
      throw std::invalid_argument(std::string("attribute ") + name +
                                  " must not be negative");
    }
    result[i] = static_cast<unsigned>(values[i]);
  }
  return result;
}

CompiledKernelLaunch LaunchOf(const Dictionary& attributes) {
  CompiledKernelLaunch launch;
  launch.module = Attribute<std::string_view>(attributes, "module");
  launch.digest = Attribute<std::string_view>(attributes, "digest");
  launch.kernel = Attribute<std::string_view>(attributes, "kernel");
  launch.grid = ThreeNumbers(attributes, "grid");
  launch.block = ThreeNumbers(attributes, "block");
  launch.cluster = ThreeNumbers(attributes, "cluster");
  launch.shared = Attribute<int32_t>(attributes, "shared");
  launch.cooperative = Attribute<bool>(attributes, "cooperative");
  launch.dependent = Attribute<bool>(attributes, "dependent");
  launch.spread = Attribute<bool>(attributes, "spread");
  launch.parameters = Attribute<std::string_view>(attributes, "parameters");
  return launch;
}

std::string Failure(const std::string& kernel, const std::exception& error) {
  return std::string(kTarget) + ": " + kernel + ": " + error.what();
}

XLA_FFI_Error* OnCuda(XLA_FFI_CallFrame* frame) {
  static auto* handler =
      xla::ffi::Ffi::Bind()
          .Ctx<xla::ffi::PlatformStream<CUstream>>()
          .RemainingArgs()
          .RemainingRets()
          .Attrs()
          .To(
              [](CUstream stream, RemainingArgs args, RemainingRets rets,
                 Dictionary attributes) {
                CompiledKernelLaunch launch;
                try {
                  launch = LaunchOf(attributes);
                  LaunchCompiledKernel(
                      stream, launch,
                      {args.size(),
                       [&args](size_t i) {
                         return args.get<AnyBuffer>(i)->untyped_data();
                       }},
                      {rets.size(), [&rets](size_t i) {
                         return (*rets.get<AnyBuffer>(i))->untyped_data();
                       }});
                } catch (const std::exception& error) {
                  return xla::ffi::Error::Internal(
                      Failure(launch.kernel, error));
                }
                return xla::ffi::Error::Success();
              },
              {xla::ffi::Traits::kCmdBufferCompatible})
          .release();
  return handler->Call(frame);
}

const bool registered = [] {
  RegisterTarget(kTarget, reinterpret_cast<void*>(&OnCuda), kCudaPlatform,
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
    throw std::runtime_error(Failure(launch.kernel, error));
  }
}

const bool defined = AddModuleExtension([](py::module_& module) {
  module.def("_xla_launch_compiled_kernel", &LaunchOnStream,
             py::arg("attributes"), py::arg("operands"), py::arg("results"),
             py::arg("stream"));
});

}  // namespace
}  // namespace torch_xla_ext::compiled_kernel_target
