// XlaGpuAllReduce and XlaGpuAllReduceRmsNorm for CUDA.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/all_reduce/all_reduce.h"
#include "kernels/common/checks.h"
#include "kernels/common/vector.cuh"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::all_reduce {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 512;  // per normalized row

template <typename T>
using Chunk = Vector<T, 16 / sizeof(T)>;

template <typename T>
__device__ T FromFloat(float x);
template <>
__device__ float FromFloat(float x) {
  return x;
}
template <>
__device__ __half FromFloat(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __nv_bfloat16 FromFloat(float x) {
  return __float2bfloat16_rn(x);
}

// Sets a flag. A device that reads it also sees this device's earlier writes.
__device__ void Signal(uint32_t* flag, uint32_t round) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(round)
               : "memory");
}

__device__ void WaitFor(const uint32_t* flag, uint32_t round) {
  uint32_t found;
  do {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];"
                 : "=r"(found)
                 : "l"(flag)
                 : "memory");
  } while (static_cast<int32_t>(found - round) < 0);  // rounds wrap around
}

// Bypasses the caches, which may contain a line of an earlier round.
template <typename T>
__device__ Chunk<T> LoadReceived(const Chunk<T>* from) {
  union {
    uint4 bits;
    Chunk<T> chunk;
  } loaded;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(loaded.bits.x), "=r"(loaded.bits.y), "=r"(loaded.bits.z),
                 "=r"(loaded.bits.w)
               : "l"(from)
               : "memory");
  return loaded.chunk;
}

// Exchanges chunks between a block and the blocks with the same index on the
// other devices.
template <typename T>
class Exchange {
 public:
  __device__ Exchange(const int64_t* peers, int count)
      : peers_(peers),
        count_(count),
        rank_(static_cast<int>(peers[0])),
        own_(WorkspaceOf(rank_)),
        round_(own_->rounds[blockIdx.x]) {}

  // Sends `length` chunks to all devices, and returns when all have sent
  // theirs.
  __device__ void Run(const Chunk<T>* x, int length) {
    ++round_;
    for (int i = threadIdx.x; i < length; i += blockDim.x) {
      const Chunk<T> chunk = x[i];
      // Each device starts with another peer.
      for (int step = 0; step < count_; ++step) {
        const int to = (rank_ + step) % count_;
        Data(WorkspaceOf(to), rank_)[i] = chunk;
      }
    }
    __syncthreads();
    if (threadIdx.x < count_) {
      Signal(&WorkspaceOf(threadIdx.x)->arrived[blockIdx.x][rank_], round_);
      WaitFor(&own_->arrived[blockIdx.x][threadIdx.x], round_);
    }
    __syncthreads();
  }

  // The sum of chunk i over the devices.
  __device__ Chunk<T> Sum(int i) const {
    float sums[kElements] = {};
    for (int from = 0; from < count_; ++from) {
      const Chunk<T> chunk = LoadReceived(Data(own_, from) + i);
#pragma unroll
      for (int j = 0; j < kElements; ++j) sums[j] += ToFloat(chunk.values[j]);
    }
    Chunk<T> sum;
#pragma unroll
    for (int j = 0; j < kElements; ++j) sum.values[j] = FromFloat<T>(sums[j]);
    return sum;
  }

  __device__ void Finish() {
    if (threadIdx.x == 0) own_->rounds[blockIdx.x] = round_;
  }

 private:
  static constexpr int kElements = 16 / sizeof(T);

  __device__ Workspace* WorkspaceOf(int rank) const {
    return reinterpret_cast<Workspace*>(peers_[1 + rank]);
  }

  __device__ Chunk<T>* Data(Workspace* workspace, int from) const {
    return reinterpret_cast<Chunk<T>*>(
        workspace->data[blockIdx.x][round_ % 2][from]);
  }

  const int64_t* peers_;
  const int count_, rank_;
  Workspace* const own_;
  uint32_t round_;
};

// `size` and `block_size` count chunks; a block adds at most block_size.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AllReduceKernel(const Chunk<T>* x, const int64_t* peers, Chunk<T>* out,
                    int count, int64_t size, int64_t block_size) {
  constexpr int64_t kRound = kBlockBytes / sizeof(Chunk<T>);
  Exchange<T> exchange(peers, count);
  const int64_t end = min(size, (blockIdx.x + 1) * block_size);
  for (int64_t begin = blockIdx.x * block_size; begin < end; begin += kRound) {
    const int length = static_cast<int>(min(kRound, end - begin));
    exchange.Run(x + begin, length);
    for (int i = threadIdx.x; i < length; i += kThreads) {
      out[begin + i] = exchange.Sum(i);
    }
  }
  exchange.Finish();
}

__device__ float SumOfBlock(float value) {
  __shared__ float of_warps[kRowThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, distance);
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (float of_warp : of_warps) sum += of_warp;
  __syncthreads();  // before the next row's writes
  return sum;
}

