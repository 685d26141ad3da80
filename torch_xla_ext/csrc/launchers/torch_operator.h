// Runs a PyTorch operator on memory that PyTorch did not allocate.
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_TORCH_OPERATOR_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_TORCH_OPERATOR_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <vector>

namespace torch_xla_ext {

struct OperatorCall {
  std::string_view name;       // "aten::topk"
  std::string_view overload;   // "" for the default overload
  std::string_view arguments;  // torch_operator_arguments.h
  std::string_view returns;
  bool is_python;  // its kernel is a Python function and needs the GIL
  c10::Device device;
  std::vector<at::Tensor> operands;  // row-major, on the device
  std::vector<at::Tensor> results;
};

// The current CUDA device. Throws std::runtime_error if this process's torch
// has no CUDA.
c10::Device CurrentCudaDevice();

// A tensor over `data`, which it does not own.
at::Tensor TensorOnBuffer(void* data, c10::IntArrayRef sizes,
                          at::ScalarType dtype, c10::Device device);

// Calls the operator's kernel for the device, below autograd, on `stream` (a
// cudaStream_t; nullptr on the CPU), and fills the results. Returns the
// operator's error text, or an empty string.
std::string RunTorchOperator(const OperatorCall& call, void* stream);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_TORCH_OPERATOR_H_
