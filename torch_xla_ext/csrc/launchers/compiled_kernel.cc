#include "torch_xla_ext/csrc/launchers/compiled_kernel.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "torch_xla_ext/csrc/launchers/cuda_driver.h"
#include "torch_xla_ext/csrc/launchers/tensor_map.h"

namespace torch_xla_ext {
namespace {

// The largest cluster of a kernel that has not opted in to larger ones.
constexpr unsigned kPortableClusterSize = 8;

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

// A function of a module that is loaded once per device context and never
// unloaded, because CUDA graphs refer to it.
struct LoadedFunction {
  CUfunction function = nullptr;
  // The function's limit of dynamic shared memory. A launch that needs more
  // raises it.
  int shared_limit = 0;
  bool large_clusters = false;
};

LoadedFunction Load(const CudaDriver& driver, std::string_view module,
                    const std::string& kernel) {
  const RelaxedCapture relaxed(driver);
  // A copy with the alignment that the driver needs, and for PTX with a null
  // byte at the end.
  const std::string image(module);
  std::array<char, 4096> log = {};
  std::array<CUjit_option, 2> options = {CU_JIT_ERROR_LOG_BUFFER,
                                         CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  std::array<void*, 2> values = {log.data(),
                                 reinterpret_cast<void*>(log.size())};
  CUmodule loaded = nullptr;
  const CUresult result = driver.ModuleLoadDataEx(
      &loaded, image.c_str(), options.size(), options.data(), values.data());
  if (result != CUDA_SUCCESS && log[0] != '\0') {
    throw std::runtime_error(driver.Text(result, "cuModuleLoadDataEx") + ": " +
                             log.data());
  }
  driver.Check(result, "cuModuleLoadDataEx");
  LoadedFunction found;
  try {
    driver.Check(
        driver.ModuleGetFunction(&found.function, loaded, kernel.c_str()),
        "cuModuleGetFunction");
    driver.Check(
        driver.FuncGetAttribute(&found.shared_limit,
                                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                found.function),
        "cuFuncGetAttribute for shared memory");
  } catch (...) {
    driver.ModuleUnload(loaded);
    throw;
  }
  return found;
}

// Returns the function, prepared for the launch's shared memory and clusters.
CUfunction FunctionOf(const CudaDriver& driver,
                      const CompiledKernelLaunch& launch,
                      unsigned cluster_size) {
  using Functions = std::map<std::string, LoadedFunction, std::less<>>;
  static std::mutex& mutex = *new std::mutex;
  static auto& contexts = *new std::map<CUcontext, Functions>;
  CUcontext context = nullptr;
  driver.Check(driver.CtxGetCurrent(&context), "cuCtxGetCurrent");
  const std::lock_guard<std::mutex> lock(mutex);
  Functions& functions = contexts[context];
  auto found = functions.find(launch.digest);
  if (found == functions.end()) {
    LoadedFunction loaded = Load(driver, launch.module, launch.kernel);
    found = functions.emplace(launch.digest, loaded).first;
  }
  LoadedFunction& function = found->second;
  if (launch.shared > function.shared_limit) {
    driver.Check(
        driver.FuncSetAttribute(function.function,
                                CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                launch.shared),
        "cuFuncSetAttribute for shared memory");
    function.shared_limit = launch.shared;
  }
  if (cluster_size > kPortableClusterSize && !function.large_clusters) {
    driver.Check(driver.FuncSetAttribute(
                     function.function,
                     CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
                 "cuFuncSetAttribute for clusters of more than 8 blocks");
    function.large_clusters = true;
  }
  return function.function;
}

unsigned Nibble(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  throw std::invalid_argument("attribute parameters: no hexadecimal digit: " +
                              std::string(1, digit));
}

std::string BytesOf(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes += static_cast<char>(Nibble(digits[i]) << 4 | Nibble(digits[i + 1]));
  }
  return bytes;
}

// The kernel's parameters, and the array of their addresses that CUDA expects.
class Parameters {
 public:
  Parameters(std::string_view text, const BufferAddresses& operands,
             const BufferAddresses& results) {
    std::vector<size_t> begins;
    while (!text.empty()) {
      const std::string_view word = text.substr(0, text.find(' '));
      begins.push_back(words_.size());
      Append(word, operands, results);
      text.remove_prefix(std::min(word.size() + 1, text.size()));
    }
    addresses_.reserve(begins.size());
    for (const size_t begin : begins) addresses_.push_back(&words_[begin]);
  }

  void** addresses() { return addresses_.data(); }

 private:
  void Append(std::string_view word, const BufferAddresses& operands,
              const BufferAddresses& results) {
    if (word.size() > 1 && word[0] == 'x' && word.size() % 2 == 1) {
      return AppendBytes(BytesOf(word.substr(1)));
    }
    if (const size_t colon = word.find(':');
        !word.empty() && word[0] == 'm' && colon != word.npos) {
      const CUtensorMap map =
          MakeTensorMap(GetCudaDriver(), BytesOf(word.substr(colon + 1)),
                        Address(word.substr(1, colon - 1), operands, results));
      return AppendBytes({reinterpret_cast<const char*>(&map), sizeof map});
    }
    words_.push_back(
        reinterpret_cast<uint64_t>(Address(word, operands, results)));
  }

  // The address of the operand or result that a word names.
  static void* Address(std::string_view word, const BufferAddresses& operands,
                       const BufferAddresses& results) {
    const bool is_operand = !word.empty() && word[0] == 't';
    const BufferAddresses& buffers = is_operand ? operands : results;
    const std::string digits(word.substr(std::min<size_t>(1, word.size())));
    const size_t index = std::strtoul(digits.c_str(), nullptr, 10);
    if (digits.empty() || (!is_operand && word[0] != 'r') ||
        index >= buffers.size) {
      throw std::invalid_argument("attribute parameters: \"" +
                                  std::string(word) +
                                  "\" is not an operand, result or value");
    }
    return buffers.address(index);
  }

  void AppendBytes(std::string_view bytes) {
    const size_t begin = words_.size();
    words_.resize(begin +
                  (bytes.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    std::memcpy(&words_[begin], bytes.data(), bytes.size());
  }

  std::vector<uint64_t> words_;
  std::vector<void*> addresses_;
};

}  // namespace

void LaunchCompiledKernel(CUstream stream, const CompiledKernelLaunch& launch,
                          const BufferAddresses& operands,
                          const BufferAddresses& results) {
  Parameters parameters(launch.parameters, operands, results);
  const auto& [grid_x, grid_y, grid_z] = launch.grid;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0) return;
  const CudaDriver& driver = GetCudaDriver();
  CUlaunchConfig config = {};
  config.gridDimX = grid_x;
  config.gridDimY = grid_y;
  config.gridDimZ = grid_z;
  config.blockDimX = launch.block[0];
  config.blockDimY = launch.block[1];
  config.blockDimZ = launch.block[2];
  config.sharedMemBytes = static_cast<unsigned>(launch.shared);
  config.hStream = stream;
  std::array<CUlaunchAttribute, 4> attributes = {};
  config.attrs = attributes.data();
  if (launch.dependent) {
    CUlaunchAttribute& next = attributes[config.numAttrs++];
    next.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    next.value.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cooperative) {
    CUlaunchAttribute& next = attributes[config.numAttrs++];
    next.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    next.value.cooperative = 1;
  }
  const unsigned cluster_size =
      launch.cluster[0] * launch.cluster[1] * launch.cluster[2];
  if (cluster_size > 1) {
    CUlaunchAttribute& size = attributes[config.numAttrs++];
    size.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    size.value.clusterDim.x = launch.cluster[0];
    size.value.clusterDim.y = launch.cluster[1];
    size.value.clusterDim.z = launch.cluster[2];
  }
  if (cluster_size > 1 && launch.spread) {
    CUlaunchAttribute& policy = attributes[config.numAttrs++];
    policy.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
    policy.value.clusterSchedulingPolicyPreference =
        CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
  }
  CUfunction function = FunctionOf(driver, launch, cluster_size);
  driver.Check(
      driver.LaunchKernelEx(&config, function, parameters.addresses(), nullptr),
      "cuLaunchKernelEx");
}

}  // namespace torch_xla_ext
