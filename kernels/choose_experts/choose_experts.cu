// XlaGpuChooseExperts for CUDA: a warp for each token.
#include <cuda_runtime.h>

#include <climits>
#include <cmath>
#include <cstdint>

#include "kernels/choose_experts/choose_experts.h"
#include "kernels/common/vector.cuh"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::choose_experts {
namespace {

constexpr int kWarps = 4;  // per block

struct Arguments {
  const void* logits;  // [tokens, experts]
  const float* bias;   // [experts], or null
  const bool* mask;    // [tokens], or null
  float* weights;      // [tokens, top_k]
  int* chosen;         // [tokens, top_k]
  int tokens, experts, top_k, num_groups, top_groups;
  bool sigmoid, renormalize;
  float scaling;
};

__device__ float WarpMax(float value) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, i));
  }
  return value;
}

__device__ float WarpSum(float value) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) value += __shfl_xor_sync(~0u, value, i);
  return value;
}

// Compares as the rank does; NaN is the smallest, 0.
__device__ uint32_t Key(float rank) {
  const uint32_t bits = __float_as_uint(rank + 0.f);  // -0 equals 0
  const bool is_negative = bits >> 31 != 0;
  return isnan(rank) ? 0 : is_negative ? ~bits : bits | 0x80000000;
}

// The index of the warp's largest rank; of equal ranks, the smallest index. -1
// if all ranks are NaN.
__device__ int Largest(const float* ranks, int size) {
  uint32_t key = 0;
  int number = INT_MAX;
  for (int i = threadIdx.x % 32; i < size; i += 32) {
    const uint32_t other = Key(ranks[i]);
    if (other > key) {
      key = other;
      number = i;
    }
  }
  const uint32_t largest = __reduce_max_sync(~0u, key);
  if (largest == 0) return -1;
  return __reduce_min_sync(~0u, key == largest ? number : INT_MAX);
}

// Sets the ranks of groups that are not chosen to -inf.
__device__ void KeepGroups(const Arguments& arguments, float* ranks) {
  const int lane = threadIdx.x % 32;
  const int size = arguments.experts / arguments.num_groups;
  float first = -INFINITY, second = -INFINITY;
  if (lane < arguments.num_groups) {
    for (int i = 0; i < size; ++i) {
      const float rank = ranks[lane * size + i];
      second = fmaxf(second, fminf(first, rank));
      first = fmaxf(first, rank);
    }
  }
  const float mine =
      arguments.bias != nullptr && size > 1 ? first + second : first;
  int better = 0;
  for (int i = 0; i < arguments.num_groups; ++i) {
    const float other = __shfl_sync(~0u, mine, i);
    better += other > mine || (other == mine && i < lane);
  }
  const unsigned kept = __ballot_sync(
      ~0u, lane < arguments.num_groups && better < arguments.top_groups);
  for (int i = lane; i < arguments.experts; i += 32) {
    if ((kept >> (i / size) & 1) == 0) ranks[i] = -INFINITY;
  }
  __syncwarp();
}

