// Which result of a program takes the place of which parameter.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_BUFFER_DONATION_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_BUFFER_DONATION_H_

#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/core/ir.h>

#include <cstddef>
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

// Gives each parameter of `donors` to the result that is the new value of the
// same tensor, which is then written in place.
//
// Upstream tells XLA only which parameters it may overwrite. XLA takes them in
// their order, for results of their sizes in theirs. Where tensors of one size
// come in different orders, as weights do in a training step, the value of one
// takes the place of another, which is still read: XLA copies both, and needs
// memory for the copies.
//
// A parameter is left to XLA if no result is its tensor's, or if that has
// another shape or is divided among devices in another way.
void SetAliases(torch_xla::LoweringContext* context,
                const LoweredProgram& program,
                const std::vector<size_t>& donors);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_BUFFER_DONATION_H_
