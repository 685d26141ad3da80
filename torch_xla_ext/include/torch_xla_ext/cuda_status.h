// Converts the error code of a CUDA call to a Status, for launch functions.
#ifndef TORCH_XLA_EXT_CUDA_STATUS_H_
#define TORCH_XLA_EXT_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "torch_xla_ext/status.h"

namespace torch_xla_ext {

// `return CudaStatus(cudaGetLastError());` ends a launch function.
inline Status CudaStatus(cudaError_t error) {
  if (error == cudaSuccess) return Status::Ok();
  return Status::Error("launch failed: ", cudaGetErrorName(error), ": ",
                       cudaGetErrorString(error));
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CUDA_STATUS_H_
