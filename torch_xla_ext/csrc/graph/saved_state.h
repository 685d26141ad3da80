// Saves the data that a step's tensors have before the step is traced.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_SAVED_STATE_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_SAVED_STATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "torch_xla_ext/csrc/graph/storage.h"

namespace torch_xla_ext::graph {

// The data of every storage that a step can read or write. All data is on the
// device before the step is traced, and no two storages have the same data, so
// that each parameter of the traced program identifies a storage.
class SavedState {
 public:
  SavedState();

  // Adds the storage of a tensor that is older than this object. Returns false
  // if the storage was already added.
  bool Add(const at::Tensor& tensor);

  // Adds several storages, and computes the pending ones together.
  void AddAll(const std::vector<at::Tensor>& tensors);

  // The address of the saved data of the tensor's storage, or 0.
  uintptr_t DataAddress(const at::Tensor& tensor) const;

  // Whether the tensor's storage has been written to since.
  bool IsWritten(const at::Tensor& tensor) const;

  // A new tensor with the saved data of the tensor's storage.
  at::Tensor Before(const at::Tensor& tensor) const;

  // Restores the data of all storages.
  void Restore();

  // Tensors with this number or a higher one were made after this object.
  int64_t first_new_id() const { return first_new_id_; }

 private:
  struct Saved {
    at::Tensor holder;  // of the storage
    torch::lazy::BackendDataPtr data;
  };

  void Save(const at::Tensor& tensor, const torch_xla::XLATensorPtr& base);

  int64_t first_new_id_;
  std::unordered_map<const Storage*, Saved> saved_;
  std::unordered_map<const torch::lazy::BackendData*, const Storage*> owners_;
};

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_SAVED_STATE_H_
