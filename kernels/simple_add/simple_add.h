// XlaGpuSimpleAdd: the element-wise sum of two arrays of one dtype and shape.
#ifndef KERNELS_SIMPLE_ADD_SIMPLE_ADD_H_
#define KERNELS_SIMPLE_ADD_SIMPLE_ADD_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::simple_add {

inline constexpr Signature kSimpleAdd = ParseSignature(
    "XlaGpuSimpleAdd(a: T[*shape], b: T[*shape]) -> (out: T[*shape]) "
    "where T: F16 | BF16 | F32 | F64 | S32 | S64");

// No GPU holds more; XLA's own limit is far above.
inline constexpr int64_t kSimpleAddMaxSize = int64_t{1} << 40;

inline Status CheckSimpleAddSize(int64_t size) {
  if (size <= kSimpleAddMaxSize) return Status::Ok();
  return Status::Error("expected at most 2^40 elements but got ", size);
}

}  // namespace torch_xla_ext::simple_add

#endif  // KERNELS_SIMPLE_ADD_SIMPLE_ADD_H_
