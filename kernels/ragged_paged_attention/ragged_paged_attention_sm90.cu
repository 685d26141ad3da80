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
#include "kernels/ragged_paged_attention/sm90_producer.cuh"
#include "kernels/ragged_paged_attention/sm90_split.cuh"
#include "kernels/ragged_paged_attention/sm90_widen.cuh"

namespace torch_xla_ext::ragged {
namespace sm90 {
namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Run by a warpgroup: computes its 64 rows of each tile.
template <typename T, bool kWidens, bool kSoftCap>
__device__ void Consume(const Arguments& arguments, const Split& split,
                        SharedMemory<kWidens>& shared, int warpgroup) {
  // The dtype of values and weights.
  using V = std::conditional_t<kWidens, __half, T>;
  constexpr int kStages = SharedMemory<kWidens>::kStages;
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  const float input_scale = arguments.logit_scale * kLog2e;
  const float cap_factor = kSoftCap ? 2 * input_scale / arguments.soft_cap : 0;
  const float cap = arguments.soft_cap * kLog2e;
  // The scale of the logits after the soft cap, to the base 2.
  const float scale = kSoftCap ? 1.0f : input_scale;
  const unsigned window = arguments.sliding_window;
  const int box_tokens = min(arguments.page_size, kTokens);

  const uint64_t q_descriptor = MatrixDescriptor(
      SharedAddress(shared.q) + warpgroup * (64 * 128), 16, 1024);
  const uint64_t k_descriptor =
      MatrixDescriptor(SharedAddress(shared.kv[0]), 16, 1024);
  const uint64_t v_descriptor =
      MatrixDescriptor(SharedAddress(shared.kv[1]), kTokens * 128, 1024);

  Ring<kTileSlots> tile_ring;
  Ring<1> q_ring;
  Ring<kStages> k_ring, v_ring;
  auto release = [&](uint64_t* barrier) {
    if (lane == 0) Arrive(SharedAddress(barrier));
  };

  if (warpgroup == 1) ArriveNamed(kTurnBarrier, 256);
  while (true) {
    const Tile tile = TakeTile(shared, tile_ring);
    if (tile.is_last) break;

    // Thread t has rows row and row + 8 of its warpgroup's.
    const int first_row = warpgroup * 64;
    const int row = first_row + thread / 32 * 16 + lane / 4;
    const int group = arguments.group_size;
    const int step = tile.position_step;
    const int min_position = tile.position + first_row / group * step;
    const int max_position =
        tile.position + (min(first_row + 64, tile.num_rows) - 1) / group * step;
    const int position[2] = {tile.position + row / group * step,
                             tile.position + (row + 8) / group * step};

    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0, 0};
    float out[kHeadDim / 2];
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out[i] = 0;

    if (tile.kv_begin < tile.kv_end && first_row >= tile.num_rows) {
      // This warpgroup has no rows, but the other one has: let the copies
      // continue.
      for (int n = tile.kv_begin; n < tile.kv_end; ++n) {
        Wait(SharedAddress(&shared.stages[0].full[k_ring.slot]), k_ring.parity);
        release(&shared.stages[0].empty[k_ring.slot]);
        k_ring.Advance();
        Wait(SharedAddress(&shared.stages[1].full[v_ring.slot]), v_ring.parity);
        release(&shared.stages[1].empty[v_ring.slot]);
        v_ring.Advance();
      }
      Wait(SharedAddress(&shared.q_full), q_ring.parity);
      release(&shared.q_empty);
      q_ring.Advance();
    } else if (tile.kv_begin < tile.kv_end) {
      const bool turns = tile.num_rows > 64;
      float s[kTokens / 2];
      uint32_t p[kTokens / 4];
      float rescale[2];

      auto issue_qk = [&] {
        const uint64_t k = k_descriptor + (k_ring.slot * kKvBytes >> 4);
        Pin(s);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < kHeadDim / 16; ++i) {
          Wgmma<T>(s, q_descriptor + (i / 4 * (kRows * 128) + i % 4 * 32 >> 4),
                   k + (i / 4 * (kTokens * 128) + i % 4 * 32 >> 4), i != 0);
        }
        WgmmaCommit();
      };
      auto issue_pv = [&] {
        const uint64_t v = v_descriptor + (v_ring.slot * kKvBytes >> 4);
        Pin(out);
        Pin(p);
        WgmmaFence();
#pragma unroll
        for (int i = 0; i < kTokens / 16; ++i) {
          WgmmaRegisters<V>(out, p[4 * i], p[4 * i + 1], p[4 * i + 2],
                            p[4 * i + 3], v + (i * 2048 >> 4), true);
        }
        WgmmaCommit();
      };
      // Whether any logits of tile n have to be masked.
      auto needs_mask = [&](int n, uint32_t bad_pages) {
        const int begin = n * kTokens;
        return begin + kTokens - 1 > min_position ||
               begin + static_cast<int64_t>(window) <= max_position ||
               bad_pages != 0;
      };
      // Masks tile n of the logits, and computes their new maximum and
      // exponentials.
      auto softmax = [&](auto masked, int n, uint32_t bad_pages) {
        if constexpr (kSoftCap) {
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            s[i] = SoftCap(s[i], cap_factor, cap);
          }
        }
        if constexpr (decltype(masked)::value) {
          const int begin = n * kTokens + lane % 4 * 2;
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            const int column = i / 4 * 8 + i % 2;
            const unsigned distance = position[i % 4 / 2] - begin - column;
            if (distance >= window) s[i] = -INFINITY;
          }
          if (bad_pages != 0) {
#pragma unroll
            for (int i = 0; i < kTokens / 2; ++i) {
              if (bad_pages >> (i / 4 * 8 / box_tokens) & 1) s[i] = -INFINITY;
            }
          }
        }
        // Two maxima per row, so that fewer comparisons wait for another.
        float new_max[2][2] = {{row_max[0], s[0]}, {row_max[1], s[2]}};
#pragma unroll
        for (int i = 0; i < kTokens / 2; i += 2) {
          float& partial = new_max[i / 2 % 2][i / 4 % 2];
          partial = fmaxf(partial, fmaxf(s[i], s[i + 1]));
        }
        float base[2], sum[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float row = fmaxf(new_max[r][0], new_max[r][1]);
          row = fmaxf(row, __shfl_xor_sync(~0u, row, 1));
          row = fmaxf(row, __shfl_xor_sync(~0u, row, 2));
          // The maximum is replaced only if the new one is larger by a factor
          // of 2^8: factors of up to 2^8 do no harm, and the sums so far are
          // seldom rescaled.
          const float old = row_max[r];
          row_max[r] = (row - old) * scale > 8.0f ? row : old;
          // All terms of a row that has had no visible token yet are zero.
          base[r] = row_max[r] == -INFINITY ? 0 : row_max[r] * scale;
          rescale[r] = Exp2(old * scale - base[r]);
          if (row_max[r] == old) rescale[r] = 1;
        }
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) {
          s[i] = Exp2(s[i] * scale - base[i / 2 % 2]);
          sum[i / 2 % 2] += s[i];
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          row_sum[r] = row_sum[r] * rescale[r] + sum[r];
        }
      };
      auto pack = [&] {
#pragma unroll
        for (int i = 0; i < kTokens / 4; ++i) {
          p[i] = Pack<V>(s[2 * i], s[2 * i + 1]);
        }
      };

      Wait(SharedAddress(&shared.q_full), q_ring.parity);
      int n = tile.kv_end - 1;
      Wait(SharedAddress(&shared.stages[0].full[k_ring.slot]), k_ring.parity);
      uint32_t bad_pages = shared.stages[0].bad_pages[k_ring.slot];
      issue_qk();
      WgmmaWait<0>();
      Pin(s);
      release(&shared.stages[0].empty[k_ring.slot]);
      k_ring.Advance();
      softmax(std::true_type(), n, bad_pages);
      pack();
      // Zeroes the values [first, last) of a tile: memory before the window or
      // after the last token may hold NaN, and 0 * NaN is NaN.
      auto zero_values = [&](int first, int last) {
        if (first >= last) return;
        Wait(SharedAddress(&shared.stages[1].full[v_ring.slot]), v_ring.parity);
        uint8_t* v = shared.kv[1][v_ring.slot];
        for (int i = first * 8 + thread; i < last * 8; i += 128) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            *reinterpret_cast<uint4*>(v + half * (kTokens * 128) + i * 16) =
                make_uint4(0, 0, 0, 0);
          }
        }
        FenceAsyncProxy();
        SyncNamed(kGroupBarrier + warpgroup, 128);
      };
      zero_values(tile.kv_len - n * kTokens, kTokens);
      auto step = [&](auto masked) {
        if (turns) SyncNamed(kTurnBarrier + warpgroup, 256);
        issue_qk();
        Wait(SharedAddress(&shared.stages[1].full[v_ring.slot]), v_ring.parity);
        issue_pv();
        if (turns) ArriveNamed(kTurnBarrier + (warpgroup ^ 1), 256);
        WgmmaWait<1>();
        Pin(s);
        release(&shared.stages[0].empty[k_ring.slot]);
        k_ring.Advance();
        softmax(masked, n, bad_pages);
        // Sums are never negative, but this check keeps ptxas from moving the
        // wait before the exponentials, which should run meanwhile.
        if (row_sum[0] + row_sum[1] < 0) __trap();
        WgmmaWait<0>();
        Pin(out);
        release(&shared.stages[1].empty[v_ring.slot]);
        v_ring.Advance();
        pack();
        if (__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1)) {
#pragma unroll
          for (int i = 0; i < kHeadDim / 2; ++i) out[i] *= rescale[i % 4 / 2];
        }
      };
      for (--n; n >= tile.kv_begin; --n) {
        Wait(SharedAddress(&shared.stages[0].full[k_ring.slot]), k_ring.parity);
        bad_pages = shared.stages[0].bad_pages[k_ring.slot];
        if (needs_mask(n, bad_pages)) {
          step(std::true_type());
        } else {
          step(std::false_type());
        }
      }
      release(&shared.q_empty);
      q_ring.Advance();
      Wait(SharedAddress(&shared.stages[1].full[v_ring.slot]), v_ring.parity);
      zero_values(0, max(tile.position, 0) - arguments.sliding_window + 1 -
                         tile.kv_begin * kTokens);
      issue_pv();
      WgmmaWait<0>();
      Pin(out);
      release(&shared.stages[1].empty[v_ring.slot]);
      v_ring.Advance();
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[r] += __shfl_xor_sync(~0u, row_sum[r], 1);
      row_sum[r] += __shfl_xor_sync(~0u, row_sum[r], 2);
    }
    if (tile.num_parts > 1) {
      if (first_row < tile.num_rows) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int this_row = row + r * 8;
          if (this_row >= tile.num_rows) continue;
          float* part = PartsOf(arguments, split, tile.place + this_row / group,
                                tile.kv_head) +
                        tile.part * split.part_size;
#pragma unroll
          for (int i = 0; i < kHeadDim / 8; ++i) {
            const int column = i * 8 + lane % 4 * 2;
            *reinterpret_cast<float2*>(part + this_row % group * kHeadDim +
                                       column) =
                make_float2(out[i * 4 + r * 2], out[i * 4 + r * 2 + 1]);
          }
          *reinterpret_cast<float2*>(part + group * kHeadDim +
                                     this_row % group * 2) =
              make_float2(row_max[r] * scale, row_sum[r]);
        }
        if (split.has_combine_kernel) continue;
        __threadfence();
        SyncNamed(kGroupBarrier + warpgroup, 128);
        if (thread == 0) {
          const int64_t pair =
              int64_t{1} * tile.slot * arguments.num_kv_heads + tile.kv_head;
          shared.is_last_part[warpgroup] =
              atomicAdd(split.arrivals + pair * 2 + warpgroup, 1) ==
              static_cast<unsigned>(tile.num_parts - 1);
        }
        SyncNamed(kGroupBarrier + warpgroup, 128);
        if (shared.is_last_part[warpgroup]) {
          __threadfence();
          CombineParts<T, kHeadDim>(arguments, split, tile.place, tile.kv_head,
                                    tile.num_parts, tile.q_row, first_row,
                                    min(first_row + 64, tile.num_rows), thread);
        }
      }
      continue;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int this_row = row + r * 8;
      const bool exists = this_row < tile.num_rows;
      const int64_t out_row =
          static_cast<int64_t>(tile.q_row + this_row / group) *
              arguments.num_q_heads +
          tile.kv_head * group + this_row % group;
      const float factor = Finish(arguments, out_row, exists && lane % 4 == 0,
                                  row_max[r] * scale, row_sum[r]);
      T* to =
          static_cast<T*>(arguments.out) + out_row * kHeadDim + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < kHeadDim / 8; i += 4) {
        auto word = [&](int j) {
          const int at = (i + j) * 4 + r * 2;
          return Pack<T>(out[at] * factor, out[at + 1] * factor);
        };
        const uint4 packet = TransposeQuad(word(0), word(1), word(2), word(3));
        if (exists) *reinterpret_cast<uint4*>(to + i * 8) = packet;
      }
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename T, bool kWidens, bool kSoftCap>
__global__ void __launch_bounds__(Block<kWidens>::kThreads, 1)
    Sm90Kernel(const __grid_constant__ Arguments arguments,
               const __grid_constant__ Split split,
               const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if (NothingIsLeft(arguments)) return;
  extern __shared__ uint8_t shared_bytes[];
  // The swizzle is a function of the address, so tiles must begin at multiples
  // of 1 KB.
  SharedMemory<kWidens>& shared = *reinterpret_cast<SharedMemory<kWidens>*>(
      (reinterpret_cast<uintptr_t>(shared_bytes) + 1023) & ~uintptr_t{1023});
  if (threadIdx.x == 0) {
    PrefetchMap(&maps.q);
    PrefetchMap(&maps.kv_pages);
    InitBarrier(SharedAddress(&shared.q_full), 1);
    InitBarrier(SharedAddress(&shared.q_empty), kConsumerWarps);
    for (auto& stages : shared.stages) {
      InitBarriers(stages, kWidens ? kWidenerWarps : 1, kConsumerWarps);
    }
    if constexpr (kWidens) {
      for (auto& stages : shared.narrow.stages) {
        InitBarriers(stages, 1, kWidenerWarps);
      }
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
  using Block = Block<kWidens>;
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
    Consume<T, kWidens, kSoftCap>(arguments, split, shared, warpgroup - 1);
  } else if constexpr (kWidens) {
    asm volatile(
        "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Block::kWidenerRegisters));
    WidenTiles<T>(shared);
  }
#endif
}

// An attribute of the calling thread's current device.
int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

template <typename T, bool kWidens, bool kSoftCap>
cudaError_t Launch(cudaStream_t stream, const Arguments& arguments,
                   const Maps& maps) {
  const auto kernel = Sm90Kernel<T, kWidens, kSoftCap>;
  constexpr int bytes = sizeof(SharedMemory<kWidens>) + 1024;
  static_assert(bytes <= 227 * 1024);
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  const int blocks = DeviceAttribute(cudaDevAttrMultiProcessorCount);
  const Split split = MakeSplit(arguments, kHeadDim, blocks);
  const int64_t arrivals =
      split.max_parts == 1
          ? 0
          : 2 * arguments.num_kv_heads *
                NumTileSlots(arguments.num_tokens, arguments.max_num_seqs,
                             arguments.group_size);
  const int64_t counters = split.counter == nullptr ? 0 : 2 + arrivals;
  error = LaunchKernel(stream, kernel, blocks, Block<kWidens>::kThreads, bytes,
                       counters, arguments, split, maps);
  if (error != cudaSuccess || !split.has_combine_kernel) return error;
  return LaunchCombine<T>(stream, arguments, split);
}

template <typename T>
cudaError_t Launch(cudaStream_t stream, const Arguments& arguments,
                   const Maps& maps, bool cache_is_fp8) {
  const bool has_cap = arguments.soft_cap > 0;
  const auto launch =
      cache_is_fp8
          ? (has_cap ? Launch<T, true, true> : Launch<T, true, false>)
          : (has_cap ? Launch<T, false, true> : Launch<T, false, false>);
  return launch(stream, arguments, maps);
}

}  // namespace
}  // namespace sm90

