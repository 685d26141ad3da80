#include "torch_xla_ext/csrc/launchers/compiled_kernel_handler.h"

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "torch_xla_ext/csrc/launchers/compiled_kernel.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla_ext {
namespace {

using xla::ffi::AnyBuffer;
using xla::ffi::Dictionary;
using xla::ffi::RemainingArgs;
using xla::ffi::RemainingRets;

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

}  // namespace

std::string CompiledKernelFailure(const std::string& kernel,
                                  const std::exception& error) {
  return std::string(kCompiledKernelTarget) + ": " + kernel + ": " +
         error.what();
}

XLA_FFI_Error* CompiledKernelOnCuda(XLA_FFI_CallFrame* frame) {
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
                      CompiledKernelFailure(launch.kernel, error));
                }
                return xla::ffi::Error::Success();
              },
              {xla::ffi::Traits::kCmdBufferCompatible})
          .release();
  return handler->Call(frame);
}

}  // namespace torch_xla_ext
