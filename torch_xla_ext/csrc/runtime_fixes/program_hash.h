// Completes a program's hash with parts that the hashes of its nodes do not
// cover.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PROGRAM_HASH_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PROGRAM_HASH_H_

#include <torch/csrc/lazy/core/ir.h>

#include <cstddef>
#include <vector>

namespace torch_xla_ext {

// Appends to `sequence`, which is hashed, the parts of a program that no node's
// hash covers:
//
// - for each node of `post_order`, which nodes its operands are, and which node
//   each of `roots` is. All parameters of one shape have the same hash, and
//   upstream's sequence of parameters only records the order of their first
// occurrence. So (a + b) + b had the hash of (a + a) + b, and reused that
// program.
// - the nodes' shardings: upstream's hash of a sharding leaves out its
//   permutation of the devices.
// - settings of the whole program: the precision of matrix products, SPMD, and
//   the environment variables that its lowering reads.
void AppendProgram(const std::vector<const torch::lazy::Node*>& post_order,
                   const std::vector<torch::lazy::Value>& roots,
                   std::vector<size_t>* sequence);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PROGRAM_HASH_H_
