// XlaGpuSimpleAdd for CUDA: device code, and the host code that launches it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/simple_add/simple_add.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::simple_add {
namespace {

// No __restrict__: XLA may place the result in an operand's buffer.
template <typename T>
__global__ void AddKernel(const T* a, const T* b, T* out, int64_t size) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += step) {
    out[i] = a[i] + b[i];
  }
}

template <typename T>
Status LaunchAdd(cudaStream_t stream, AnyBuffer a, AnyBuffer b, AnyResult out) {
  const int64_t size = out.size();
  if (size == 0) return Status::Ok();
  const int threads = 256;
  const int64_t blocks =
      std::min<int64_t>((size + threads - 1) / threads, 1 << 20);
  AddKernel<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(
      a.data<T>(), b.data<T>(), out.data<T>(), size);
  return CudaStatus(cudaGetLastError());
}

// XLA calls this only with arrays that the signature allows.
Status LaunchSimpleAdd(cudaStream_t stream, AnyBuffer a, AnyBuffer b,
                       AnyResult out) {
  switch (a.dtype()) {
    case F16:
      return LaunchAdd<__half>(stream, a, b, out);
    case BF16:
      return LaunchAdd<__nv_bfloat16>(stream, a, b, out);
    case F32:
      return LaunchAdd<float>(stream, a, b, out);
    case F64:
      return LaunchAdd<double>(stream, a, b, out);
    case S32:  // unsigned, which wraps around
      return LaunchAdd<uint32_t>(stream, a, b, out);
    default:
      return LaunchAdd<uint64_t>(stream, a, b, out);
  }
}

}  // namespace
}  // namespace torch_xla_ext::simple_add

XLA_KERNEL_CUDA(XlaGpuSimpleAdd, torch_xla_ext::simple_add::kSimpleAdd,
                torch_xla_ext::simple_add::LaunchSimpleAdd,
                torch_xla_ext::kCommandBufferCompatible);
