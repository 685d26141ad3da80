// XlaGpuAllReduce for CUDA.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/all_reduce/all_reduce.h"
#include "kernels/common/checks.h"
#include "kernels/common/vector.cuh"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::all_reduce {
namespace {

constexpr int kThreads = 256;

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

// What the device wrote before becomes visible to a device that reads the flag.
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

// Past the caches, in which a line of an earlier round may be.
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

// `size` and `block_size`, the most that a block adds, are numbers of chunks.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    AllReduceKernel(const Chunk<T>* x, const int64_t* peers, Chunk<T>* out,
                    int count, int64_t size, int64_t block_size) {
  constexpr int kElements = 16 / sizeof(T);
  constexpr int64_t kRound = kBlockBytes / sizeof(Chunk<T>);
  const int block = blockIdx.x, rank = static_cast<int>(peers[0]);
  const auto workspace = [&](int of) {
    return reinterpret_cast<Workspace*>(peers[1 + of]);
  };
  Workspace* const own = workspace(rank);
  uint32_t round = own->rounds[block];
  const int64_t end = min(size, (block + 1) * block_size);
  for (int64_t begin = block * block_size; begin < end; begin += kRound) {
    const int length = static_cast<int>(min(kRound, end - begin));
    ++round;
    for (int i = threadIdx.x; i < length; i += kThreads) {
      const Chunk<T> chunk = x[begin + i];
      for (int step = 0; step < count; ++step) {  // each starts at another
        const int to = (rank + step) % count;
        reinterpret_cast<Chunk<T>*>(
            workspace(to)->data[block][round % 2][rank])[i] = chunk;
      }
    }
    __syncthreads();
    if (threadIdx.x < count) {
      Signal(&workspace(threadIdx.x)->arrived[block][rank], round);
      WaitFor(&own->arrived[block][threadIdx.x], round);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < length; i += kThreads) {
      float sums[kElements] = {};
      for (int from = 0; from < count; ++from) {
        const Chunk<T> chunk =
            LoadReceived(reinterpret_cast<const Chunk<T>*>(
                             own->data[block][round % 2][from]) +
                         i);
#pragma unroll
        for (int j = 0; j < kElements; ++j) sums[j] += ToFloat(chunk.values[j]);
      }
      Chunk<T> sum;
#pragma unroll
      for (int j = 0; j < kElements; ++j) {
        sum.values[j] = FromFloat<T>(sums[j]);
      }
      out[begin + i] = sum;
    }
  }
  if (threadIdx.x == 0) own->rounds[block] = round;
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

}  // namespace
}  // namespace torch_xla_ext::all_reduce

XLA_KERNEL_CUDA(XlaGpuAllReduce, torch_xla_ext::all_reduce::kAllReduce,
                torch_xla_ext::all_reduce::LaunchAllReduce,
                torch_xla_ext::kCommandBufferCompatible);
