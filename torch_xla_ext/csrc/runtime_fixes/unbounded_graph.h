// Detects loops that never call torch_xla.sync(), whose programs would grow.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_UNBOUNDED_GRAPH_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_UNBOUNDED_GRAPH_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/lazy/core/ir.h>

#include <vector>

namespace torch_xla_ext {

// Call this for each program that is compiled. If a value such as loss.item()
// is read, torch_xla computes that value and nothing else. So a loop that reads
// values and never calls torch_xla.sync() compiles a larger program for each
// read, which repeats all earlier steps: the loop seems to hang. After three
// programs in succession, each of which contains the one before,
// ComputePendingValues() takes effect, with one warning.
//
// Programs that were compiled before, and operations that have been computed
// since, do not count: contained operations are the same pending nodes, not
// equal ones.
void FindGrowth(const std::vector<const torch::lazy::Node*>& post_order);

// Call this before the value of an XLA tensor is read on the host, and after an
// optimizer has updated it. If programs have grown, this computes all pending
// values of the tensor's device, as torch_xla.sync() does.
void ComputePendingValues(const at::Tensor& tensor);

// Between calls with true and false, ComputePendingValues() does nothing,
// because the pending values belong to a step that is being traced. It also
// does nothing while another thread traces.
void PauseComputingPendingValues(bool begins);

// Call this before an optimizer's second and later steps, with a tensor that it
// updates. If the value from the last step is still pending, programs would
// grow, so ComputePendingValues() takes effect, with one warning.
void FindPendingStep(const at::Tensor& updated);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_UNBOUNDED_GRAPH_H_
