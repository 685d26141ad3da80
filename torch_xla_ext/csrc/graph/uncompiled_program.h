// A program that is traced and lowered, and that another thread compiles.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_UNCOMPILED_PROGRAM_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_UNCOMPILED_PROGRAM_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/lazy/core/hash.h>

#include <optional>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/lowered.h"

namespace torch_xla_ext::graph {

class UncompiledProgram {
 public:
  // Lowers the program of the tensors, whose hash is `hash`. Returns nothing if
  // it is compiled already.
  static std::optional<UncompiledProgram> Of(
      const std::vector<at::Tensor>& tensors, const torch::lazy::hash_t& hash);

  // Compiles it, once, and adds it to torch_xla's cache of programs. Needs
  // neither the tensors nor their operands.
  void Compile();

 private:
  UncompiledProgram(CompileFunction compile, const torch::lazy::hash_t& hash)
      : compile_(std::move(compile)), hash_(hash) {}

  CompileFunction compile_;
  torch::lazy::hash_t hash_;
};

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_UNCOMPILED_PROGRAM_H_
