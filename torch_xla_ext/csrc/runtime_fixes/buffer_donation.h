// Decides which parameters a program may overwrite, and with which of its
// results.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_BUFFER_DONATION_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_BUFFER_DONATION_H_

#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/core/ir.h>

#include <cstddef>
#include <unordered_set>
#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// A program that is being lowered.
struct LoweredProgram {
  // Its results are the values of tensors[indices[i]].
  const std::vector<torch_xla::XLATensorPtr>& tensors;
  const std::vector<size_t>& indices;
  const std::vector<torch::lazy::Value>& results;
  const std::vector<torch::lazy::BackendDataPtr>& parameters;
  const std::vector<const torch::lazy::Node*>& post_order;
};

// Aliases each parameter in `donors` with the result that is the new value of
// the same tensor. That result is then written in place.
//
// Upstream tells XLA only which parameters it may overwrite. XLA pairs them
// with results of the same size by their order. If the orders differ, as those
// of weights in a training step do, one tensor's value is written over
// another's, which is still read: XLA copies both, and needs memory for the
// copies.
//
// A parameter is left to XLA if no result belongs to its tensor, or if that
// result has another shape or sharding. A result without a sharding is expected
// to stay replicated if its parameter is (replicated_aliases.h).
void SetAliases(torch_xla::LoweringContext* context,
                const LoweredProgram& program,
                const std::vector<size_t>& donors);

// The `parameters` from which the pending value of a live tensor of `device` is
// computed. The values of `computed` are not counted as pending.
std::unordered_set<const torch::lazy::BackendData*> ReadByPendingValues(
    const std::unordered_set<const torch::lazy::BackendData*>& parameters,
    const torch::lazy::BackendDevice& device,
    const std::vector<torch_xla::XLATensorPtr>& computed = {});

// The `donors` of a program that nothing uses afterwards. Upstream donates the
// old values of all tensors to which a program gives new values, which is right
// if the program computes everything pending. But torch.compile's bridge, among
// others, computes only some tensors, and others can still need an old value:
//
//   y = s * 2; s.add_(1); compiled(s)  # y still reads the old s
//
// Two tensors may have one value: after `s.copy_(y)`, an `s.add_(1)` must leave
// it to y.
//
// Nothing is donated if another thread was the last to read one of the values,
// or once threads have computed a device's tensors alternately, because an
// operation that another thread is tracing does not belong to a tensor yet.
//
// `computed` are the tensors that the program computes.
std::vector<size_t> FreeDonors(
    std::vector<size_t> donors,
    const std::vector<torch::lazy::BackendDataPtr>& parameters,
    const torch::lazy::BackendDevice& device,
    const std::vector<torch_xla::XLATensorPtr>& computed);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_BUFFER_DONATION_H_
