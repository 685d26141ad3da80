#include "torch_xla_ext/csrc/runtime/growing_programs.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>

namespace torch_xla_ext {
namespace {

using torch::lazy::Node;

// Reads the references that a node holds to its operands.
struct Operands : Node {
  static const std::vector<torch::lazy::NodePtr>& Of(const Node& node) {
    return node.*(&Operands::operands_);
  }
};

// Programs that contain one another, as far as they were compiled.
struct Chain {
  static constexpr size_t kMaxSamples = 64;

  // Nodes of the last program: weak references, which keep no buffers.
  std::vector<std::weak_ptr<Node>> samples;
  size_t size = 0;    // of the last program
  size_t growth = 0;  // from the last program but one
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
      // A parameter is in many programs.
      if (!operands.empty() && !operands[0]->operands().empty()) {
        samples.push_back(operands[0]);
      }
    }
  }
};

// Equal but for what differs in the first step, such as an optimizer's state.
bool AboutEqual(size_t a, size_t b) {
  return std::max(a, b) - std::min(a, b) <= std::max(a, b) / 4;
}

}  // namespace

void CheckIsNotGrowing(const std::vector<const Node*>& post_order) {
  static std::mutex mutex;
  static Chain& chain = *new Chain;
  static bool has_warned = false;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (has_warned) return;
    if (!chain.IsContained(post_order)) {
      chain.growth = 0;
      chain.num_growths = 0;
      chain.Sample(post_order);
      return;
    }
    const size_t size = post_order.size();
    // A second value of one step, such as an accuracy after the loss.
    if (size < chain.size + chain.growth / 2 + 1) return;
    const size_t growth = size - chain.size;
    chain.num_growths =
        AboutEqual(growth, chain.growth) ? chain.num_growths + 1 : 1;
    chain.growth = growth;
    chain.Sample(post_order);
    if (chain.num_growths < 3) return;
    has_warned = true;
  }
  TORCH_WARN(
      "torch_xla compiles a larger program in each step of a loop: each of the "
      "last 3 repeated the operations of the one before and had about ",
      chain.growth,
      " more, because the values of earlier steps are still pending. Add this "
      "line at the end of each step, in training after the optimizer's "
      "step:\n    torch_xla.sync()");
}

}  // namespace torch_xla_ext
