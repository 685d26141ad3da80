#include "torch_xla_ext/csrc/graph/uncompiled_program.h"

#include <memory>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::graph {

std::optional<UncompiledProgram> UncompiledProgram::Of(
    const std::vector<at::Tensor>& tensors, const torch::lazy::hash_t& hash) {
  std::vector<torch_xla::XLATensorPtr> xla_tensors;
  xla_tensors.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    xla_tensors.push_back(torch_xla::bridge::TryGetXlaTensor(tensor));
  }
  LoweringScope scope;
  try {
    torch_xla::XLAGraphExecutor::Get()->SyncTensorsGraph(
        &xla_tensors, {}, /*wait=*/false, /*sync_ltc_data=*/false,
        /*warm_up_cache_only=*/true);
  } catch (const OnlyLowered&) {
    return UncompiledProgram(std::move(scope.compile), hash);
  }
  return std::nullopt;
}

void UncompiledProgram::Compile() {
  using Executor = torch_xla::XLAGraphExecutor;
  using Computation = torch_xla::runtime::ComputationClient::Computation;
  const CompileFunction compile = std::exchange(compile_, nullptr);
  auto computation = std::static_pointer_cast<Computation>(compile());
  Executor::Get()->GetComputationCache()->Add(
      hash_, std::make_shared<Executor::CachedComputation>(
                 std::move(computation),
                 torch_xla::UseVirtualDevice(/*force_spmd=*/false)));
}

}  // namespace torch_xla_ext::graph
