#include "torch_xla_ext/csrc/runtime_fixes/program_hash.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/lazy/core/hash.h>

#include <cstdlib>
#include <string>

#include "torch_xla_ext/csrc/runtime_fixes/precision_settings.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {
namespace {

size_t Hash(const std::string& text) {
  return torch::lazy::HashReduce(torch::lazy::Hash(text));
}

// Read once, as in upstream.
size_t EnvironmentHash() {
  static const size_t hash = [] {
    std::string text;
    for (const char* name :
         {"XLA_RNG_BIT_GENERATOR", "XLA_PARAMETER_WRAPPING_THREADSHOLD"}) {
      const char* value = std::getenv(name);
      text += std::string(value == nullptr ? "" : value) + '\n';
    }
    return Hash(text);
  }();
  return hash;
}

}  // namespace

void AppendProgram(const std::vector<const torch::lazy::Node*>& post_order,
                   const std::vector<torch::lazy::Value>& roots,
                   std::vector<size_t>* sequence) {
  ska::flat_hash_map<const torch::lazy::Node*, size_t> numbers;
  numbers.reserve(post_order.size());
  for (const torch::lazy::Node* node : post_order) {
    for (const torch::lazy::Output& operand : node->operands()) {
      sequence->push_back(numbers.at(operand.node));
      sequence->push_back(operand.index);
    }
    // All nodes of a program are XlaNodes.
    const auto* xla_node = static_cast<const torch_xla::XlaNode*>(node);
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      if (const auto sharding = xla_node->GetSharding(i)) {
        sequence->push_back(Hash(sharding->SerializeAsString()));
      }
    }
    numbers.emplace(node, numbers.size());
  }
  for (const torch::lazy::Value& root : roots) {
    sequence->push_back(numbers.at(root.node.get()));
    sequence->push_back(root.index);
  }
  const Precisions precisions = PrecisionSettings();
  sequence->push_back(precisions.float32_product);
  sequence->push_back(precisions.float32_convolution);
  sequence->push_back(precisions.other);
  sequence->push_back(torch_xla::UseVirtualDevice(/*force_spmd=*/false));
  sequence->push_back(EnvironmentHash());
}

}  // namespace torch_xla_ext