// A row has `length` chunks.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    AllReduceRmsNormKernel(const Chunk<T>* x, const Chunk<T>* residual,
                           const Chunk<T>* weight, const int64_t* peers,
                           Chunk<T>* normed, Chunk<T>* sum, int count,
                           int64_t num_rows, int length, float epsilon) {
  constexpr int kElements = 16 / sizeof(T);
  constexpr int kMaxChunks = kBlockBytes / 16 / kRowThreads;  // per thread
  Exchange<T> exchange(peers, count);
  for (int64_t row = blockIdx.x; row < num_rows; row += gridDim.x) {
    const int64_t begin = row * length;
    exchange.Run(x + begin, length);
    float values[kMaxChunks][kElements] = {};
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kMaxChunks; ++k) {
      const int i = threadIdx.x + k * kRowThreads;
      if (i >= length) break;
      const Chunk<T> total = exchange.Sum(i);
      const Chunk<T> added = residual[begin + i];
      Chunk<T> stored;
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        const float value = ToFloat(total.values[j]) + ToFloat(added.values[j]);
        values[k][j] = value;
        squares += value * value;
        stored.values[j] = FromFloat<T>(value);
      }
      sum[begin + i] = stored;
    }
    const float mean = SumOfBlock(squares) / (length * kElements);
    const float scale = rsqrtf(mean + epsilon);
#pragma unroll
    for (int k = 0; k < kMaxChunks; ++k) {
      const int i = threadIdx.x + k * kRowThreads;
      if (i >= length) break;
      const Chunk<T> factors = weight[i];
      Chunk<T> stored;
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        const float value = ToFloat(FromFloat<T>(values[k][j] * scale));
        stored.values[j] = FromFloat<T>(value * ToFloat(factors.values[j]));
      }
      normed[begin + i] = stored;
    }
  }
  exchange.Finish();
}

template <typename T>
Status Launch(cudaStream_t stream, AnyBuffer x, AnyBuffer peers,
              AnyResult out) {
  const int64_t size = static_cast<int64_t>(x.size_bytes() / sizeof(Chunk<T>));
  const int64_t blocks =
      std::min<int64_t>((size + kThreads - 1) / kThreads, kMaxBlocks);
  AllReduceKernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      x.data<Chunk<T>>(), peers.data<int64_t>(), out.data<Chunk<T>>(),
      static_cast<int>(peers.dim(1) - 1), size, (size + blocks - 1) / blocks);
  return CudaStatus(cudaGetLastError());
}

Status LaunchAllReduce(cudaStream_t stream, AnyBuffer x, AnyBuffer peers,
                       AnyResult out) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckAllReduce(x, peers));
  if (x.size() == 0) return Status::Ok();
  XLA_KERNEL_RETURN_IF_ERROR(CheckAligned("x", x.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAligned("out", out.untyped_data()));
  switch (x.dtype()) {
    case F16:
      return Launch<__half>(stream, x, peers, out);
    case BF16:
      return Launch<__nv_bfloat16>(stream, x, peers, out);
    default:  // F32
      return Launch<float>(stream, x, peers, out);
  }
}

template <typename T>
Status LaunchNorm(cudaStream_t stream, AnyBuffer x, AnyBuffer residual,
                  AnyBuffer weight, AnyBuffer peers, AnyResult normed,
                  AnyResult sum, const AllReduceRmsNormParams& params) {
  const int64_t num_rows = x.dim(0);
  const int64_t blocks = std::min<int64_t>(num_rows, kMaxBlocks);
  AllReduceRmsNormKernel<T>
      <<<static_cast<unsigned>(blocks), kRowThreads, 0, stream>>>(
          x.data<Chunk<T>>(), residual.data<Chunk<T>>(),
          weight.data<Chunk<T>>(), peers.data<int64_t>(),
          normed.data<Chunk<T>>(), sum.data<Chunk<T>>(),
          static_cast<int>(peers.dim(1) - 1), num_rows,
          static_cast<int>(weight.size_bytes() / 16),
          static_cast<float>(params.epsilon));
  return CudaStatus(cudaGetLastError());
}

Status LaunchAllReduceRmsNorm(cudaStream_t stream, AnyBuffer x,
                              AnyBuffer residual, AnyBuffer weight,
                              AnyBuffer peers, AnyResult normed, AnyResult sum,
                              const AllReduceRmsNormParams& params) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckAllReduceRmsNorm(x, peers));
  if (x.size() == 0) return Status::Ok();
  XLA_KERNEL_RETURN_IF_ERROR(CheckAligned("x", x.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAligned("residual", residual.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAligned("weight", weight.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAligned("normed", normed.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAligned("sum", sum.untyped_data()));
  switch (x.dtype()) {
    case F16:
      return LaunchNorm<__half>(stream, x, residual, weight, peers, normed, sum,
                                params);
    case BF16:
      return LaunchNorm<__nv_bfloat16>(stream, x, residual, weight, peers,
                                       normed, sum, params);
    default:  // F32
      return LaunchNorm<float>(stream, x, residual, weight, peers, normed, sum,
                               params);
  }
}

}  // namespace
}  // namespace torch_xla_ext::all_reduce

XLA_KERNEL_CUDA(XlaGpuAllReduce, torch_xla_ext::all_reduce::kAllReduce,
                torch_xla_ext::all_reduce::LaunchAllReduce,
                torch_xla_ext::kCommandBufferCompatible);

XLA_KERNEL_CUDA(XlaGpuAllReduceRmsNorm,
                torch_xla_ext::all_reduce::kAllReduceRmsNorm,
                torch_xla_ext::all_reduce::LaunchAllReduceRmsNorm,
                torch_xla_ext::kCommandBufferCompatible);
