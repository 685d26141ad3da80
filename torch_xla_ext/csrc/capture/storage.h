// The device data behind torch's tensors, for captured steps.
//
// torch_xla's tensors are at::FunctionalTensorWrapper. All views of one tensor
// share an at::functionalization::FunctionalStorageImpl, whose base holds the
// values; a write through a view is an update that the storage applies to its
// base before the next read. A captured step therefore reads and writes the
// bases of storages, and every view sees it.
#ifndef TORCH_XLA_EXT_CSRC_CAPTURE_STORAGE_H_
#define TORCH_XLA_EXT_CSRC_CAPTURE_STORAGE_H_

#include <ATen/FunctionalStorageImpl.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/lazy/backend/backend_data.h>

#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::capture {

using Storage = at::functionalization::FunctionalStorageImpl;

// Whether it is an XLA tensor under functionalization, as all are unless
// XLA_DISABLE_FUNCTIONALIZATION is set.
bool IsFunctionalXlaTensor(const at::Tensor& tensor);

// The storage of such a tensor.
Storage* StorageOf(const at::Tensor& tensor);

// The XLA tensor with the values of a storage, after every pending update.
torch_xla::XLATensorPtr BaseOf(Storage* storage);

// The data of a tensor that is on the device, else null: something has still
// to be computed or transferred.
torch::lazy::BackendDataPtr DataOf(const torch_xla::XLATensorPtr& tensor);

// The same without a pointer of one's own to it, which costs time.
bool HasData(const torch_xla::XLATensorPtr& tensor);
bool HasValue(const torch_xla::XLATensorPtr& tensor);

// Says that the storage's base has other values: views are made anew when they
// are read.
void UpdateViews(Storage* storage);

// Gives the storage's base new data, and updates views.
void SetData(Storage* storage, const torch_xla::XLATensorPtr& base,
             torch::lazy::BackendDataPtr data);

// Computes or transfers what these tensors, and only these, still lack.
void Materialize(std::vector<torch_xla::XLATensorPtr> tensors);

// Data of their own with the same values.
torch::lazy::BackendDataPtr CopyOf(const torch::lazy::BackendDataPtr& data,
                                   at::ScalarType dtype);

}  // namespace torch_xla_ext::capture

#endif  // TORCH_XLA_EXT_CSRC_CAPTURE_STORAGE_H_
