#include "torch_xla_ext/csrc/graph/saved_state.h"

#include <utility>

namespace torch_xla_ext::graph {

SavedState::SavedState()
    // Tensors are numbered in the order of their creation.
    : first_new_id_(
          torch::lazy::LazyTensor::Data(torch_xla::bridge::GetCurrentDevice())
              .unique_id) {}

void SavedState::Save(const at::Tensor& tensor,
                      const torch_xla::XLATensorPtr& base) {
  Storage* const storage = StorageOf(tensor);
  torch::lazy::BackendDataPtr data = DataOf(base);
  if (owners_.count(data.get()) > 0) {
    // The data is shared, for example with a clone that has not been computed
    // yet.
    data = CopyOf(data, storage->base().scalar_type());
  }
  // A view that was made earlier has its own values or pending operations. They
  // would become a constant in the trace.
  SetData(storage, base, data);
  owners_.emplace(data.get(), storage);
  saved_.emplace(storage, Saved{tensor.tensor_data(), std::move(data)});
}

bool SavedState::Add(const at::Tensor& tensor) {
  // Otherwise the trace would begin by recomputing the view from its base.
  at::functionalization::impl::sync(tensor);
  Storage* const storage = StorageOf(tensor);
  if (saved_.count(storage) > 0) return false;
  const torch_xla::XLATensorPtr base = BaseOf(storage);
  if (base->GetUniqueId() >= first_new_id_) return false;
  if (DataOf(base) == nullptr) Materialize({base});
  Save(tensor, base);
  return true;
}

void SavedState::AddAll(const std::vector<at::Tensor>& tensors) {
  std::vector<torch_xla::XLATensorPtr> pending;
  for (const at::Tensor& tensor : tensors) {
    const torch_xla::XLATensorPtr base = BaseOf(StorageOf(tensor));
    if (DataOf(base) == nullptr) pending.push_back(base);
  }
  if (!pending.empty()) Materialize(std::move(pending));
  for (const at::Tensor& tensor : tensors) Add(tensor);
}

uintptr_t SavedState::DataAddress(const at::Tensor& tensor) const {
  const auto found = saved_.find(StorageOf(tensor));
  return found == saved_.end()
             ? 0
             : reinterpret_cast<uintptr_t>(found->second.data.get());
}

bool SavedState::IsWritten(const at::Tensor& tensor) const {
  Storage* const storage = StorageOf(tensor);
  const auto found = saved_.find(storage);
  return found != saved_.end() && DataOf(BaseOf(storage)) != found->second.data;
}

at::Tensor SavedState::Before(const at::Tensor& tensor) const {
  Storage* const storage = StorageOf(tensor);
  return torch_xla::bridge::AtenFromXlaTensor(torch_xla::XLATensor::Create(
      saved_.at(storage).data, storage->base().scalar_type()));
}

void SavedState::Restore() {
  for (const auto& [storage, saved] : saved_) {
    Storage* const mutable_storage = StorageOf(saved.holder);
    const torch_xla::XLATensorPtr base = BaseOf(mutable_storage);
    // Views hold the traced values.
    SetData(mutable_storage, base, saved.data);
  }
}

}  // namespace torch_xla_ext::graph
