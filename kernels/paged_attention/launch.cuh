// Chooses the kernel of a call and its number of blocks, and launches it.
#ifndef KERNELS_PAGED_ATTENTION_LAUNCH_CUH_
#define KERNELS_PAGED_ATTENTION_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/common/device.h"
#include "kernels/paged_attention/attend.cuh"
#include "kernels/paged_attention/cluster.cuh"
#include "kernels/paged_attention/combine.cuh"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::paged_attention {

// How AttendKernel occupies a multiprocessor.
struct Occupancy {
  int blocks;
  int warps;  // of a block
  int stages;
  int shared_memory;  // of a block
};

// Two blocks of four warps, with three stages or more, saturate the memory. If
// they do not fit, one block uses all the shared memory.
template <typename Traits>
Occupancy ChooseOccupancy(const Device& device) {
  // Shared memory for static variables, and that the system reserves per block.
  constexpr int kReserved = 2048;
  const auto with = [&](int blocks, int warps) {
    const int available = std::min(device.shared_memory_per_block,
                                   device.shared_memory / blocks) -
                          kReserved;
    const int sums = warps * Traits::kSumBytes;
    const int stage = warps * Traits::kStageBytes;
    const int stages = std::min((available - sums) / stage, kMaxStages);
    return Occupancy{blocks, warps, stages, sums + stages * stage};
  };
  if (const Occupancy two = with(2, kMaxWarps); two.stages >= 3) return two;
  if (const Occupancy one = with(1, kMaxWarps); one.stages >= 2) return one;
  return with(1, kMaxWarps / 2);
}

// Returns at most `most`, or slightly fewer parts if sequences of equal length
// are then cut in equal parts or not at all: that leaves less to combine.
inline int PartsFor(int most, int num_seqs) {
  for (int parts = most; parts * 25 >= most * 24; --parts) {
    if (parts % num_seqs == 0 || num_seqs % parts == 0) return parts;
  }
  return most;
}

// Divides the work and the workspace. partial_out is aligned to 16 bytes.
inline void ChooseParts(int blocks, int head_dim, float* workspace,
                        int64_t workspace_size, DecodeArgs* args) {
  const int64_t head_blocks = int64_t{args->num_kv_heads} * args->head_blocks;
  const int parts =
      PartsFor(static_cast<int>(std::max(blocks / head_blocks, int64_t{1})),
               args->num_seqs);
  const int64_t skipped =
      (16 - reinterpret_cast<uintptr_t>(workspace) % 16) % 16 / sizeof(float);
  const int64_t part_floats = head_blocks * 2 * args->rows * (head_dim + 2);
  const int64_t room =
      std::max(workspace_size - skipped, int64_t{0}) / part_floats;
  // If the workspace limits the parts, splitting is worth it only if there are
  // at least as many parts as without it.
  args->split =
      parts > 1 && room > 1 && room >= std::min(parts, args->num_seqs);
  args->parts =
      args->split ? static_cast<int>(std::min<int64_t>(parts, room)) : parts;
  const int64_t rows = head_blocks * args->parts * 2 * args->rows;
  args->partial_out = workspace + skipped;
  args->partial_stats =
      reinterpret_cast<float2*>(args->partial_out + rows * head_dim);
}

// Launches a kernel in clusters of `cluster` blocks, or without clusters for 0.
// A `dependent` kernel may start before the previous kernel on the stream ends,
// and must wait for that itself.
template <typename... Args>
Status Launch(void (*kernel)(Args...), dim3 grid, int threads,
              int shared_memory, cudaStream_t stream, int cluster,
              bool dependent, const Args&... args) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_memory;
  config.stream = stream;
  config.attrs = attributes;
  if (cluster > 0) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  if (dependent) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return CudaStatus(cudaLaunchKernelEx(&config, kernel, args...));
}

