// The target "XlaGpuTritonKernel", which launches a kernel that Triton
// compiled. Its attributes, which torch_xla_ext/existing_kernels/triton.py
// writes:
//   cubin       the binary
//   digest      of the binary; modules are found by it again
//   kernel      the function's name in it
//   grid        3 × i32
//   cluster     3 × i32
//   num_warps, shared (bytes)  i32
//   cooperative, dependent (programmatic dependent launch)  bool
//   parameters  words: "t0" operand 0's address, "r1" result 1's, or "x" and
//               the bytes of a number in hexadecimal
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/calls/registration.h"
#include "torch_xla_ext/csrc/existing_kernels/cuda_driver.h"
#include "xla/ffi/api/ffi.h"

namespace torch_xla_ext::triton_target {
namespace {

using xla::ffi::AnyBuffer;
using xla::ffi::Dictionary;
using xla::ffi::RemainingArgs;
using xla::ffi::RemainingRets;

constexpr char kTarget[] = "XlaGpuTritonKernel";
constexpr unsigned kThreadsPerWarp = 32;
// What a kernel may use without opting in to more.
constexpr int kDefaultSharedMemory = 48 * 1024;

template <typename T>
T Attribute(const Dictionary& attributes, const char* name) {
  const auto value = attributes.get<T>(name);
  if (value.has_value()) return *value;
  throw std::invalid_argument(std::string("attribute ") + name + ": " +
                              value.error().message() +
                              "; call it by torch_xla_ext.triton_call");
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

// While a thread captures a CUDA graph, it may load code only in the relaxed
// capture mode.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaDriver& driver) : driver_(driver) {
    driver_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  ~RelaxedCapture() { driver_.ThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaDriver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// The function, from a module that is loaded once per device context and never
// unloaded, because CUDA graphs refer to it.
CUfunction FunctionOf(const CudaDriver& driver, std::string_view digest,
                      std::string_view cubin, const std::string& kernel,
                      int shared) {
  static std::mutex& mutex = *new std::mutex;
  static auto& functions =
      *new std::map<std::pair<CUcontext, std::string>, CUfunction>;
  CUcontext context = nullptr;
  driver.Check(driver.CtxGetCurrent(&context), "cuCtxGetCurrent");
  const std::lock_guard<std::mutex> lock(mutex);
  CUfunction& function = functions[{context, std::string(digest)}];
  if (function != nullptr) return function;
  const RelaxedCapture relaxed(driver);
  const std::string image(
      cubin);  // a copy with the alignment that the driver needs
  CUmodule module = nullptr;
  CUfunction found = nullptr;
  driver.Check(driver.ModuleLoadData(&module, image.data()),
               "cuModuleLoadData");
  try {
    driver.Check(driver.ModuleGetFunction(&found, module, kernel.c_str()),
                 "cuModuleGetFunction");
    if (shared > kDefaultSharedMemory) {
      driver.Check(
          driver.FuncSetAttribute(
              found, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared),
          "cuFuncSetAttribute for shared memory");
    }
  } catch (...) {
    driver.ModuleUnload(module);
    throw;
  }
  return function = found;
}

// The kernel's parameters, and the array of their addresses that CUDA takes.
class Parameters {
 public:
  Parameters(std::string_view text, const RemainingArgs& args,
             const RemainingRets& rets) {
    while (!text.empty()) {
      const size_t end = std::min(text.find(' '), text.size());
      values_.push_back(Value(text.substr(0, end), args, rets));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    for (uint64_t& value : values_) addresses_.push_back(&value);
  }

  void** addresses() { return addresses_.data(); }

 private:
  static uint64_t Value(std::string_view word, const RemainingArgs& args,
                        const RemainingRets& rets) {
    const std::string digits(word.substr(std::min<size_t>(1, word.size())));
    if (word[0] == 'x' && digits.size() <= 16) {
      uint64_t value = 0;  // the bytes in memory order
      for (size_t i = 0; 2 * i < digits.size(); ++i) {
        const uint64_t byte =
            std::strtoul(digits.substr(2 * i, 2).c_str(), nullptr, 16);
        value |= byte << (8 * i);
      }
      return value;
    }
    const size_t index = std::strtoul(digits.c_str(), nullptr, 10);
    if (word[0] == 't' && index < args.size()) {
      return reinterpret_cast<uint64_t>(
          args.get<AnyBuffer>(index)->untyped_data());
    }
    if (word[0] == 'r' && index < rets.size()) {
      return reinterpret_cast<uint64_t>(
          (*rets.get<AnyBuffer>(index))->untyped_data());
    }
    throw std::invalid_argument("attribute parameters: \"" + std::string(word) +
                                "\" is not an operand, result or number");
  }

  std::vector<uint64_t> values_;
  std::vector<void*> addresses_;
};

void Launch(CUstream stream, const RemainingArgs& args,
            const RemainingRets& rets, const Dictionary& attributes,
            const std::string& kernel) {
  const auto grid = ThreeNumbers(attributes, "grid");
  const auto cluster = ThreeNumbers(attributes, "cluster");
  const int shared = Attribute<int32_t>(attributes, "shared");
  const int num_warps = Attribute<int32_t>(attributes, "num_warps");
  Parameters parameters(Attribute<std::string_view>(attributes, "parameters"),
                        args, rets);
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return;
  const CudaDriver& driver = GetCudaDriver();

  // Like in Triton's own launcher, the grid is given in clusters.
  CUlaunchConfig config = {};
  config.gridDimX = grid[0] * cluster[0];
  config.gridDimY = grid[1] * cluster[1];
  config.gridDimZ = grid[2] * cluster[2];
  config.blockDimX = kThreadsPerWarp * static_cast<unsigned>(num_warps);
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(shared);
  config.hStream = stream;
  std::array<CUlaunchAttribute, 4> launch = {};
  config.attrs = launch.data();
  if (Attribute<bool>(attributes, "dependent")) {
    CUlaunchAttribute& next = launch[config.numAttrs++];
    next.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    next.value.programmaticStreamSerializationAllowed = 1;
  }
  if (Attribute<bool>(attributes, "cooperative")) {
    CUlaunchAttribute& next = launch[config.numAttrs++];
    next.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    next.value.cooperative = 1;
  }
  if (cluster[0] * cluster[1] * cluster[2] > 1) {
    CUlaunchAttribute& size = launch[config.numAttrs++];
    size.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    size.value.clusterDim.x = cluster[0];
    size.value.clusterDim.y = cluster[1];
    size.value.clusterDim.z = cluster[2];
    CUlaunchAttribute& policy = launch[config.numAttrs++];
    policy.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
    policy.value.clusterSchedulingPolicyPreference =
        CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
  }
  CUfunction function = FunctionOf(
      driver, Attribute<std::string_view>(attributes, "digest"),
      Attribute<std::string_view>(attributes, "cubin"), kernel, shared);
  driver.Check(
      driver.LaunchKernelEx(&config, function, parameters.addresses(), nullptr),
      "cuLaunchKernelEx");
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
                std::string kernel;
                try {
                  kernel = Attribute<std::string_view>(attributes, "kernel");
                  Launch(stream, args, rets, attributes, kernel);
                } catch (const std::exception& error) {
                  return xla::ffi::Error::Internal(std::string(kTarget) + ": " +
                                                   kernel + ": " +
                                                   error.what());
                }
                return xla::ffi::Error::Success();
              },
              {xla::ffi::Traits::kCmdBufferCompatible})
          .release();
  return handler->Call(frame);
}

const bool registered = [] {
  RegisterTarget(kTarget, reinterpret_cast<void*>(&OnCuda), kCudaPlatform,
                 TargetApi::kTyped);
  return true;
}();

}  // namespace
}  // namespace torch_xla_ext::triton_target
