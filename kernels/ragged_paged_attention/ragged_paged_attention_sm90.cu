// The kernel for Hopper: FlashAttention-3 (Shah et al., 2024, and its source,
// hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp) over a paged cache.
//
// A block stays on its multiprocessor and computes tile after tile of kRows
// query rows of one kv head; a row is a token and one of the group's heads. One
// warp of the first warpgroup finds the tiles and has the copy engine gather
// pages; the two other warpgroups have 64 rows each and compute. While one
// warpgroup computes exponentials, the products of the other run, and so does
// its own next product of queries and keys.
#include <cuda.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <type_traits>

#include "kernels/common/tensor_map.h"
#include "kernels/common/wgmma.cuh"
#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/sm90_combine.cuh"
#include "kernels/ragged_paged_attention/sm90_consumer.cuh"
#include "kernels/ragged_paged_attention/sm90_producer.cuh"
#include "kernels/ragged_paged_attention/sm90_split.cuh"
#include "kernels/ragged_paged_attention/sm90_widen.cuh"
#include "kernels/ragged_paged_attention/variants.cuh"

namespace torch_xla_ext::ragged {
namespace sm90 {
namespace {

template <typename T, Products kProducts, bool kSoftCap>
__global__ void __launch_bounds__(BlockOf<kProducts>::kThreads, 1)
    Sm90Kernel(const __grid_constant__ Arguments arguments,
               const __grid_constant__ Split split,
               const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (NothingIsLeft(arguments)) return;
  extern __shared__ uint8_t shared_bytes[];
  // The swizzle is a function of the address, so tiles must begin at multiples
  // of 1 KB.
  using Block = BlockOf<kProducts>;
  constexpr bool kWidens = kProducts != Products::kSame;
  Memory<kProducts>& shared = *reinterpret_cast<Memory<kProducts>*>(
      (reinterpret_cast<uintptr_t>(shared_bytes) + 1023) & ~uintptr_t{1023});
  if (threadIdx.x == 0) {
    PrefetchMap(&maps.q);
    PrefetchMap(&maps.keys);
    PrefetchMap(&maps.values);
    InitBarrier(SharedAddress(&shared.q_full), 1);
    InitBarrier(SharedAddress(&shared.q_empty),
                kProducts == Products::kF8 ? kWidenerWarps : kConsumerWarps);
    for (auto& stages : shared.stages) {
      InitBarriers(stages, kWidens ? kWidenerWarps : 1, kConsumerWarps);
    }
    if constexpr (kWidens) {
      InitBarriers(shared.narrow.stages[0], 1,
                   kProducts == Products::kF8 ? kConsumerWarps : kWidenerWarps);
      InitBarriers(shared.narrow.stages[1], 1, kWidenerWarps);
    }
    for (int i = 0; i < kTileSlots; ++i) {
      InitBarrier(SharedAddress(&shared.tile_full[i]), 1);
      // The warps that compute and widen, and the one that copies values.
      InitBarrier(SharedAddress(&shared.tile_empty[i]),
                  kConsumerWarps + (kWidens ? kWidenerWarps : 0) + 1);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    asm volatile(
        "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Block::kProducerRegisters));
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp == 0) {
      ProduceTiles(arguments, split, maps, shared);
    } else if (warp == 1) {
      ProduceValues(arguments, maps, shared);
    } else {
      ZeroOtherRows(arguments, blockIdx.x, gridDim.x, threadIdx.x - 64, 64);
    }
  } else if (warpgroup <= 2) {
    asm volatile(
        "setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Block::kConsumerRegisters));
    Consume<T, kProducts, kSoftCap>(arguments, split, shared, warpgroup - 1);
  } else if constexpr (kWidens) {
    asm volatile(
        "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Block::kWidenerRegisters));
    WidenTiles<T, kProducts>(shared);
  }
#endif
}

template <typename T, Products kProducts, bool kSoftCap>
cudaError_t Launch(cudaStream_t stream, const Arguments& arguments,
                   const Maps& maps) {
  const auto kernel = Sm90Kernel<T, kProducts, kSoftCap>;
  constexpr int bytes =
      sizeof(SharedMemory < kProducts != Products::kSame >) + 1024;
  static_assert(bytes <= 227 * 1024);
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  Device device;
  error = GetDevice(&device);
  if (error != cudaSuccess) return error;
  const int blocks = device.multiprocessors;
  const Split split = MakeSplit(arguments, kHeadDim, blocks);
  const int64_t arrivals =
      split.max_parts == 1
          ? 0
          : 2 * arguments.num_kv_heads *
                NumTileSlots(arguments.num_tokens, arguments.max_num_seqs,
                             arguments.group_size);
  const int64_t counters = split.counter == nullptr ? 0 : 2 + arrivals;
  error = LaunchKernel(stream, kernel, blocks, BlockOf<kProducts>::kThreads,
                       bytes, counters, arguments, split, maps);
  if (error != cudaSuccess || !split.has_combine_kernel) return error;
  return LaunchCombine<T>(stream, arguments, split);
}

template <typename T, Products kProducts>
cudaError_t Launch(cudaStream_t stream, const Arguments& arguments,
                   const Maps& maps) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if (arguments.soft_cap > 0) {
      return Launch<T, kProducts, true>(stream, arguments, maps);
    }
  }
  return Launch<T, kProducts, false>(stream, arguments, maps);
}

}  // namespace
}  // namespace sm90

cudaError_t LaunchSm90Kernel(cudaStream_t stream, const Arguments& arguments,
                             bool cache_is_fp8) {
  using namespace sm90;  // NOLINT
  const bool is_bf16 = arguments.is_bf16;
  const uint64_t head_dim = kHeadDim;
  const uint64_t num_q_heads = arguments.num_q_heads;
  const uint64_t group = arguments.group_size;
  const uint64_t kv_row = arguments.num_kv_heads * 2 * head_dim;
  const uint64_t kv_row_bytes = kv_row * (cache_is_fp8 ? 1 : 2);
  const uint64_t page_size = arguments.page_size;
  const bool has_f8_products = cache_is_fp8 && is_bf16 && arguments.q_is_float8;
  Maps maps;
  CUresult result = EncodeMap(
      &maps.q, arguments.q, MapType(is_bf16),
      {head_dim, num_q_heads, static_cast<uint64_t>(arguments.num_tokens)},
      {head_dim * 2, num_q_heads * head_dim * 2},
      {64, static_cast<uint32_t>(group), static_cast<uint32_t>(kRows / group)});
  const auto encode = [&](CUtensorMap* map, bool is_read_by_tensor_cores) {
    if (result != CUDA_SUCCESS) return;
    result = EncodeMap(
        map, arguments.kv_pages,
        cache_is_fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : MapType(is_bf16),
        {kv_row, page_size, static_cast<uint64_t>(arguments.total_num_pages)},
        {kv_row_bytes, page_size * kv_row_bytes},
        {cache_is_fp8 ? 128u : 64u,
         static_cast<uint32_t>(std::min<uint64_t>(page_size, kTokens)), 1},
        is_read_by_tensor_cores ? CU_TENSOR_MAP_SWIZZLE_128B
                                : CU_TENSOR_MAP_SWIZZLE_NONE);
  };
  encode(&maps.keys, !cache_is_fp8 || has_f8_products);
  encode(&maps.values, !cache_is_fp8);
  if (result != CUDA_SUCCESS) return cudaErrorInvalidValue;
  const auto launch = has_f8_products ? Launch<__nv_bfloat16, Products::kF8>
                      : cache_is_fp8
                          ? (is_bf16 ? Launch<__nv_bfloat16, Products::kWidened>
                                     : Launch<__half, Products::kWidened>)
                          : (is_bf16 ? Launch<__nv_bfloat16, Products::kSame>
                                     : Launch<__half, Products::kSame>);
  return launch(stream, arguments, maps);
}

}  // namespace torch_xla_ext::ragged
