// XlaGpuSkinnyLinear and XlaGpuSkinnySwiglu for CUDA: one kernel.
//
// The goal is to load weights at the memory's speed. A block takes 16 rows of
// weights, which are the left operand of the tensor cores' product; the rows of
// x, at most 16, are the right one. Its warps share k, and add their sums in
// order. Threads load 16 bytes of a row straight into registers, a round ahead:
// a product is a sum over k in any order, so a thread's 8 elements may be used
// as any elements of the operands. In a round a warp reads 256 contiguous bytes
// of each row.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>
#include <cstdint>

#include "kernels/common/ptx.cuh"
#include "kernels/skinny_linear/skinny_linear.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::skinny_linear {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kTile = 16;   // rows of weights
constexpr int kDepth = 32;  // elements of each row per load of a warp
constexpr int kLoads = 4;   // loads per round
// Floats per row of sums, padded to avoid bank conflicts.
constexpr int kPitch = 20;

struct Arguments {
  const void* x;
  const void* w;
  void* out;
  int rows, groups, n, k;
};

// Weights are read once in a step, so they need not be cached in L1.
__device__ inline uint4 LoadOnce(const void* from) {
  uint4 data;
  asm volatile(
      "ld.global.nc.L1::evict_first.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(data.x), "=r"(data.y), "=r"(data.z), "=r"(data.w)
      : "l"(from));
  return data;
}

// kColumns are rows of x, a multiple of 8. For a gated product the tile has 8
// rows of gate, then the same rows of up.
template <typename T, int kColumns, bool kIsGated>
__global__ void __launch_bounds__(kThreads, kColumns == 8 ? 3 : 2)
    SkinnyLinearKernel(const __grid_constant__ Arguments arguments) {
  constexpr int kBlocks = kColumns / 8;
  constexpr int kOutputs = kIsGated ? kTile / 2 : kTile;  // per tile
  __shared__ float shared[kWarps][kColumns][kPitch];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t n = arguments.n, k = arguments.k;
  const int group = static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kOutputs;

  // Threads for rows after the last one compute the last one again, and write
  // nothing.
  const int offset = lane % 4 * 8;
  const T* w[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + lane / 4 + (kIsGated ? 0 : half * 8);
    const int64_t before = kIsGated ? (group * 2 + half) * n : 0;
    w[half] = static_cast<const T*>(arguments.w) +
              (before + min(row, arguments.n - 1)) * k + offset;
  }
  const T* x[kBlocks];
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int row = min(block * 8 + lane / 4, arguments.rows - 1);
    x[block] = static_cast<const T*>(arguments.x) + row * k + offset;
  }

  uint4 left[kLoads][2], right[kLoads][kBlocks];
  const auto load = [&](int i, int64_t depth) {
    const bool exists = depth + offset < k;
    const uint4 zeros = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      left[i][half] = exists ? LoadOnce(w[half] + depth) : zeros;
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      right[i][block] =
          exists ? __ldg(reinterpret_cast<const uint4*>(x[block] + depth))
                 : zeros;
    }
  };
  const int first_depth = warp * kLoads * kDepth;
  float sums[kBlocks][4] = {};
#pragma unroll
  for (int i = 0; i < kLoads; ++i) load(i, first_depth + i * kDepth);
  for (int64_t depth = first_depth; depth < k;) {
    depth += kWarps * kLoads * kDepth;  // offset of the next round
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint4 upper = left[i][0], lower = left[i][1];
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const uint4 columns = right[i][block];
        MultiplyAdd<T>(sums[block], {upper.x, lower.x, upper.y, lower.y},
                       {columns.x, columns.y});
        MultiplyAdd<T>(sums[block], {upper.z, lower.z, upper.w, lower.w},
                       {columns.z, columns.w});
      }
      load(i, depth + i * kDepth);
    }
  }

#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shared[warp][block * 8 + lane % 4 * 2 + i % 2][i / 2 * 8 + lane / 4] =
          sums[block][i];
    }
  }
  __syncthreads();
  const int row = threadIdx.x / kOutputs, column = threadIdx.x % kOutputs;
  if (row >= arguments.rows || first + column >= arguments.n) return;
  const auto total = [&](int of_tile) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += shared[i][row][of_tile];
    return sum;
  };
  float result = total(column);
  if constexpr (kIsGated) {
    result = result / (1 + __expf(-result)) * total(column + kTile / 2);
  }
  static_cast<T*>(arguments.out)[(int64_t{row} * arguments.groups + group) * n +
                                 first + column] = static_cast<T>(result);
}

template <typename T, bool kIsGated>
void LaunchKernel(cudaStream_t stream, const Arguments& arguments) {
  constexpr int kOutputs = kIsGated ? kTile / 2 : kTile;
  const dim3 grid((arguments.n - 1) / kOutputs + 1, arguments.groups);
  const auto kernel = arguments.rows <= 8 ? SkinnyLinearKernel<T, 8, kIsGated>
                                          : SkinnyLinearKernel<T, 16, kIsGated>;
  kernel<<<grid, kThreads, 0, stream>>>(arguments);
}

template <bool kIsGated>
Status Launch(cudaStream_t stream, AnyBuffer x, AnyBuffer w, AnyResult out) {
  if (out.size() == 0) return Status::Ok();
  const int64_t groups = kIsGated ? w.dim(0) : 1;
  const int64_t n = out.size() / groups / x.dim(0), k = x.dim(1);
  if (std::max(n, k) > INT_MAX - kThreads || groups > 65535) {
    return Status::Error("expected smaller dimensions than ", groups,
                         " groups of ", n, " x ", k, " weights");
  }
  for (const void* data : {x.untyped_data(), w.untyped_data()}) {
    if (reinterpret_cast<uintptr_t>(data) % sizeof(uint4) != 0) {
      return Status::Error("expected addresses that are multiples of 16");
    }
  }
  const Arguments arguments = {
      x.untyped_data(),           w.untyped_data(),         out.untyped_data(),
      static_cast<int>(x.dim(0)), static_cast<int>(groups), static_cast<int>(n),
      static_cast<int>(k)};
  if (x.dtype() == BF16) {
    LaunchKernel<__nv_bfloat16, kIsGated>(stream, arguments);
  } else {
    LaunchKernel<__half, kIsGated>(stream, arguments);
  }
  return CudaStatus(cudaGetLastError());
}

}  // namespace
}  // namespace torch_xla_ext::skinny_linear

namespace skinny = torch_xla_ext::skinny_linear;

XLA_KERNEL_CUDA(XlaGpuSkinnyLinear, skinny::kSkinnyLinear,
                skinny::Launch<false>, torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(XlaGpuSkinnySwiglu, skinny::kSkinnySwiglu, skinny::Launch<true>,
                torch_xla_ext::kCommandBufferCompatible);
