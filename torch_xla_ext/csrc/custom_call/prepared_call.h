// A custom call whose arguments are checked and encoded once.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_PREPARED_CALL_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_PREPARED_CALL_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "torch_xla_ext/csrc/custom_call/custom_call.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// Everything about a call except its operands. Valid only for operands of the
// shapes, dtypes and device for which it was prepared.
struct PreparedCall {
  torch::lazy::OpKind kind;
  CustomCallConfig config;
  OutputTypes outputs;

  // Traces the call; returns its results. The GIL must not be held: in eager
  // mode this compiles and waits for the device, and a kernel may be a function
  // of Python.
  std::vector<at::Tensor> Trace(
      const std::vector<torch_xla::XLATensorPtr>& inputs) const;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_PREPARED_CALL_H_
