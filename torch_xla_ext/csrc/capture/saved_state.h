// What a step's tensors held before it was traced.
#ifndef TORCH_XLA_EXT_CSRC_CAPTURE_SAVED_STATE_H_
#define TORCH_XLA_EXT_CSRC_CAPTURE_SAVED_STATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "torch_xla_ext/csrc/capture/storage.h"

namespace torch_xla_ext::capture {

// The data of every storage that a step can read or write. Each is on the
// device before the step is traced, and no two have the same data, so that the
// parameters of the traced program tell which storage they are.
class SavedState {
 public:
  SavedState();

  // Adds the storage of a tensor that is older than this object. Returns
  // whether it was not there before.
  bool Add(const at::Tensor& tensor);

  // Adds several, and computes those that have still to be computed together.
  void AddAll(const std::vector<at::Tensor>& tensors);

  // The address of the data that the storage of `tensor` had, or 0.
  uintptr_t DataAddress(const at::Tensor& tensor) const;

  // Whether the storage of `tensor` has other values than it had.
  bool IsWritten(const at::Tensor& tensor) const;

  // A tensor of its own with the data that the storage of `tensor` had.
  at::Tensor Before(const at::Tensor& tensor) const;

  // Gives all storages their data again.
  void Restore();

  // Tensors from this number on were made after this object.
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

}  // namespace torch_xla_ext::capture

#endif  // TORCH_XLA_EXT_CSRC_CAPTURE_SAVED_STATE_H_
