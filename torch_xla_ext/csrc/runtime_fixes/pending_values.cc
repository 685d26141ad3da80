#include "torch_xla_ext/csrc/runtime_fixes/pending_values.h"

#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/tensor.h>

#include <utility>

#include "torch_xla_ext/csrc/custom_call/shards.h"
#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"

namespace torch_xla_ext {

torch::lazy::BackendDataPtr DataOfPendingClone(
    const torch_xla::XLATensor& tensor) {
  const auto& data = tensor.data();
  if (!data->is_cloned || data->handle != nullptr || !data->ir_value) {
    return nullptr;
  }
  torch::lazy::BackendDataPtr source =
      torch::lazy::getBackend()->GetComputationDataFromNode(
          data->ir_value.node.get());
  if (source != nullptr) WaitForValue(*source);
  // The clone stays a pending clone, which the next step computes.
  return source;
}

void KeepShardedValues() {
  if (!torch_xla::UseVirtualDevice(/*force_spmd=*/false)) return;
  auto* const executor = torch_xla::XLAGraphExecutor::Get();
  for (const auto& tensor : executor->GetLiveTensors(/*device=*/nullptr)) {
    const auto& data = tensor->data();
    if (data->handle != nullptr || !data->ir_value) continue;
    torch::lazy::BackendDataPtr value = DataUnderShardings(data->ir_value);
    if (value != nullptr) tensor->SetXlaData(std::move(value));
  }
}

}  // namespace torch_xla_ext
