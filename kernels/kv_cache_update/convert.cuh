// Conversion of tokens to the dtype of a cache.
#ifndef KERNELS_KV_CACHE_UPDATE_CONVERT_CUH_
#define KERNELS_KV_CACHE_UPDATE_CONVERT_CUH_

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cmath>
#include <type_traits>

#include "kernels/common/vector.cuh"

namespace torch_xla_ext::kv_cache_update {

// Division by a scale, rounded exactly like x / scale.
struct Scale {
  float value;
  float inverse;  // 0: too large or too small for DivideFast

  explicit Scale(double scale)
      : value(static_cast<float>(scale)), inverse(1 / value) {
    const float size = std::abs(value);
    if (!(size > 1e-30f && size < 1e30f)) inverse = 0;
  }
  // A quotient and its correction (Markstein 1990). If the result in F8E4M3FN
  // is 0 or the largest value, it is not corrected, because the remainder may
  // be out of float's range.
  __device__ float DivideFast(float x) const {
    const float quotient = x * inverse;
    const float size = fabsf(quotient);
    const float rest = fmaf(-quotient, value, x);
    return size > 1e-6f && size < 1e6f ? fmaf(rest, inverse, quotient)
                                       : quotient;
  }
  __device__ float DivideSlowly(float x) const { return x / value; }
};

// Converts kCount values to C. If C is F8E4M3FN, they are divided by the scale
// first.
template <typename C, typename T, int kCount>
__device__ Vector<C, kCount> Convert(const Vector<T, kCount>& from,
                                     const Scale& scale) {
  Vector<C, kCount> to;
  if constexpr (std::is_same_v<C, T>) {
    to = from;
  } else if constexpr (std::is_same_v<C, __nv_fp8_e4m3>) {
    if (scale.inverse != 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        to.values[i].__x =
            __nv_cvt_float_to_fp8(scale.DivideFast(ToFloat(from.values[i])),
                                  __NV_SATFINITE, __NV_E4M3);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        to.values[i].__x =
            __nv_cvt_float_to_fp8(scale.DivideSlowly(ToFloat(from.values[i])),
                                  __NV_SATFINITE, __NV_E4M3);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float value = ToFloat(from.values[i]);
      if constexpr (std::is_same_v<C, float>) {
        to.values[i] = value;
      } else if constexpr (std::is_same_v<C, __half>) {
        to.values[i] = __float2half_rn(value);
      } else {
        to.values[i] = __float2bfloat16_rn(value);
      }
    }
  }
  return to;
}

}  // namespace torch_xla_ext::kv_cache_update

#endif  // KERNELS_KV_CACHE_UPDATE_CONVERT_CUH_
