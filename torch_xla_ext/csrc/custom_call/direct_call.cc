#include "torch_xla_ext/csrc/custom_call/direct_call.h"

#include <stdexcept>

#include "torch_xla_ext/csrc/registry/one_result.h"
#include "torch_xla_ext/csrc/registry/registration.h"
#include "torch_xla_ext/csrc/registry/text.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {
namespace {

// The untyped ABI of API version 3. The first argument is a cudaStream_t.
using CudaTarget = void (*)(void* stream, void** buffers, const char* opaque,
                            size_t opaque_len, XlaCustomCallStatus* status);

void* FindTarget(const std::string& target, const std::string& platform) {
  void* function = CurrentFunction(target, platform, TargetApi::kUntyped);
  if (function != nullptr) return function;
  const std::vector<std::string> known = RegisteredTargets(platform);
  throw std::invalid_argument(
      "no custom-call target " + Quoted(target) + " is registered for " +
      Quoted(platform) + "; registered are: " +
      (known.empty() ? std::string("none") : Joined(known)));
}

// The kernel receives only an address, which must be in the platform's memory,
// and the data there must be row-major.
void CheckTensors(const std::string& target, const char* argument,
                  const std::vector<at::Tensor>& tensors,
                  const c10::Device& device) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = "custom call " + Quoted(target) + ": " + argument +
                             "[" + std::to_string(i) + "]";
    const at::Tensor& tensor = tensors[i];
    if (!tensor.defined() || tensor.layout() != at::kStrided ||
        tensor.device() != device) {
      throw std::invalid_argument(
          name + " must be a dense tensor on " + device.str() + ", but is " +
          (tensor.defined() ? "on " + tensor.device().str() : "undefined"));
    }
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) {
      throw std::invalid_argument(name + " must be contiguous");
    }
  }
}

// The device that the tensors must be on.
c10::Device DeviceOf(const std::string& target, const std::string& platform,
                     const std::vector<at::Tensor>& results) {
  if (platform == kHostPlatform) return c10::Device(c10::kCPU);
  if (!results.empty() && results[0].defined() && results[0].is_cuda()) {
    return results[0].device();
  }
  throw std::invalid_argument("custom call " + Quoted(target) +
                              ": results[0] must be a CUDA tensor");
}

}  // namespace

void CallTarget(const std::string& target, const std::string& platform,
                const std::vector<at::Tensor>& operands,
                const std::string& payload,
                const std::vector<at::Tensor>& results, void* stream) {
  CheckPlatform(platform);
  void* function = FindTarget(target, platform);
  const c10::Device device = DeviceOf(target, platform, results);
  CheckTensors(target, "operands", operands, device);
  CheckTensors(target, "results", results, device);

  std::vector<const void*> in;
  for (const at::Tensor& tensor : operands) {
    in.push_back(tensor.const_data_ptr());
  }
  std::vector<void*> out;
  for (const at::Tensor& tensor : results) {
    out.push_back(tensor.mutable_data_ptr());
  }
  XlaCustomCallStatus status;
  if (platform == kHostPlatform && out.size() == 1) {
    CallWithOneResult(reinterpret_cast<HostFunction>(function), target, out[0],
                      in.data(), payload.data(), payload.size(), &status);
  } else if (platform == kHostPlatform) {
    reinterpret_cast<HostFunction>(function)(
        out.data(), in.data(), payload.data(), payload.size(), &status);
  } else {
    std::vector<void*> buffers;
    for (const void* buffer : in) buffers.push_back(const_cast<void*>(buffer));
    buffers.insert(buffers.end(), out.begin(), out.end());
    reinterpret_cast<CudaTarget>(function)(
        stream, buffers.data(), payload.data(), payload.size(), &status);
  }
  if (status.message.has_value()) throw std::runtime_error(*status.message);
}

}  // namespace torch_xla_ext
