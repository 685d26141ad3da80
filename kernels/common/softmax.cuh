// Partial sums of an online softmax (Milakov and Gimelshein 2018), and their
// combination.
#ifndef KERNELS_COMMON_SOFTMAX_CUH_
#define KERNELS_COMMON_SOFTMAX_CUH_

#include <cmath>

#include "kernels/common/ptx.cuh"

namespace torch_xla_ext {

inline constexpr float kLog2e = 1.4426950408889634f;

// The factor that converts a sum relative to `max` to one relative to
// `total_max`. Without any token both may be -inf: the sum is 0 then.
__device__ inline float RelativeWeight(float max, float total_max) {
  return max == total_max ? 1.0f : Exp2(max - total_max);
}

// A sum of values weighted by 2^(logit - max), and the sum of the weights.
struct PartialSum {
  float max = -INFINITY;
  float sum = 0;
  float4 values = {0, 0, 0, 0};

  // Adds another sum, `other`; `stats` are its maximum and its sum of weights.
  __device__ void Add(float2 stats, float4 other) {
    const float new_max = fmaxf(max, stats.x);
    const float a = RelativeWeight(max, new_max);
    const float b = RelativeWeight(stats.x, new_max);
    max = new_max;
    sum = a * sum + b * stats.y;
    values.x = a * values.x + b * other.x;
    values.y = a * values.y + b * other.y;
    values.z = a * values.z + b * other.z;
    values.w = a * values.w + b * other.w;
  }

  // Adds a logit, to the base e, without a value vector.
  __device__ void AddSink(float logit) {
    Add({logit * kLog2e, 1}, {0, 0, 0, 0});
  }
};

// The logarithm, to the base e, of a sum of weights that is relative to 2^max.
__device__ inline float LogSum(float max, float sum) {
  return (max + log2f(sum)) * (1 / kLog2e);
}

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_SOFTMAX_CUH_
