#include "torch_xla_ext/csrc/launchers/tvm_ffi_handler.h"

#include <array>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/launchers/cuda_driver.h"
#include "torch_xla_ext/csrc/launchers/tvm_ffi_arguments.h"
#include "torch_xla_ext/csrc/launchers/tvm_ffi_function.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla_ext {

// The undecoded attributes of a call: their types are not known in advance.
struct RawAttributes {
  const XLA_FFI_Attrs* attrs;
};

}  // namespace torch_xla_ext

template <>
struct xla::ffi::AttrDecoding<torch_xla_ext::RawAttributes> {
  using Type = torch_xla_ext::RawAttributes;
  static std::optional<Type> Decode(XLA_FFI_AttrType, void* attr,
                                    DiagnosticEngine&) {
    return Type{static_cast<const XLA_FFI_Attrs*>(attr)};
  }
};

namespace torch_xla_ext {
namespace {

using xla::ffi::Ffi;
using xla::ffi::RemainingArgs;
using xla::ffi::RemainingRets;

struct Kernel : TvmFfiKernel {
  std::vector<tvm_ffi::Word> words;
};

tvm_ffi::Device DeviceOf(const Kernel& kernel) {
  if (kernel.on_host) return {tvm_ffi::kCpu, 0};
  const CudaDriver& driver = GetCudaDriver();
  CUdevice device = 0;
  driver.Check(driver.CtxGetDevice(&device), "cuCtxGetDevice");
  return {tvm_ffi::kCuda, device};
}

void Run(const Kernel& kernel, void* stream, const RemainingArgs& args,
         const RemainingRets& rets, const XLA_FFI_Attrs& attrs) {
  const tvm_ffi::Device device = DeviceOf(kernel);
  const tvm_ffi::Arguments arguments(kernel.words, device, args, rets, attrs);
  const tvm_ffi::Environment environment(device, stream);
  const tvm_ffi::Reference returned = tvm_ffi::Call(
      reinterpret_cast<tvm_ffi::Object*>(kernel.function), arguments.values());
  const tvm_ffi::Object* object = returned.get();
  if (object == nullptr || object->type_index != tvm_ffi::kTensorObject) return;
  const auto* tensor = reinterpret_cast<const tvm_ffi::TensorObject*>(object);
  if (arguments.HasResultAt(tensor->tensor.data)) return;
  throw std::runtime_error(
      "it returned a tensor of its own; only functions that write their "
      "results to arguments can be called");
}

xla::ffi::Error RunCatching(const Kernel& kernel, void* stream,
                            const RemainingArgs& args,
                            const RemainingRets& rets,
                            const XLA_FFI_Attrs& attrs) {
  try {
    Run(kernel, stream, args, rets, attrs);
    return xla::ffi::Error::Success();
  } catch (const std::exception& error) {
    return xla::ffi::Error::Internal(kernel.name + ": " + error.what());
  }
}

std::unique_ptr<Ffi> MakeHandler(const Kernel* kernel) {
  if (kernel->on_host) {
    return Ffi::Bind()
        .RemainingArgs()
        .RemainingRets()
        .Attrs<RawAttributes>()
        .To([kernel](RemainingArgs args, RemainingRets rets,
                     RawAttributes raw) {
          return RunCatching(*kernel, nullptr, args, rets, *raw.attrs);
        });
  }
  const auto run = [kernel](void* stream, RemainingArgs args,
                            RemainingRets rets, RawAttributes raw) {
    return RunCatching(*kernel, stream, args, rets, *raw.attrs);
  };
  auto binding = Ffi::Bind()
                     .Ctx<xla::ffi::PlatformStream<void*>>()
                     .RemainingArgs()
                     .RemainingRets()
                     .Attrs<RawAttributes>();
  if (!kernel->in_graphs) return std::move(binding).To(run);
  return std::move(binding).To(run, {xla::ffi::Traits::kCmdBufferCompatible});
}

constexpr size_t kMaxTargets = 1024;

// The handlers that the C functions below call, indexed by the function's
// number. Each is written once, before XLA knows the function.
std::array<Ffi*, kMaxTargets> handlers = {};

template <size_t number>
XLA_FFI_Error* CallHandler(XLA_FFI_CallFrame* frame) {
  return handlers[number]->Call(frame);
}

template <size_t... numbers>
constexpr std::array<XLA_FFI_Handler*, sizeof...(numbers)> MakeFunctions(
    std::index_sequence<numbers...>) {
  return {&CallHandler<numbers>...};
}

constexpr auto kFunctions =
    MakeFunctions(std::make_index_sequence<kMaxTargets>());

}  // namespace

XLA_FFI_Handler* HandlerOf(TvmFfiKernel kernel) {
  static std::mutex& mutex = *new std::mutex;
  static auto& kernels = *new std::vector<std::unique_ptr<Kernel>>;
  std::vector<tvm_ffi::Word> words;
  for (const std::string& word : kernel.arguments) {
    words.push_back(tvm_ffi::Word::Parse(word));
  }
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (*kernels[i] == kernel) return kFunctions[i];
  }
  if (kernels.size() == kMaxTargets) {
    throw std::runtime_error("custom-call target " + kernel.name +
                             ": this process has " +
                             std::to_string(kMaxTargets) +
                             " TVM-FFI targets already, which is the limit");
  }
  kernels.push_back(
      std::make_unique<Kernel>(Kernel{std::move(kernel), std::move(words)}));
  handlers[kernels.size() - 1] = MakeHandler(kernels.back().get()).release();
  return kFunctions[kernels.size() - 1];
}

}  // namespace torch_xla_ext
