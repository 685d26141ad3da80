// XlaGpuScale for CUDA.
#include <algorithm>

#include "scale.h"
#include "torch_xla_ext/cuda_status.h"

using torch_xla_ext::Buffer;
using torch_xla_ext::F32;
using torch_xla_ext::Result;
using torch_xla_ext::Status;

// No __restrict__: the call may give `out` the buffer of `x`.
__global__ void Scale(const float* x, float* out, float factor, int64_t size) {
  const int64_t stride = int64_t{blockDim.x} * gridDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += stride) {
    out[i] = x[i] * factor;
  }
}

static Status LaunchScale(cudaStream_t stream, Buffer<F32> x, Result<F32> out,
                          const ScaleParams& params) {
  constexpr int kThreads = 256;
  const int64_t size = out.size();
  if (size == 0) return Status::Ok();
  const int64_t blocks =
      std::min<int64_t>((size + kThreads - 1) / kThreads, 1 << 16);
  Scale<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      x.data(), out.data(), static_cast<float>(params.factor), size);
  return torch_xla_ext::CudaStatus(cudaGetLastError());
}

XLA_KERNEL_CUDA(XlaGpuScale, kScale, LaunchScale,
                torch_xla_ext::kCommandBufferCompatible);
