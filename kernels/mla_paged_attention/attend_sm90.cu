// The kernel for Hopper, for caches of the query's dtype: FlashMLA
// (DeepSeek-AI, 2025) over a paged cache.
//
// A block works on 64 heads of a sequence and a part of its context
// (attend.cuh), which the copy engine copies to shared memory in tiles of 64
// rows, each of which is both key and value. Two warpgroups compute the 64 x
// 512 sums, 256 dimensions each. The first one also computes the logits and
// weights, and passes the weights to the second one through shared memory: the
// second's product runs while the first computes exponentials.
#include <cuda.h>

#include <algorithm>
#include <climits>
#include <cstdint>

#include "kernels/common/tensor_map.h"
#include "kernels/common/wgmma.cuh"
#include "kernels/mla_paged_attention/attend.cuh"

namespace torch_xla_ext::mla {
namespace sm90 {
namespace {

constexpr int kRows = 64;  // heads per block
static_assert(kRows == kManyRows && kSm90Tokens == 64);
constexpr int kPanels = kKeyDim / 64;  // the swizzle is 64 elements wide
constexpr int kValuePanels = kValueDim / 64 / 2;  // per warpgroup
constexpr int kPanelBytes = 64 * 128;
constexpr int kSm90TileBytes = kPanels * kPanelBytes;
constexpr int kStages = 2;
constexpr int kThreads = 384;
// Per thread. A block starts with 168 per thread, which the warpgroups
// redistribute.
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * 168);
constexpr int kGroupBarrier = 1;  // the first of the warpgroups' named barriers

struct alignas(1024) SharedMemory {
  uint8_t q[kPanels][kPanelBytes];
  uint8_t kv[kStages][kPanels][kPanelBytes];
  uint8_t weights[kPanelBytes];
  uint64_t q_full, full[kStages], empty[kStages];
  uint64_t weights_full, weights_empty;
  // For each stage, the pages that are not in the cache, as bits.
  uint32_t bad_pages[kStages];
  int pages[kSm90Tokens / 8];  // the pages that are being copied
  // The factors by which the second warpgroup multiplies its sums. At the end,
  // they include 1 / the sum of weights.
  float rescale[kRows];
};
constexpr int kSharedBytes = sizeof(SharedMemory) + 1024;
static_assert(kSharedBytes <= 227 * 1024);

// The copy engine's tensor maps.
struct Maps {
  CUtensorMap q;   // [num_seqs, num_heads, 576]
  CUtensorMap kv;  // [num_blocks, block_size, 576]
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A block's work: tiles [begin, end) of a context.
struct Part {
  int seq, head, heads, context, begin, end;
  bool is_all;
};

// Run by one warp: copies the queries and the tiles.
__device__ void Produce(const Arguments& arguments, const Maps& maps,
                        const Part& part, SharedMemory& shared) {
  const int lane = threadIdx.x % 32;
  const bool elected = ElectOne();
  if (elected) {
    const uint32_t full = SharedAddress(&shared.q_full);
    ArriveExpecting(full, kSm90TileBytes);
    for (int i = 0; i < kPanels; ++i) {
      CopyBox(SharedAddress(shared.q[i]), &maps.q, i * 64, part.head, part.seq,
              full);
    }
  }
  __syncwarp();
  // A box is a page, or 64 tokens of a larger one, by 64 elements.
  const int box_tokens = min(arguments.block_size, kSm90Tokens);
  const int num_boxes = kSm90Tokens / box_tokens;
  const int32_t* table =
      arguments.block_tables + int64_t{1} * part.seq * arguments.max_blocks;
  const auto has_tokens = [&](int n) {
    return n < part.end && lane < num_boxes &&
           n * kSm90Tokens + lane * box_tokens < part.context;
  };
  // The page of box `lane`. The load is slow, so it is issued one tile ahead.
  const auto fetch_page = [&](int n) {
    if (!has_tokens(n)) return -1;
    return __ldg(table +
                 (n * kSm90Tokens + lane * box_tokens) / arguments.block_size);
  };
  Ring<kStages> ring;
  int next_page = fetch_page(part.begin);
  for (int n = part.begin; n < part.end; ++n) {
    const int page = next_page;
    const bool in_cache = page >= 0 && page < arguments.num_blocks;
    // Page number -1: the copy engine writes zeros.
    if (lane < num_boxes) shared.pages[lane] = in_cache ? page : -1;
    const uint32_t bad_pages = __ballot_sync(~0u, has_tokens(n) && !in_cache);
    __syncwarp();
    next_page = fetch_page(n + 1);
    const uint32_t full = SharedAddress(&shared.full[ring.slot]);
    Wait(SharedAddress(&shared.empty[ring.slot]), ring.parity ^ 1);
    if (elected) {
      shared.bad_pages[ring.slot] = bad_pages;
      ArriveExpecting(full, kSm90TileBytes);
      const int y = n * kSm90Tokens % arguments.block_size;
      for (int i = 0; i < num_boxes; ++i) {
        const int page = shared.pages[i];
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
          CopyBox(
              SharedAddress(shared.kv[ring.slot][panel]) + i * box_tokens * 128,
              &maps.kv, panel * 64, num_boxes > 1 ? 0 : y, page, full);
        }
      }
    }
    __syncwarp();
    ring.Advance();
  }
}

// Zeroes a warpgroup's dimensions of rows [first, 64) of a tile: memory after
// the context's end may hold NaN, and 0 * NaN is NaN.
__device__ void ZeroValues(int first, int warpgroup,
                           uint8_t (&tile)[kPanels][kPanelBytes]) {
  if (first >= kSm90Tokens) return;
  for (int i = first * 8 + static_cast<int>(threadIdx.x % 128);
       i < kSm90Tokens * 8; i += 128) {
#pragma unroll
    for (int panel = 0; panel < kValuePanels; ++panel) {
      reinterpret_cast<uint4*>(tile[warpgroup * kValuePanels + panel])[i] =
          make_uint4(0, 0, 0, 0);
    }
  }
  FenceAsyncProxy();
  SyncNamed(kGroupBarrier + warpgroup, 128);
}

// Writes a thread's two rows of a warpgroup's sums.
template <typename T>
__device__ void StoreSums(const Arguments& arguments, const Part& part,
                          int warpgroup, int row, const float (&factor)[2],
                          const float (&out)[128]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int this_row = row + r * 8;
    const bool exists = this_row < part.heads;
    const int64_t at =
        int64_t{1} * part.seq * arguments.num_heads + part.head + this_row;
    const int first_dim = warpgroup * (kValueDim / 2);
    if (part.is_all) {
      T* to = static_cast<T*>(arguments.out) + at * kValueDim + first_dim +
              lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < 32; i += 4) {
        const auto word = [&](int j) {
          const float* x = &out[(i + j) * 4 + r * 2];
          return Pack<T>(x[0] * factor[r], x[1] * factor[r]);
        };
        const uint4 packet = TransposeQuad(word(0), word(1), word(2), word(3));
        if (exists) *reinterpret_cast<uint4*>(to + i * 8) = packet;
      }
    } else if (exists) {
      float* to = arguments.partial_out +
                  (at * arguments.parts + blockIdx.y) * kValueDim + first_dim +
                  lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        *reinterpret_cast<float2*>(to + i * 8) =
            make_float2(out[i * 4 + r * 2], out[i * 4 + r * 2 + 1]);
      }
    }
  }
}

