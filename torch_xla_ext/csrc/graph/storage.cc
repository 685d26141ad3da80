#include "torch_xla_ext/csrc/graph/storage.h"

#include <ATen/ATen.h>
#include <torch/csrc/lazy/backend/backend_interface.h>

#include <utility>

namespace torch_xla_ext::graph {

bool IsFunctionalXlaTensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_xla() &&
         at::functionalization::impl::isFunctionalTensor(tensor) &&
         // Not a fake tensor, which PyTorch traces with.
         !at::functionalization::impl::unsafeGetFunctionalWrapper(tensor)
              ->value()
              .unsafeGetTensorImpl()
              ->is_python_dispatch();
}

Storage* StorageOf(const at::Tensor& tensor) {
  TORCH_CHECK(IsFunctionalXlaTensor(tensor), "a tensor on ",
              tensor.defined() ? tensor.device().str() : "no device",
              " is not one of torch_xla's under functionalization");
  return UncheckedStorageOf(tensor);
}

bool HasSeveralTensors(Storage* storage) {
  return c10::raw::intrusive_ptr::use_count(storage) > 1;
}

torch_xla::XLATensorPtr BaseOf(Storage* storage) {
  storage->apply_updates();
  return torch_xla::bridge::TryGetXlaTensor(storage->base());
}

bool HasOwnValues(const at::Tensor& tensor) {
  Storage* const storage = StorageOf(tensor);
  if (at::functionalization::impl::isBaseTensor(tensor)) return false;
  // torch_xla's kernel for detach() shares the tensor's data.
  const auto own = torch_xla::bridge::TryGetXlaTensor(tensor);
  return own->torch::lazy::LazyTensor::data() !=
         BaseOf(storage)->torch::lazy::LazyTensor::data();
}

bool HasDataOf(const torch_xla::XLATensorPtr& base, Storage* storage,
               const at::Tensor& tensor) {
  const auto* wrapper =
      at::functionalization::impl::unsafeGetFunctionalWrapper(tensor);
  if (wrapper->has_metadata_mutation()) return false;
  const at::Tensor& value = wrapper->value();
  if (value.unsafeGetTensorImpl() == storage->base().unsafeGetTensorImpl()) {
    return wrapper->isBaseTensor();
  }
  // torch_xla's kernel for detach() shares the tensor's data.
  const auto own = torch_xla::bridge::TryGetXlaTensor(value);
  return own != nullptr && own->torch::lazy::LazyTensor::data() ==
                               base->torch::lazy::LazyTensor::data();
}

torch::lazy::BackendDataPtr DataOf(const torch_xla::XLATensorPtr& tensor) {
  const auto& data = tensor->torch::lazy::LazyTensor::data();
  if (data->handle != nullptr) return data->handle;
  if (data->ir_value) {
    return torch::lazy::getBackend()->GetComputationDataFromNode(
        data->ir_value.node.get());
  }
  return nullptr;
}

bool HasData(const torch_xla::XLATensorPtr& tensor) {
  return tensor->torch::lazy::LazyTensor::data()->handle != nullptr ||
         DataOf(tensor) != nullptr;
}

bool HasValue(const torch_xla::XLATensorPtr& tensor) {
  const auto& handle = tensor->torch::lazy::LazyTensor::data()->handle;
  return handle != nullptr ? handle->HasValue() : DataOf(tensor)->HasValue();
}

void UpdateViews(Storage* storage) {
  storage->add_update(storage->base(), {});
  storage->apply_updates();
}

void SetData(Storage* storage, const torch_xla::XLATensorPtr& base,
             torch::lazy::BackendDataPtr data) {
  base->SetXlaData(std::move(data));
  UpdateViews(storage);
}

bool Transfer(const torch_xla::XLATensorPtr& tensor) {
  const auto& data = tensor->torch::lazy::LazyTensor::data();
  if (!data->tensor_data || data->ir_value || data->handle != nullptr ||
      tensor->sharding_spec() != nullptr) {
    return false;
  }
  tensor->GetXlaData();
  return true;
}

void Materialize(std::vector<torch_xla::XLATensorPtr> tensors) {
  // With sync_ltc_data it would donate buffers that pending graphs still read.
  torch_xla::XLAGraphExecutor::Get()->SyncTensorsGraph(
      &tensors, /*devices=*/{}, /*wait=*/true, /*sync_ltc_data=*/false,
      /*warm_up_cache_only=*/false);
}

torch::lazy::BackendDataPtr CopyOf(const torch::lazy::BackendDataPtr& data,
                                   at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const at::Tensor copy = at::clone(torch_xla::bridge::AtenFromXlaTensor(
      torch_xla::XLATensor::Create(data, dtype)));
  const torch_xla::XLATensorPtr tensor =
      torch_xla::bridge::TryGetXlaTensor(copy);
  Materialize({tensor});
  return DataOf(tensor);
}

}  // namespace torch_xla_ext::graph
