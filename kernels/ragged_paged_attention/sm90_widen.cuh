// The widening warpgroup of the Hopper kernel: converts the tiles of a cache in
// F8E4M3FN to the dtypes of the products. All conversions are exact.
//
// For a tile of 128 keys and values it reads 32 KB of shared memory and writes
// 64 KB, beside the 160 KB that the products read. That is all that shared
// memory can do in the time of the products, so no bank may be used twice at a
// time.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_SM90_WIDEN_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_SM90_WIDEN_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/ptx.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/ragged_paged_attention/sm90_producer.cuh"

namespace torch_xla_ext::ragged::sm90 {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Two F8E4M3FN, the lower half of `pair`, as two T.
template <typename T>
__device__ inline uint32_t WidenPair(uint32_t pair) {
  const uint32_t halves = WidenF8Pair(pair);
  if constexpr (std::is_same_v<T, __half>) {
    return halves;
  } else {
    const float2 wide =
        __half22float2(reinterpret_cast<const __half2&>(halves));
    return Pack<T>(wide.x, wide.y);
  }
}

// Eight F8E4M3FN as eight T.
template <typename T>
__device__ inline uint4 WidenEight(uint32_t low, uint32_t high) {
  return make_uint4(WidenPair<T>(low & 0xffff), WidenPair<T>(low >> 16),
                    WidenPair<T>(high & 0xffff), WidenPair<T>(high >> 16));
}

__device__ inline uint4 LoadShared16(uint32_t shared) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(shared)
               : "memory");
  return value;
}

__device__ inline void StoreShared16(uint32_t shared, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// Widens the next tile of keys (part 0) or values (part 1) to T. Called by the
// warpgroup; each warp has 32 of the tokens.
template <typename T>
__device__ inline void WidenTile(SharedMemory<true>& shared, int part,
                                 const Ring<kNarrowStages>& from,
                                 const Ring<SharedMemory<true>::kStages>& to) {
  Stages<kNarrowStages>& source = shared.narrow.stages[part];
  Stages<SharedMemory<true>::kStages>& target = shared.stages[part];
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  // Eight lanes read 16 bytes each of two rows, the first half of one and the
  // second half of the other, and write twice 16 bytes each to the two swizzled
  // rows. Then they exchange the rows.
  const int packet = lane % 8, row = warp * 32 + lane / 8 * 2 + packet / 4;
  constexpr int kOtherRow = 128, kOtherChunk = 16, kEightRows = 8 * 128;
  const uint32_t narrow = SharedAddress(shared.narrow.kv[part][from.slot]) +
                          row * 128 + packet * 16;
  const uint32_t wide = SharedAddress(shared.kv[part][to.slot]) +
                        packet / 4 * (kTokens * 128) + row * 128 +
                        ((packet % 4 * 2) ^ (row & 7)) * kOtherChunk;

  Wait(SharedAddress(&source.full[from.slot]), from.parity);
  uint4 packets[4][2];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    packets[i][0] = LoadShared16(narrow + i * kEightRows);
    packets[i][1] = LoadShared16((narrow ^ kOtherRow) + i * kEightRows);
  }
  Wait(SharedAddress(&target.empty[to.slot]), to.parity ^ 1);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int other = 0; other < 2; ++other) {
      const uint4& bytes = packets[i][other];
      const uint32_t at =
          (other == 0 ? wide : wide ^ (kOtherRow | kOtherChunk)) +
          i * kEightRows;
      StoreShared16(at, WidenEight<T>(bytes.x, bytes.y));
      StoreShared16(at ^ kOtherChunk, WidenEight<T>(bytes.z, bytes.w));
    }
  }
  if (threadIdx.x % 128 == 0) {
    target.bad_pages[to.slot] = source.bad_pages[from.slot];
  }
  FenceAsyncProxy();
  __syncwarp();
  if (lane == 0) {
    Arrive(SharedAddress(&source.empty[from.slot]));
    Arrive(SharedAddress(&target.full[to.slot]));
  }
}

// Eight BF16 that are values of F8E4M3FN, converted to F8E4M3FN.
__device__ inline uint2 NarrowEight(uint4 wide) {
  const auto pair = [](uint32_t bits) {
    const float2 values =
        __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(bits));
    return static_cast<uint32_t>(
        __nv_cvt_float2_to_fp8x2(values, __NV_SATFINITE, __NV_E4M3));
  };
  return make_uint2(pair(wide.x) | pair(wide.y) << 16,
                    pair(wide.z) | pair(wide.w) << 16);
}

// Converts the queries of the next tile, in BF16, to F8E4M3FN. Called by the
// warpgroup.
__device__ inline void NarrowQueries(SharedMemory<true>& shared, int parity) {
  const int thread = threadIdx.x % 128, chunk = thread % 8;
  Wait(SharedAddress(&shared.q_full), parity);
  Wait(SharedAddress(shared.narrow_q_empty()), parity ^ 1);
  // A chunk has 16 dimensions: 16 bytes of the swizzled row, and twice 16 bytes
  // of one of the wide row's halves.
#pragma unroll 2
  for (int row = thread / 8; row < kRows; row += 16) {
    const uint32_t from = SharedAddress(shared.q) + chunk / 4 * (kRows * 128) +
                          row * 128 + ((chunk % 4 * 2) ^ (row & 7)) * 16;
    const uint2 low = NarrowEight(LoadShared16(from));
    const uint2 high = NarrowEight(LoadShared16(from ^ 16));
    StoreShared16(
        SharedAddress(shared.narrow_q()) + row * 128 + (chunk ^ (row & 7)) * 16,
        make_uint4(low.x, low.y, high.x, high.y));
  }
  FenceAsyncProxy();
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    Arrive(SharedAddress(&shared.q_empty));
    Arrive(SharedAddress(shared.narrow_q_full()));
  }
}

// Run by the warpgroup: widens values to F16, which has room for all of them
// and for the weights; and keys to T, the queries' dtype, or narrows the
// queries.
template <typename T, Products kProducts>
__device__ inline void WidenTiles(SharedMemory<true>& shared) {
  Ring<kTileSlots> tile_ring;
  Ring<1> q_ring;
  Ring<kNarrowStages> from;
  Ring<SharedMemory<true>::kStages> to;
  while (true) {
    const Tile tile = TakeTile(shared, tile_ring);
    if (tile.is_last) break;
    if constexpr (kProducts == Products::kF8) {
      if (tile.kv_begin < tile.kv_end) {
        NarrowQueries(shared, q_ring.parity);
        q_ring.Advance();
      }
    }
    for (int n = tile.kv_begin; n < tile.kv_end; ++n) {
      if constexpr (kProducts == Products::kWidened) {
        WidenTile<T>(shared, 0, from, to);
      }
      WidenTile<__half>(shared, 1, from, to);
      from.Advance();
      to.Advance();
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace torch_xla_ext::ragged::sm90

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_SM90_WIDEN_CUH_
