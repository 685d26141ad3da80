// Division of floating-point numbers rounded down, as torch and Python do it.
#ifndef TORCH_XLA_EXT_CSRC_FRONT_FLOOR_DIVISION_H_
#define TORCH_XLA_EXT_CSRC_FRONT_FLOOR_DIVISION_H_

#include <ATen/core/Tensor.h>

namespace torch_xla {

// The stock function rounds the rounded quotient: 3.0 // 0.3 is 10 there, but 9
// in torch. At least one of the operands is an XLA tensor, the other may be a
// number on the CPU; their common dtype is a floating-point one.
at::Tensor FloorDivided(const at::Tensor& self, const at::Tensor& other);

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_FRONT_FLOOR_DIVISION_H_
