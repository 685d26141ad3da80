// Tensor maps (CUtensorMap) as parameters of compiled kernels, in place of
// Triton's host tensor descriptors. A map holds an address, so it is made when
// a kernel is launched.
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_TENSOR_MAP_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_TENSOR_MAP_H_

#include <cuda.h>

#include <string_view>

#include "torch_xla_ext/csrc/launchers/cuda_driver.h"

namespace torch_xla_ext {

// The map of the array at `address`. `description`, written by
// xla_kernels/launch.py, has the numbers that cuTensorMapEncodeTiled takes, as
// little-endian bytes. Throws std::exception if it is malformed or the driver
// refuses it.
CUtensorMap MakeTensorMap(const CudaDriver& driver,
                          std::string_view description, void* address);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_TENSOR_MAP_H_
