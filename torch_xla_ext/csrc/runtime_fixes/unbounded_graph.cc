#include "torch_xla_ext/csrc/runtime_fixes/unbounded_graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {
namespace {

using torch::lazy::Node;

// Reads the references that a node holds to its operands.
struct Operands : Node {
  static const std::vector<torch::lazy::NodePtr>& Of(const Node& node) {
    return node.*(&Operands::operands_);
  }
};

// The last compiled programs, each of which contains the previous one.
struct Chain {
  static constexpr size_t kMaxSamples = 64;

  // Nodes of the last program: weak references, which keep no buffers.
  std::vector<std::weak_ptr<Node>> samples;
  size_t size = 0;  // of the last program
  int num_growths = 0;

  // Whether most of the last program's nodes are in this one.
  bool IsContained(const std::vector<const Node*>& post_order) const {
    const std::unordered_set<const Node*> nodes(post_order.begin(),
                                                post_order.end());
    size_t found = 0;
    for (const auto& sample : samples) {
      found += nodes.count(sample.lock().get());
    }
    return !samples.empty() && 2 * found > samples.size();
  }

  void Sample(const std::vector<const Node*>& post_order) {
    samples.clear();
    size = post_order.size();
    const size_t step = std::max<size_t>(size / kMaxSamples, 1);
    for (size_t i = 0; i < size; i += step) {
      const auto& operands = Operands::Of(*post_order[i]);
      // Skip parameters, because they are in many programs.
      if (!operands.empty() && !operands[0]->operands().empty()) {
        samples.push_back(operands[0]);
      }
    }
  }
};

std::atomic<bool> has_grown = false;
std::atomic<int> num_pauses = 0;

void SetHasGrown(const char* why) {
  if (has_grown.exchange(true)) return;
  TORCH_WARN(
      why,
      " From now on, reading a value computes all that is pending, as "
      "torch_xla.sync() does, and so does the step of an optimizer. To choose "
      "where, add this line at the end of each step, in training after the "
      "optimizer's step:\n    torch_xla.sync()");
}

// The tensor if its value is pending. Null if it belongs to a step that is
// being traced, or if another thread traces: that thread's values must not be
// computed while it reads their shapes.
torch_xla::XLATensorPtr WithPendingValue(const at::Tensor& tensor) {
  if (num_pauses > 0 || OthersRead()) return {};
  auto xla_tensor = torch_xla::bridge::TryGetXlaTensor(tensor);
  if (xla_tensor == nullptr || !xla_tensor->data()->ir_value) return {};
  return xla_tensor;
}

}  // namespace

void FindGrowth(const std::vector<const Node*>& post_order) {
  static std::mutex mutex;
  static Chain& chain = *new Chain;
  if (has_grown) return;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!chain.IsContained(post_order)) {
      chain.num_growths = 0;
      chain.Sample(post_order);
      return;
    }
    // A program that is hardly larger computes a second value of the same step,
    // such as an accuracy after the loss.
    const size_t size = post_order.size();
    if (size < chain.size + chain.size / 8 + 1) return;
    chain.Sample(post_order);
    if (++chain.num_growths < 2) return;
  }
  SetHasGrown(
      "torch_xla compiled a larger program for each of the last three values "
      "that were read, because the results of earlier steps were pending.");
}

void FindPendingStep(const at::Tensor& updated) {
  if (has_grown || WithPendingValue(updated) == nullptr) return;
  SetHasGrown(
      "An optimizer starts another step while the results of its last one are "
      "still pending.");
}

void ComputePendingValues(const at::Tensor& tensor) {
  if (!has_grown) return;
  const auto xla_tensor = WithPendingValue(tensor);
  if (xla_tensor == nullptr) return;
  const torch::lazy::BackendDevice device = xla_tensor->GetDevice();
  auto* const executor = torch_xla::XLAGraphExecutor::Get();
  auto tensors = executor->GetLiveTensors(&device);
  executor->SyncTensorsGraph(&tensors, /*devices=*/{}, /*wait=*/false,
                             /*sync_ltc_data=*/true,
                             /*warm_up_cache_only=*/false);
  executor->MarkStep(device, /*reset_scope=*/true);
}

void PauseComputingPendingValues(bool begins) { num_pauses += begins ? 1 : -1; }

}  // namespace torch_xla_ext
