// Spreads the weight gradients of a program over its backward pass.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GRADIENT_WINDOWS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GRADIENT_WINDOWS_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto for several
// devices, in which the backward pass waits for the weight gradients of a few
// layers before; nothing if there are none.
//
// Devices add their weight gradients, which can happen beside the products of
// the backward pass. But nothing in a program says when, and XLA's scheduler
// computes all of them after the gradients of the activations. There each sum
// has one product beside it. That product often keeps all of the GPU's
// multiprocessors busy, so that the sum starts after it, and the next product
// waits for the sum.
//
// Here the gradients are grouped into windows, in the order in which the
// backward pass can compute them. At the end of a window, an optimization
// barrier makes the next product of the backward pass wait for the gradients
// of the window before. They are sums by then, so a sum has the products of a
// window beside it. The memory for the operands of the gradients is free
// sooner, too.
//
// A weight gradient is a matrix product or convolution of two values that are
// not weights, and shares an operand with the product that computes the
// gradient of the activations. Programs with regions of manual sharding are not
// changed.
std::optional<std::string> OrderGradients(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_GRADIENT_WINDOWS_H_
