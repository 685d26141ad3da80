// XlaGpuSimpleAdd: the element-wise sum of two arrays of one dtype and shape.
#ifndef KERNELS_SIMPLE_ADD_SIMPLE_ADD_H_
#define KERNELS_SIMPLE_ADD_SIMPLE_ADD_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::simple_add {

inline constexpr Signature kSimpleAdd = ParseSignature(
    "XlaGpuSimpleAdd(a: T[*shape], b: T[*shape]) -> (out: T[*shape]) "
    "where T: F16 | BF16 | F32 | F64 | S32 | S64");

}  // namespace torch_xla_ext::simple_add

#endif  // KERNELS_SIMPLE_ADD_SIMPLE_ADD_H_
