// Interposes on functions that keep values for the whole process in maps that
// have no lock: the tokens of collective operations, the counters of operators
// that run on the CPU, and what `torch_xla.compile(max_different_graphs=…)` has
// traced.
//
// This works because the upstream binary calls all of them through its PLT. The
// upstream functions are called from here, but DynamicShapeDetector::Get.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/all_reduce_tokens.h"
#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"

namespace torch_xla {

const torch::lazy::Value& GetAllReduceToken(
    const torch::lazy::BackendDevice& device) {
  static const auto upstream = UpstreamFunction(&GetAllReduceToken);
  const torch_xla_ext::TensorLock lock;
  return torch_xla_ext::KeptToken(upstream(device));
}

void SetAllReduceToken(const torch::lazy::BackendDevice& device,
                       const std::shared_ptr<torch::lazy::Value>& token) {
  static const auto upstream = UpstreamFunction(&SetAllReduceToken);
  const torch_xla_ext::TensorLock lock;
  upstream(device, token);
  torch_xla_ext::DropToken();
}

namespace {

std::mutex& CountersMutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

// Held by this thread while xla_fallback counts the operator.
thread_local std::unique_lock<std::mutex>* counting = nullptr;

}  // namespace

void xla_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto upstream = UpstreamFunction(&xla_fallback);
  std::unique_lock<std::mutex> lock(CountersMutex());
  counting = &lock;
  upstream(op, stack);
}

// What xla_fallback calls next.
bool UseOpenXLAFallbackOnCUDA(const c10::OperatorHandle& op) {
  static const auto upstream = UpstreamFunction(&UseOpenXLAFallbackOnCUDA);
  if (counting != nullptr) {
    counting->unlock();
    counting = nullptr;
  }
  return upstream(op);
}

std::vector<std::string> GetFallbackOperations() {
  static const auto upstream = UpstreamFunction(&GetFallbackOperations);
  const std::lock_guard<std::mutex> lock(CountersMutex());
  return upstream();
}

// As in upstream, whose values have another type. An empty map looks the same
// with values of any type.
class DynamicShapeDetector {
 public:
  // A thread's own detector. Upstream has one for all threads: while one thread
  // was in its function, the operations of another were taken for that
  // function's.
  static DynamicShapeDetector* Get();
  ~DynamicShapeDetector();  // upstream's

 private:
  union {
    std::unordered_map<std::string, int> session_infos_{};
  };
  void* current_session_ = nullptr;
  void* builder_node_ = nullptr;
  size_t builder_matched_ = 0;
};
static_assert(sizeof(std::unordered_map<std::string, int>) == 56);

DynamicShapeDetector* DynamicShapeDetector::Get() {
  static thread_local DynamicShapeDetector detector;
  return &detector;
}

}  // namespace torch_xla