// Multiplies a thread's sums by its rows' factors, unless all factors of the
// warp are 1.
__device__ void Rescale(const float (&rescale)[2], float (&out)[128]) {
  if (!__any_sync(~0u, rescale[0] != 1 || rescale[1] != 1)) return;
#pragma unroll
  for (int i = 0; i < 128; ++i) out[i] *= rescale[i % 4 / 2];
}

// Run by the first warpgroup.
template <typename T>
__device__ void ConsumeFirst(const Arguments& arguments, const Part& part,
                             SharedMemory& shared) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int row = thread / 32 * 16 + lane / 4;
  const float scale = arguments.logit_scale;
  const int box_tokens = min(arguments.block_size, kSm90Tokens);
  const uint64_t q_descriptor =
      MatrixDescriptor(SharedAddress(shared.q), 16, 1024);
  const uint64_t k_descriptor =
      MatrixDescriptor(SharedAddress(shared.kv), 16, 1024);
  const uint64_t v_descriptor =
      MatrixDescriptor(SharedAddress(shared.kv), kPanelBytes, 1024);
  const uint32_t weights = SharedAddress(shared.weights);

  float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0, 0};
  float out[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) out[i] = 0;
  float s[32];
  uint32_t p[16];
  Ring<kStages> ring;
  Ring<1> weights_ring;

  const auto issue_qk = [&](int slot) {
    const uint64_t k = k_descriptor + (slot * kSm90TileBytes >> 4);
    Pin(s);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < kKeyDim / 16; ++i) {
      const int offset = (i / 4 * kPanelBytes + i % 4 * 32) >> 4;
      Wgmma<T>(s, q_descriptor + offset, k + offset, i != 0);
    }
    WgmmaCommit();
  };
  if (part.begin < part.end) {
    Wait(SharedAddress(&shared.q_full), 0);
    Wait(SharedAddress(&shared.full[0]), 0);
    issue_qk(0);
    WgmmaWait<0>();
    Pin(s);
  }
  for (int n = part.begin; n < part.end; ++n) {
    const int left = part.context - n * kSm90Tokens;
    const uint32_t bad_pages = shared.bad_pages[ring.slot];
    if (left < kSm90Tokens || bad_pages != 0) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        // A page has at least 8 tokens.
        if (column >= left || (bad_pages >> (i / 4 * 8 / box_tokens) & 1)) {
          s[i] = -INFINITY;
        }
      }
    }
    float new_max[2] = {row_max[0], row_max[1]};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      new_max[i % 4 / 2] = fmaxf(new_max[i % 4 / 2], s[i]);
    }
    float base[2], rescale[2], sum[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float high = new_max[r];
      high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
      // Keep the old maximum unless the new one is larger by a factor of 2^8.
      // Weights of up to 2^8 do no harm, and sums are seldom rescaled.
      const float old = row_max[r];
      row_max[r] = (high - old) * scale > 8.0f ? high : old;
      base[r] = row_max[r] == -INFINITY ? 0 : row_max[r] * scale;
      rescale[r] = Exp2(old * scale - base[r]);
      if (row_max[r] == old) rescale[r] = 1;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      s[i] = Exp2(s[i] * scale - base[i / 2 % 2]);
      sum[i / 2 % 2] += s[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) row_sum[r] = row_sum[r] * rescale[r] + sum[r];
#pragma unroll
    for (int i = 0; i < 16; ++i) p[i] = Pack<T>(s[2 * i], s[2 * i + 1]);

    // Pass the weights to the second warpgroup. Word i of a row is in chunk i /
    // 2, which the swizzle moves.
    Wait(SharedAddress(&shared.weights_empty), weights_ring.parity ^ 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int this_row = row + i % 2 * 8;
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(
                       weights + this_row * 128 +
                       ((i / 2 ^ (this_row & 7)) << 4) + lane % 4 * 4),
                   "r"(p[i])
                   : "memory");
    }
    if (lane % 4 == 0) {
      shared.rescale[row] = rescale[0];
      shared.rescale[row + 8] = rescale[1];
    }
    FenceAsyncProxy();
    Arrive(SharedAddress(&shared.weights_full));
    weights_ring.Advance();

    Rescale(rescale, out);
    ZeroValues(left, 0, shared.kv[ring.slot]);
    const uint64_t v = v_descriptor + (ring.slot * kSm90TileBytes >> 4);
    Pin(out);
    Pin(p);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < kSm90Tokens / 16; ++i) {
      WgmmaRegisters<T>(out, p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3],
                        v + (i * 2048 >> 4), true);
    }
    WgmmaCommit();
    const int slot = ring.slot;
    ring.Advance();
    if (n + 1 < part.end) {
      Wait(SharedAddress(&shared.full[ring.slot]), ring.parity);
      issue_qk(ring.slot);
      WgmmaWait<1>();
    } else {
      WgmmaWait<0>();
    }
    Pin(out);
    if (lane == 0) Arrive(SharedAddress(&shared.empty[slot]));
    WgmmaWait<0>();
    Pin(s);
  }

  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    row_sum[r] += __shfl_xor_sync(~0u, row_sum[r], 1);
    row_sum[r] += __shfl_xor_sync(~0u, row_sum[r], 2);
    const int this_row = row + r * 8;
    const int64_t at =
        int64_t{1} * part.seq * arguments.num_heads + part.head + this_row;
    const float max = row_max[r] * scale;
    const bool writes = this_row < part.heads && lane % 4 == 0;
    factor[r] = 1;
    if (part.is_all) {
      factor[r] = Finish(arguments, at, writes ? 0 : 1, max, row_sum[r]);
    } else if (writes) {
      arguments.partial_stats[at * arguments.parts + blockIdx.y] =
          make_float2(max, row_sum[r]);
    }
  }
  Wait(SharedAddress(&shared.weights_empty), weights_ring.parity ^ 1);
  if (lane % 4 == 0) {
    shared.rescale[row] = factor[0];
    shared.rescale[row + 8] = factor[1];
  }
  Arrive(SharedAddress(&shared.weights_full));
  StoreSums<T>(arguments, part, 0, row, factor, out);
}

