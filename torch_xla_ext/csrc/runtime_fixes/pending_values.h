// Handles values of tensors that are not computed yet.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PENDING_VALUES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PENDING_VALUES_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/lazy/backend/backend_data.h>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// The data to read for `tensor`, if it is a clone that has not been computed
// yet, else null. Upstream gives the clone its source's data; when the source
// is written to, that data is donated, and the clone loses its value.
torch::lazy::BackendDataPtr DataOfPendingClone(
    const torch_xla::XLATensor& tensor);

// Restores the old value of tensors whose pending value only adds a sharding.
// Call this before everything pending is dropped.
//
// torch.compile traces a function once, copies the old values back into the
// inputs that the function wrote to, and then drops everything pending. In
// sharded programs these copies are still pending at that point, and dropping
// them would leave the inputs without values.
void KeepShardedValues();

// Whether the pending value of any of the tensors is one device's part: it was
// computed in a region of manual sharding.
bool AreInManualRegion(at::TensorList tensors);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PENDING_VALUES_H_