template <int kUnit, typename Args>
Status LaunchCombine(cudaStream_t stream, const Device& device, int head_dim,
                     const Args& args) {
  const int candidates = Candidates(args);
  // With few rows per block, few long contexts are combined faster. But blocks
  // that do not fit beside AttendKernel's would wait for those to end.
  const int head_blocks = args.num_kv_heads * args.head_blocks;
  int rows = 1;
  while (rows < args.rows &&
         (args.rows % rows != 0 ||
          int64_t{head_blocks} * (args.rows / rows) * candidates >
              2 * device.multiprocessors)) {
    ++rows;
  }
  const dim3 grid(head_blocks * (args.rows / rows), candidates);
  return Launch(CombineKernel<kUnit, Args>, grid, kCombineThreads, 0, stream, 0,
                /*dependent=*/CodeArch(device) >= 900, args, head_dim, rows);
}

// Launches AttendKernel, or another kernel with AttendParts, and CombineKernel.
template <typename Traits, typename Args>
Status LaunchParts(cudaStream_t stream, const Device& device, float* workspace,
                   int64_t workspace_size, void (*kernel)(Args), Args args) {
  const Occupancy occupancy = ChooseOccupancy<Traits>(device);
  args.stages = occupancy.stages;
  ChooseParts(device.multiprocessors * occupancy.blocks, Traits::kHeadDim,
              workspace, workspace_size, &args);
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           occupancy.shared_memory)));
  const dim3 grid(args.num_kv_heads * args.head_blocks, args.parts);
  XLA_KERNEL_RETURN_IF_ERROR(Launch(kernel, grid, 32 * occupancy.warps,
                                    occupancy.shared_memory, stream, 0, false,
                                    args));
  if (!args.split) return Status::Ok();
  return LaunchCombine<Traits::kUnit>(stream, device, Traits::kHeadDim, args);
}

// The number of ClusterKernel's thread blocks per sequence.
inline int64_t ClusterBlocks(const DecodeArgs& args) {
  return int64_t{args.num_kv_heads} * args.head_blocks * kClusterBlocks;
}

// Whether contexts can be so long that a kernel with clusters saves nothing.
inline bool IsLong(const DecodeArgs& args, int head_dim) {
  constexpr int64_t kElements = 1 << 22;
  return int64_t{args.max_tokens} * 2 * head_dim > kElements;
}

// Whether ClusterKernel is faster for any lengths: it needs no second kernel,
// but uses only eight multiprocessors per head block of a sequence.
template <typename Traits>
bool UseClusters(const Device& device, const DecodeArgs& args) {
  const int64_t of_sequence = ClusterBlocks(args);
  // Some multiprocessors cannot be part of a cluster of eight.
  if (!IsCompiled<Traits>(Kernel::kCluster, CodeArch(device)) ||
      static_cast<int>(sizeof(ClusterMemory<Traits>)) >
          device.shared_memory_per_block ||
      args.num_seqs * of_sequence > device.multiprocessors * 7 / 8) {
    return false;
  }
  // If there is little work per byte, slightly more than a third of the GPU
  // saturates the memory.
  constexpr bool kKeepsUp =
      !Traits::kWiden && Traits::kHeadTiles == 1 && Traits::kHeadDim >= 128;
  if (kKeepsUp && of_sequence >= device.multiprocessors * 3 / 8) return true;
  return !IsLong(args, Traits::kHeadDim);
}

// Whether ClusterKernel is faster for two or three sequences, whose clusters
// fit if two blocks share a multiprocessor.
template <typename Traits>
bool UseHalfClusters(const Device& device, const DecodeArgs& args) {
  constexpr int kBytes = sizeof(ClusterMemory<Traits>) + 1024;
  return IsCompiled<Traits>(Kernel::kHalfCluster, CodeArch(device)) &&
         2 * kBytes <= device.shared_memory &&
         args.num_seqs * ClusterBlocks(args) <=
             device.multiprocessors * 7 / 4 &&
         !IsLong(args, Traits::kHeadDim);
}