// Run by the second warpgroup.
template <typename T>
__device__ void ConsumeSecond(const Arguments& arguments, const Part& part,
                              SharedMemory& shared) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  const int row = thread / 32 * 16 + lane / 4;
  const uint64_t p_descriptor =
      MatrixDescriptor(SharedAddress(shared.weights), 16, 1024);
  const uint64_t v_descriptor = MatrixDescriptor(
      SharedAddress(shared.kv[0][kValuePanels]), kPanelBytes, 1024);
  float out[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) out[i] = 0;
  Ring<kStages> ring;
  Ring<1> weights_ring;
  for (int n = part.begin; n < part.end; ++n) {
    Wait(SharedAddress(&shared.full[ring.slot]), ring.parity);
    ZeroValues(part.context - n * kSm90Tokens, 1, shared.kv[ring.slot]);
    Wait(SharedAddress(&shared.weights_full), weights_ring.parity);
    weights_ring.Advance();
    const float rescale[2] = {shared.rescale[row], shared.rescale[row + 8]};
    Rescale(rescale, out);
    const uint64_t v = v_descriptor + (ring.slot * kSm90TileBytes >> 4);
    Pin(out);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < kSm90Tokens / 16; ++i) {
      WgmmaTransposed<T>(out, p_descriptor + (i * 32 >> 4), v + (i * 2048 >> 4),
                         true);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    Pin(out);
    if (lane == 0) Arrive(SharedAddress(&shared.empty[ring.slot]));
    Arrive(SharedAddress(&shared.weights_empty));
    ring.Advance();
  }
  Wait(SharedAddress(&shared.weights_full), weights_ring.parity);
  const float factor[2] = {shared.rescale[row], shared.rescale[row + 8]};
  StoreSums<T>(arguments, part, 1, row, factor, out);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Grid: [tiles of kRows heads, parts, sequences], like AttendKernel's.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    Sm90Kernel(const __grid_constant__ Arguments arguments,
               const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t shared_bytes[];
  // The swizzle is a function of the address, so panels must begin at multiples
  // of 1 KB.
  SharedMemory& shared = *reinterpret_cast<SharedMemory*>(
      (reinterpret_cast<uintptr_t>(shared_bytes) + 1023) & ~uintptr_t{1023});
  Part part;
  part.seq = blockIdx.z;
  part.head = blockIdx.x * kRows;
  part.heads = min(arguments.num_heads - part.head, kRows);
  part.context = ContextOf(arguments, part.seq);
  const int tiles = TilesOf(arguments, part.context);
  const int part_tiles = PartTiles(arguments, tiles);
  part.begin = blockIdx.y * part_tiles;
  part.end = min(part.begin + part_tiles, tiles);
  part.is_all = tiles <= part_tiles;
  // For an empty context, the first part writes zeros.
  if (part.begin >= part.end && blockIdx.y > 0) return;

  if (threadIdx.x == 0) {
    PrefetchMap(&maps.q);
    PrefetchMap(&maps.kv);
    InitBarrier(SharedAddress(&shared.q_full), 1);
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), 1);
      InitBarrier(SharedAddress(&shared.empty[i]), 8);  // warps
    }
    InitBarrier(SharedAddress(&shared.weights_full), 128);
    InitBarrier(SharedAddress(&shared.weights_empty), 128);
    FenceBarrierInit();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == 2) {
    asm volatile(
        "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    if (__shfl_sync(~0u, threadIdx.x / 32, 0) == 8 && part.begin < part.end) {
      Produce(arguments, maps, part, shared);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
  if (warpgroup == 0) {
    ConsumeFirst<T>(arguments, part, shared);
  } else {
    ConsumeSecond<T>(arguments, part, shared);
  }
#endif
}

template <typename T>
cudaError_t Launch(cudaStream_t stream, const Arguments& arguments,
                   const Maps& maps) {
  const cudaError_t error = cudaFuncSetAttribute(
      Sm90Kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid((arguments.num_heads + kRows - 1) / kRows, arguments.parts,
                  arguments.num_seqs);
  Sm90Kernel<T><<<grid, kThreads, kSharedBytes, stream>>>(arguments, maps);
  return cudaGetLastError();
}

}  // namespace
}  // namespace sm90

cudaError_t LaunchSm90Kernel(cudaStream_t stream, const Arguments& arguments) {
  using namespace sm90;  // NOLINT
  const bool is_bf16 = arguments.is_bf16;
  const uint64_t heads = arguments.num_heads, size = arguments.block_size;
  Maps maps;
  CUresult result =
      EncodeMap(&maps.q, arguments.query, MapType(is_bf16),
                {kKeyDim, heads, static_cast<uint64_t>(arguments.num_seqs)},
                {kRowBytes, heads * kRowBytes}, {64, kRows, 1});
  if (result == CUDA_SUCCESS) {
    result =
        EncodeMap(&maps.kv, arguments.kv_cache, MapType(is_bf16),
                  {kKeyDim, size, static_cast<uint64_t>(arguments.num_blocks)},
                  {kRowBytes, size * kRowBytes},
                  {64, std::min<uint32_t>(size, kSm90Tokens), 1});
  }
  if (result != CUDA_SUCCESS) return cudaErrorInvalidValue;
  return is_bf16 ? Launch<__nv_bfloat16>(stream, arguments, maps)
                 : Launch<__half>(stream, arguments, maps);
}

}  // namespace torch_xla_ext::mla
