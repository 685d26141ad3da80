// Vectors of elements, and conversions to float, in which kernels compute.
#ifndef KERNELS_COMMON_VECTOR_CUH_
#define KERNELS_COMMON_VECTOR_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace torch_xla_ext {

// Elements that are loaded and stored at once.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T values[kCount];
};

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__half x) { return __half2float(x); }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__nv_fp8_e4m3 x) {
  return static_cast<float>(x);
}

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_VECTOR_CUH_