template <typename Traits>
Status LaunchCluster(cudaStream_t stream, const DecodeArgs& args) {
  const auto kernel = ClusterKernel<Traits>;
  constexpr int kSharedMemory = sizeof(ClusterMemory<Traits>);
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMemory)));
  const dim3 grid(kClusterBlocks, args.num_kv_heads * args.head_blocks,
                  args.num_seqs);
  return Launch(kernel, grid, 32 * kClusterWarps, kSharedMemory, stream,
                kClusterBlocks, true, args);
}

// Implements the choice that variants.cuh describes. `Own` is the type of the
// cache, and C that of kernels that serve several.
template <typename Own, typename C, int kHeadDim, int kHeadTiles>
Status LaunchKernels(cudaStream_t stream, const Device& device,
                     float* workspace, int64_t workspace_size,
                     const DecodeArgs& args) {
  using Cluster = ClusterTraits<Own, kHeadDim, kHeadTiles>;
  if (UseClusters<Cluster>(device, args)) {
    return LaunchCluster<Cluster>(stream, args);
  }
  using HalfCluster = HalfClusterTraits<Own, kHeadDim, kHeadTiles>;
  if constexpr (IsCompiled<HalfCluster>(Kernel::kHalfCluster, 900)) {
    if (UseHalfClusters<HalfCluster>(device, args)) {
      return LaunchCluster<HalfCluster>(stream, args);
    }
  }
  using Plain = AttendTraits<Own, kHeadDim, kHeadTiles>;
  if (args.sinks == nullptr && args.lse == nullptr &&
      IsCompiled<Plain>(Kernel::kAttendPlain, CodeArch(device))) {
    return LaunchParts<Plain>(stream, device, workspace, workspace_size,
                              AttendKernel<Plain, false>, args);
  }
  using Any = AttendTraits<C, kHeadDim, kHeadTiles>;
  return LaunchParts<Any>(stream, device, workspace, workspace_size,
                          AttendKernel<Any, true>, args);
}

template <typename Own, typename C, int kHeadDim>
Status LaunchHeads(cudaStream_t stream, float* workspace,
                   int64_t workspace_size, const DecodeArgs& args) {
  Device device;
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(GetDevice(&device)));
  using OneTile = AttendTraits<C, kHeadDim, 1>;
  const auto launch =
      args.rows <= 8 && IsCompiled<OneTile>(Kernel::kAttend, CodeArch(device))
          ? LaunchKernels<Own, C, kHeadDim, 1>
          : LaunchKernels<Own, C, kHeadDim, 2>;
  return launch(stream, device, workspace, workspace_size, args);
}

template <typename Own, typename C>
Status LaunchForType(cudaStream_t stream, int64_t head_dim, float* workspace,
                     int64_t workspace_size, const DecodeArgs& args) {
  const auto launch = head_dim == 64    ? LaunchHeads<Own, C, 64>
                      : head_dim == 96  ? LaunchHeads<Own, C, 96>
                      : head_dim == 128 ? LaunchHeads<Own, C, 128>
                      : head_dim == 192 ? LaunchHeads<Own, C, 192>
                                        : LaunchHeads<Own, C, 256>;
  return launch(stream, workspace, workspace_size, args);
}

// Each source file instantiates one type C of the cache, so that they compile
// in parallel.
template <typename C>
Status LaunchForCache(cudaStream_t stream, int64_t head_dim, float* workspace,
                      int64_t workspace_size, const DecodeArgs& args) {
  if constexpr (std::is_same_v<C, Bf16OrF16>) {
    const auto launch = args.query_is_bf16 ? LaunchForType<__nv_bfloat16, C>
                                           : LaunchForType<__half, C>;
    return launch(stream, head_dim, workspace, workspace_size, args);
  } else {
    return LaunchForType<C, C>(stream, head_dim, workspace, workspace_size,
                               args);
  }
}

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_LAUNCH_CUH_
