// Runs programs on PyTorch's own tensors, if they are in the memory of
// torch_xla's device: CUDA tensors on XLA:GPU, CPU tensors on XLA:CPU. Neither
// operands nor results are copied.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_SHARED_MEMORY_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_SHARED_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "torch_xla_ext/csrc/graph/program.h"

namespace torch_xla_ext::graph {

// Whether PyTorch's tensors on `device` are in the memory of torch_xla's
// current device: CUDA tensors on any device of "CUDA", and CPU tensors on the
// first one of "CPU". Not if programs are sharded.
bool SharesMemory(c10::Device device);

// Returns, for each tensor, an XLA tensor on its memory, which the XLA tensor
// does not own. The tensors must be on torch_xla's current device and
// IsRowMajor.
std::vector<at::Tensor> ViewsOf(const std::vector<at::Tensor>& tensors);

// Whether XLA can use the tensor's memory directly: row-major, without gaps,
// and aligned as XLA's programs expect.
bool IsRowMajor(const at::Tensor& tensor);

// A program with PyTorch's tensors as arguments. It has Program's functions.
class ProgramOnSharedMemory {
 public:
  // Throws std::invalid_argument if `device` is not torch_xla's current one, or
  // if a result has another type or shape in XLA than in PyTorch.
  ProgramOnSharedMemory(std::shared_ptr<Program> program, c10::Device device);

  // The arguments that are on another device, are not IsRowMajor, or overlap
  // with an argument that the program writes to.
  std::vector<size_t> ArgumentsToCopy(
      const std::vector<at::Tensor>& arguments) const;

  // Runs the program after the work that is already in `stream`, PyTorch's
  // current CUDA stream; later work in the stream runs after the program, and
  // the host does not wait. On the CPU, returns when the program has run.
  // Writes the new values of arguments into their memory, and returns tensors
  // over the memory of the results. Throws std::runtime_error if the program
  // fails before it starts.
  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& arguments,
                              uintptr_t stream);

 private:
  std::shared_ptr<Program> program_;
  c10::Device device_;
};

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_SHARED_MEMORY_H_
