// Loops that never call torch_xla.sync(): their programs would grow.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_UNBOUNDED_GRAPH_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_UNBOUNDED_GRAPH_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/lazy/core/ir.h>

#include <vector>

namespace torch_xla_ext {

// Call it for each program that is compiled. torch_xla computes a value that is
// read, such as loss.item(), and nothing else. So a loop that reads values and
// never calls torch_xla.sync() compiles a larger program for each, which
// repeats all steps before: it looks like a hang. After three programs in
// succession, each of which contains the one before, ComputePendingValues()
// takes effect, with one warning.
//
// Programs that were compiled before, and operations that have been computed
// since, do not count: contained operations are the same pending nodes, not
// equal ones.
void FindGrowth(const std::vector<const torch::lazy::Node*>& post_order);

// Call it before the value of an XLA tensor is read on the host, and after an
// optimizer has updated it. If programs have grown, computes all pending values
// of the tensor's device, as torch_xla.sync() does.
void ComputePendingValues(const at::Tensor& tensor);

// Between Pause(true) and Pause(false), that does nothing, because the pending
// values are those of a step that is traced. It also does nothing if several
// threads trace.
void PauseComputingPendingValues(bool begins);

// Call it before an optimizer's second and later steps, with a tensor that it
// updates. If the value of the last step is still pending, programs would grow.
void FindPendingStep(const at::Tensor& updated);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_UNBOUNDED_GRAPH_H_
