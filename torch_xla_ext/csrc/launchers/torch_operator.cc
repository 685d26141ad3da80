#include "torch_xla_ext/csrc/launchers/torch_operator.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <exception>
#include <optional>
#include <stdexcept>

#include "torch_xla_ext/csrc/launchers/torch_operator_arguments.h"

namespace torch_xla_ext {
namespace {

// Holds the GIL, also while a Python exception is handled: an exception that
// leaves the frame in which a thread first took the GIL is lost.
class MaybeGil {
 public:
  explicit MaybeGil(bool take) : taken_(take) {
    if (taken_) state_ = PyGILState_Ensure();
  }
  ~MaybeGil() {
    if (taken_) PyGILState_Release(state_);
  }
  MaybeGil(const MaybeGil&) = delete;
  MaybeGil& operator=(const MaybeGil&) = delete;

 private:
  bool taken_;
  PyGILState_STATE state_ = {};
};

// Wraps XLA's stream as torch's: c10::cuda::getStreamFromExternal, without
// CUDA's headers and libraries. The id of an external stream is its address,
// which is even (c10/cuda/CUDAStream.cpp).
c10::Stream ExternalStream(c10::Device device, void* stream) {
  return c10::Stream(
      c10::Stream::UNSAFE, device,
      static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(stream)));
}

// The dispatch keys of a new thread, without autograd: the thread on which XLA
// runs the call may be in the middle of its own tracing.
c10::impl::ForceDispatchKeyGuard BelowAutograd() {
  return c10::impl::ForceDispatchKeyGuard(
      c10::default_included_set.remove(c10::DispatchKey::ADInplaceOrView),
      c10::default_excluded_set |
          c10::autograd_dispatch_keyset_with_ADInplaceOrView);
}

// An in-place or out= kernel must have left its tensors where they are.
void CheckResultsStayed(const std::vector<at::Tensor>& results,
                        const std::vector<const void*>& buffers,
                        const std::vector<std::vector<int64_t>>& sizes) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].const_data_ptr() != buffers[i] ||
        results[i].sizes() != c10::IntArrayRef(sizes[i])) {
      throw std::runtime_error(
          "its result " + std::to_string(i) +
          " has a different shape than its fake function returned");
    }
  }
}

void Run(const OperatorCall& call) {
  const auto below_autograd = BelowAutograd();
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {std::string(call.name), std::string(call.overload)});
  if (!handle.has_value()) {
    throw std::runtime_error(
        "torch has no such operator in this process; import the package that "
        "defines it");
  }
  torch::jit::Stack stack = ReadArguments(handle->schema(), call);
  std::vector<const void*> buffers;
  std::vector<std::vector<int64_t>> sizes;
  for (const at::Tensor& result : call.results) {
    buffers.push_back(result.const_data_ptr());
    sizes.push_back(result.sizes().vec());
  }
  handle->callBoxed(stack);
  CheckResultsStayed(call.results, buffers, sizes);
  StoreReturns(stack, call);
}

std::string RunCatching(const OperatorCall& call) {
  try {
    Run(call);
    return "";
  } catch (python_error& error) {
    const MaybeGil gil(true);
    error.persist();
    const std::string text = error.what();
    return text.empty() ? "an exception of Python" : text;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

c10::Device CurrentCudaDevice() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    throw std::runtime_error(
        "PyTorch operators run on the GPU only with a CUDA build of torch, "
        "which this process does not have; install torch 2.8.0 from the "
        "package "
        "index (docs/launchers.md)");
  }
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice();
}

at::Tensor TensorOnBuffer(void* data, c10::IntArrayRef sizes,
                          at::ScalarType dtype, c10::Device device) {
  return at::for_blob(data, sizes)
      .options(at::TensorOptions().dtype(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

std::string RunTorchOperator(const OperatorCall& call, void* stream) {
  const MaybeGil gil(call.is_python);
  std::optional<c10::StreamGuard> guard;
  if (call.device.is_cuda()) guard.emplace(ExternalStream(call.device, stream));
  const std::string text = RunCatching(call);
  if (text.empty()) return "";
  std::string name(call.name);
  if (!call.overload.empty()) name += "." + std::string(call.overload);
  return name + ": " + text;
}

}  // namespace torch_xla_ext
