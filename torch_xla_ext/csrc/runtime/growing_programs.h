// Warns of a loop that never computes its values: its programs grow.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_GROWING_PROGRAMS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_GROWING_PROGRAMS_H_

#include <torch/csrc/lazy/core/ir.h>

#include <vector>

namespace torch_xla_ext {

// Is told of each program that is compiled. A training loop that reads
// loss.item() and forgets torch_xla.sync() compiles a larger program in each
// step, which repeats all steps before: it looks like a hang. The third program
// in succession that contains the operations of the one before, and has about
// as many more as that one had, causes one warning in the process.
//
// A program that was compiled before, and operations that have been computed
// since, cost nothing and count for nothing: these are operations that are
// still pending, not ones that look the same.
void CheckIsNotGrowing(const std::vector<const torch::lazy::Node*>& post_order);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_GROWING_PROGRAMS_H_
