#include "torch_xla_ext/csrc/partitioning/partitioning.h"

#include <utility>

#include "torch_xla_ext/csrc/registry/registration.h"

namespace torch_xla_ext {
namespace {

// Never freed: XLA may compile until the process ends.
const PartitionFunctions* functions = nullptr;

}  // namespace

void RegisterPartitioners(PartitionFunctions given) {
  const bool is_first = functions == nullptr;
  functions = new PartitionFunctions(std::move(given));
  if (!is_first) return;
  RegisterHostPartitioner();
  if (const PJRT_Api* plugin = ClientPlugin()) {
    RegisterPluginPartitioner(plugin);
  }
}

const PartitionFunctions& GetPartitionFunctions() { return *functions; }

}  // namespace torch_xla_ext
