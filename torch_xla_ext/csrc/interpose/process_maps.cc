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
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/dynamic_shape_detector.h"
#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/all_reduce_tokens.h"
#include "torch_xla_ext/csrc/runtime_fixes/fallback_counters.h"
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

void xla_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto upstream = UpstreamFunction(&xla_fallback);
  const torch_xla_ext::FallbackCounters counters;
  upstream(op, stack);
}

// What xla_fallback calls when it has counted the operator.
bool UseOpenXLAFallbackOnCUDA(const c10::OperatorHandle& op) {
  static const auto upstream = UpstreamFunction(&UseOpenXLAFallbackOnCUDA);
  torch_xla_ext::FallbackCounters::Unlock();
  return upstream(op);
}

std::vector<std::string> GetFallbackOperations() {
  static const auto upstream = UpstreamFunction(&GetFallbackOperations);
  const torch_xla_ext::FallbackCounters counters;
  return upstream();
}

// A thread's own detector. Upstream has one for all threads: while one thread
// was in its function, the operations of another were taken for that
// function's.
DynamicShapeDetector* DynamicShapeDetector::Get() {
  static thread_local DynamicShapeDetector detector;
  return &detector;
}

}  // namespace torch_xla