template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    ChooseKernel(const __grid_constant__ Arguments arguments) {
  extern __shared__ float shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int experts = arguments.experts, top_k = arguments.top_k;
  const int token = blockIdx.x * kWarps + warp;
  if (token >= arguments.tokens) return;
  if (arguments.mask != nullptr && !arguments.mask[token]) {
    for (int j = lane; j < top_k; j += 32) {
      arguments.weights[int64_t{token} * top_k + j] = 0;
      arguments.chosen[int64_t{token} * top_k + j] = experts;
    }
    return;
  }
  float* const scores = shared + warp * 2 * experts;
  float* const ranks = scores + experts;
  const T* const logits =
      static_cast<const T*>(arguments.logits) + int64_t{token} * experts;

  float max = -INFINITY;
  for (int i = lane; i < experts; i += 32) {
    const float logit = ToFloat(logits[i]);
    scores[i] = logit;
    max = fmaxf(max, logit);
  }
  max = WarpMax(max);
  float sum = 0;
  for (int i = lane; i < experts; i += 32) {
    const float score =
        arguments.sigmoid ? 1 / (1 + expf(-scores[i])) : expf(scores[i] - max);
    scores[i] = score;
    sum += score;
  }
  sum = arguments.sigmoid ? 1 : WarpSum(sum);
  for (int i = lane; i < experts; i += 32) {
    scores[i] /= sum;
    ranks[i] = scores[i];
    if (arguments.bias != nullptr) ranks[i] += arguments.bias[i];
  }
  __syncwarp();
  if (arguments.num_groups > 1) KeepGroups(arguments, ranks);

  // Lane j % 32 keeps choice j.
  float chosen_score[2] = {0, 0};
  int chosen_number[2] = {0, 0};
  float total = 0;
  for (int j = 0; j < top_k; ++j) {
    const int largest = Largest(ranks, experts);
    const int number = largest < 0 ? j : largest;
    const float score = scores[number];
    total += score;
    if (lane == j % 32) {
      chosen_score[j / 32] = score;
      chosen_number[j / 32] = number;
    }
    __syncwarp();
    if (lane == number % 32) ranks[number] = NAN;  // not to choose it again
    __syncwarp();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int j = lane + 32 * r;
    if (j >= top_k) continue;
    const float score = chosen_score[r];
    const int64_t at = int64_t{token} * top_k + j;
    arguments.weights[at] =
        (arguments.renormalize ? score / total : score) * arguments.scaling;
    arguments.chosen[at] = chosen_number[r];
  }
}

Status LaunchChoose(cudaStream_t stream, AnyBuffer logits,
                    std::optional<Buffer<F32, 1>> bias,
                    std::optional<Buffer<PRED, 1>> mask, Result<F32, 2> weights,
                    Result<S32, 2> chosen, const ChooseExpertsParams& params) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckParams(logits.dim(1), params));
  if (logits.dim(0) == 0) return Status::Ok();
  if (logits.dim(0) > INT_MAX - kWarps) {
    return Status::Error("expected at most ", INT_MAX - kWarps,
                         " tokens but got ", logits.dim(0));
  }
  Arguments arguments = {};
  arguments.logits = logits.untyped_data();
  arguments.bias = bias.has_value() ? bias->data() : nullptr;
  arguments.mask = mask.has_value() ? mask->data() : nullptr;
  arguments.weights = weights.data();
  arguments.chosen = chosen.data();
  arguments.tokens = static_cast<int>(logits.dim(0));
  arguments.experts = static_cast<int>(logits.dim(1));
  arguments.top_k = static_cast<int>(params.top_k);
  arguments.num_groups = static_cast<int>(params.num_groups);
  arguments.top_groups = static_cast<int>(params.top_groups);
  arguments.sigmoid = params.sigmoid;
  arguments.renormalize = params.renormalize;
  arguments.scaling = static_cast<float>(params.scaling);
  const int blocks = (arguments.tokens - 1) / kWarps + 1;
  const int bytes =
      kWarps * 2 * arguments.experts * static_cast<int>(sizeof(float));
  const auto kernel = logits.dtype() == F16    ? ChooseKernel<__half>
                      : logits.dtype() == BF16 ? ChooseKernel<__nv_bfloat16>
                                               : ChooseKernel<float>;
  kernel<<<blocks, kWarps * 32, bytes, stream>>>(arguments);
  return CudaStatus(cudaGetLastError());
}

}  // namespace
}  // namespace torch_xla_ext::choose_experts

XLA_KERNEL_CUDA(XlaGpuChooseExperts,
                torch_xla_ext::choose_experts::kChooseExperts,
                torch_xla_ext::choose_experts::LaunchChoose,
                torch_xla_ext::kCommandBufferCompatible);
