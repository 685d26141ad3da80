// Memory of other libraries that becomes an XLA tensor. The front library and
// patches/ call this function.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DLPACK_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DLPACK_H_

#include <ATen/DLConvertor.h>

namespace torch_xla_ext {

// `convert(source)`, of memory that the device can use: row-major and, on the
// CPU, aligned. Upstream's function takes transposed memory for row-major, so
// that the elements are at other places. Copies memory of the CPU that is not
// such, and throws for a GPU's.
at::Tensor FromDlpack(DLManagedTensor* source,
                      at::Tensor (*convert)(DLManagedTensor*));

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_DLPACK_H_
