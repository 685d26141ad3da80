// The device data behind torch's tensors, for captured steps.
//
// torch_xla's tensors are at::FunctionalTensorWrapper. All views of one tensor
// share an at::functionalization::FunctionalStorageImpl, whose base holds the
// values; a write through a view is an update that the storage applies to its
// base before the next read. A captured step therefore reads and writes the
// bases of storages, and every view sees it.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_STORAGE_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_STORAGE_H_

#include <ATen/FunctionalStorageImpl.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <torch/csrc/lazy/backend/backend_data.h>

#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::graph {

using Storage = at::functionalization::FunctionalStorageImpl;

// Whether `tensor` is an XLA tensor under functionalization, as all XLA tensors
// are unless XLA_DISABLE_FUNCTIONALIZATION is set.
bool IsFunctionalXlaTensor(const at::Tensor& tensor);

// The storage of a tensor for which IsFunctionalXlaTensor is true.
Storage* StorageOf(const at::Tensor& tensor);
// Like StorageOf, but without a check of IsFunctionalXlaTensor.
inline Storage* UncheckedStorageOf(const at::Tensor& tensor) {
  return static_cast<Storage*>(
      tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}
// Whether more than one tensor has this storage.
bool HasSeveralTensors(Storage* storage);

// The XLA tensor with the values of a storage, after every pending update.
torch_xla::XLATensorPtr BaseOf(Storage* storage);

// Whether the tensor selects or rearranges elements of its storage's base. A
// parameter, for example, is a view, but has all values of the base in order.
bool HasOwnValues(const at::Tensor& tensor);

// Whether a tensor, not counting pending updates of its storage, shares the
// data of the storage's base: it is the base, or a detached tensor, as a
// parameter is.
bool HasDataOf(const torch_xla::XLATensorPtr& base, Storage* storage,
               const at::Tensor& tensor);

// The device data of a tensor; null if it is still to be computed or
// transferred.
torch::lazy::BackendDataPtr DataOf(const torch_xla::XLATensorPtr& tensor);

// Whether DataOf is not null, and whether it has a value. Faster, because no
// shared pointer is copied.
bool HasData(const torch_xla::XLATensorPtr& tensor);
bool HasValue(const torch_xla::XLATensorPtr& tensor);

// Marks the storage's base as changed: views are recomputed when they are read.
void UpdateViews(Storage* storage);

// Gives the storage's base new data, and updates views.
void SetData(Storage* storage, const torch_xla::XLATensorPtr& base,
             torch::lazy::BackendDataPtr data);

// Transfers values that are only on the host to all devices; returns false if
// there are none, or if they are sharded.
bool Transfer(const torch_xla::XLATensorPtr& tensor);

// Computes or transfers the missing data of these tensors, and of no others.
void Materialize(std::vector<torch_xla::XLATensorPtr> tensors);

// A copy of `data`.
torch::lazy::BackendDataPtr CopyOf(const torch::lazy::BackendDataPtr& data,
                                   at::ScalarType dtype);

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_STORAGE_H_