bool Sm90KernelSupports(const Arguments& arguments, bool cache_is_fp8) {
  using namespace sm90;  // NOLINT
  const int page_size = arguments.page_size;
  return arguments.custom_mask == nullptr && arguments.head_dim == kHeadDim &&
         arguments.group_size <= kRows && page_size % 8 == 0 &&
         (kTokens % page_size == 0 || page_size % kTokens == 0) &&
         arguments.total_num_pages > 0 && arguments.logit_scale > 0 &&
         DeviceAttribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         DeviceAttribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

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
  Maps maps;
  CUresult result = EncodeMap(
      &maps.q, arguments.q, MapType(is_bf16),
      {head_dim, num_q_heads, static_cast<uint64_t>(arguments.num_tokens)},
      {head_dim * 2, num_q_heads * head_dim * 2},
      {64, static_cast<uint32_t>(group), static_cast<uint32_t>(kRows / group)});
  if (result == CUDA_SUCCESS) {
    result = EncodeMap(
        &maps.kv_pages, arguments.kv_pages,
        cache_is_fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : MapType(is_bf16),
        {kv_row, page_size, static_cast<uint64_t>(arguments.total_num_pages)},
        {kv_row_bytes, page_size * kv_row_bytes},
        {cache_is_fp8 ? 128u : 64u,
         static_cast<uint32_t>(std::min<uint64_t>(page_size, kTokens)), 1},
        cache_is_fp8 ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B);
  }
  if (result != CUDA_SUCCESS) return cudaErrorInvalidValue;
  return is_bf16 ? Launch<__nv_bfloat16>(stream, arguments, maps, cache_is_fp8)
                 : Launch<__half>(stream, arguments, maps, cache_is_fp8);
}

}  // namespace torch_xla_ext::ragged
