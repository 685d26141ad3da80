// XlaGpuGroupRows for CUDA: one kernel, a counting sort.
//
// A block sorts kThreads rows. Each block itself counts the rows of all groups,
// which takes less time than another kernel would.
#include <cuda_runtime.h>

#include <climits>

#include "kernels/group_rows/group_rows.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::group_rows {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

// Run by a warp: replaces each count by the sum of the preceding counts (an
// exclusive prefix sum).
__device__ void SumBefore(int* counts, int size) {
  const int lane = threadIdx.x % 32;
  const int part = (size + 31) / 32;
  const int first = min(lane * part, size), last = min(first + part, size);
  int sum = 0;
  for (int i = first; i < last; ++i) sum += counts[i];
  int before = sum;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const int other = __shfl_up_sync(~0u, before, i);
    if (lane >= i) before += other;
  }
  before -= sum;
  for (int i = first; i < last; ++i) {
    const int count = counts[i];
    counts[i] = before;
    before += count;
  }
}

__global__ void __launch_bounds__(kThreads)
    GroupRowsKernel(const int* groups, int num_rows, int num_groups, int* order,
                    int* position, int2* ranges) {
  // Counts for each group, and for rows without a group.
  extern __shared__ int shared[];
  const int size = num_groups + 1;
  int* const first = shared;            // rows of preceding groups
  int* const earlier = first + size;    // the group's rows in preceding blocks
  int* const in_warp = earlier + size;  // [kWarps, size]: rows in each warp
  const auto group_of = [&](int row) {
    const int group = __ldg(&groups[row]);
    return 0 <= group && group < num_groups ? group : num_groups;
  };

  for (int i = threadIdx.x; i < (kWarps + 2) * size; i += kThreads) {
    shared[i] = 0;
  }
  __syncthreads();
  const int first_row = static_cast<int>(blockIdx.x) * kThreads;
  for (int row = threadIdx.x; row < num_rows; row += kThreads) {
    const int group = group_of(row);
    atomicAdd(&first[group], 1);
    if (row < first_row) atomicAdd(&earlier[group], 1);
  }
  const int row = first_row + static_cast<int>(threadIdx.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = row < num_rows ? group_of(row) : -1;
  const unsigned same = __match_any_sync(~0u, group);
  const int rank = __popc(same & ((1u << lane) - 1));
  if (group >= 0 && rank == 0) in_warp[warp * size + group] = __popc(same);
  __syncthreads();
  if (warp == 0) SumBefore(first, size);
  for (int i = threadIdx.x; i < size; i += kThreads) {
    int before = earlier[i];
    for (int w = 0; w < kWarps; ++w) {
      const int count = in_warp[w * size + i];
      in_warp[w * size + i] = before;
      before += count;
    }
  }
  __syncthreads();
  if (blockIdx.x == 0) {
    for (int i = threadIdx.x; i < num_groups; i += kThreads) {
      ranges[i] = make_int2(first[i], first[i + 1]);
    }
  }
  if (group >= 0) {
    const int at = first[group] + in_warp[warp * size + group] + rank;
    position[row] = at;
    order[at] = row;
  }
}

Status LaunchGroupRows(cudaStream_t stream, Buffer<S32, 1> groups,
                       Result<S32, 1> order, Result<S32, 1> position,
                       Result<S32, 2> ranges, const GroupRowsParams& params) {
  if (groups.size() > INT_MAX - kThreads) {
    return Status::Error("expected at most ", INT_MAX - kThreads,
                         " rows but got ", groups.size());
  }
  const int num_rows = static_cast<int>(groups.size());
  const int num_groups = static_cast<int>(params.num_groups);
  const int bytes =
      (kWarps + 2) * (num_groups + 1) * static_cast<int>(sizeof(int));
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaFuncSetAttribute(
      GroupRowsKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)));
  const int blocks = num_rows == 0 ? 1 : (num_rows - 1) / kThreads + 1;
  GroupRowsKernel<<<blocks, kThreads, bytes, stream>>>(
      groups.data(), num_rows, num_groups, order.data(), position.data(),
      reinterpret_cast<int2*>(ranges.data()));
  return CudaStatus(cudaGetLastError());
}

}  // namespace
}  // namespace torch_xla_ext::group_rows

XLA_KERNEL_CUDA(XlaGpuGroupRows, torch_xla_ext::group_rows::kGroupRows,
                torch_xla_ext::group_rows::LaunchGroupRows,
                torch_xla_ext::kCommandBufferCompatible);
