// XlaGpuChooseExperts for CUDA: a warp for each token.
#include <cuda_runtime.h>

#include <climits>
#include <cmath>

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

// The largest of the lanes' values and its index; of equal values, the smallest
// index.
struct Best {
  float value;
  int number;
  __device__ void Take(float other, int other_number) {
    if (other > value || (other == value && other_number < number)) {
      value = other;
      number = other_number;
    }
  }
};

__device__ Best WarpBest(Best best) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    const float value = __shfl_xor_sync(~0u, best.value, i);
    const int number = __shfl_xor_sync(~0u, best.number, i);
    best.Take(value, number);
  }
  return best;
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
    Best best = {-INFINITY, INT_MAX};
    for (int i = lane; i < experts; i += 32) best.Take(ranks[i], i);
    best = WarpBest(best);
    // If no index was found, all ranks are NaN.
    const int number = best.number < experts ? best.number : j;
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
