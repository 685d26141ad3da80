// The kernel for Hopper: FlashAttention-3 (Shah et al., 2024, and its source,
// hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp) over a paged cache.
//
// A block stays on its multiprocessor and computes tile after tile of kRows
// query rows of one kv head; a row is a token and one of the group's heads. One
// warp of the first warpgroup finds the tiles and has the copy engine gather
// pages; the two others have 64 rows each and compute. The products of one
// warpgroup run while the other takes exponentials, and a warpgroup's own next
// product of queries and keys while it does.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <climits>
#include <cstdint>

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/wgmma.cuh"

#ifndef KTOKENS
#define KTOKENS 128
#endif
#ifndef PINGPONG
#define PINGPONG 1
#endif

namespace torch_xla_ext::ragged {
namespace {

constexpr int kHeadDim = 128;
constexpr int kHalves = kHeadDim / 64;  // the swizzle is 64 elements wide
constexpr int kRows = 128;              // queries of a tile
constexpr int kTokens = KTOKENS;        // keys and values of a tile
#ifndef STAGES
#define STAGES 2
#endif
constexpr int kStages = STAGES;
constexpr int kTileSlots = 2;
constexpr int kConsumerWarps = 8;
constexpr int kThreads = 384;
constexpr int kQBytes = kRows * kHeadDim * 2;
constexpr int kKvBytes = kTokens * kHeadDim * 2;
// Named barriers: of the warpgroups' turns, and of one warpgroup.
constexpr int kTurnBarrier = 1, kGroupBarrier = 3;

// What the copying warp tells the computing ones about a tile.
struct Tile {
  int is_last;  // there is no tile, and none will come
  int q_row;    // token of row 0, in q
  int num_rows;
  int position;  // of row 0's token
  int kv_begin;  // tiles of keys and values: first, and one behind the last
  int kv_end;
  int kv_len;
  int kv_head;
};

struct alignas(1024) SharedMemory {
  uint8_t q[kQBytes];
  uint8_t k[kStages][kKvBytes];
  uint8_t v[kStages][kKvBytes];
  uint64_t q_full, q_empty;
  uint64_t k_full[kStages], k_empty[kStages];
  uint64_t v_full[kStages], v_empty[kStages];
  uint64_t tile_full[kTileSlots], tile_empty[kTileSlots];
  Tile tiles[kTileSlots];
  // Of each stage of keys, a bit for each page that is not in the cache.
  uint32_t bad_pages[kStages];
};

// A ring's position: the slot, and the parity of its phase.
template <int kSlots>
struct Ring {
  int slot = 0;
  int parity = 0;
  __device__ void Advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

struct Maps {
  CUtensorMap q;         // [tokens, heads * head_dim as (heads, head_dim)]
  CUtensorMap kv_pages;  // [pages, page_size, heads * head_dim]
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Of a warp: finds tiles, and copies what they need.
__device__ void Produce(const Arguments& arguments, const Maps& maps,
                        SharedMemory& shared) {
  const int lane = threadIdx.x % 32;
  const int tokens_of_tile = kRows / arguments.group_size;
  const int q_bytes = tokens_of_tile * arguments.group_size * kHeadDim * 2;
  const int num_slots = NumSlots(arguments, 1, tokens_of_tile);
  const int num_indices = num_slots * arguments.num_kv_heads;
  // A box is a page, or kTokens tokens of a larger one, by 64 elements.
  const int box_tokens = min(arguments.page_size, kTokens);
  const int num_boxes = kTokens / box_tokens * kHalves;
  constexpr int kBoxesOfLane = (kTokens / 8 * kHalves + 31) / 32;

  Ring<kTileSlots> tile_ring;
  Ring<1> q_ring;
  Ring<kStages> k_ring, v_ring;

  // The heaviest tiles, which are the last of a sequence, come first. Blocks
  // take them in turns, in every other round backwards, so that each gets about
  // the same work; or each takes the next one when it is ready.
  int round = 0;
  unsigned* counter = arguments.workspace_size > 0
                          ? reinterpret_cast<unsigned*>(arguments.workspace)
                          : nullptr;
  auto next_index = [&]() -> int {
    if (counter != nullptr) {
      unsigned index = 0;
      if (round++ == 0) return blockIdx.x;
      if (lane == 0) index = atomicAdd(counter, 1) + gridDim.x;
      return static_cast<int>(__shfl_sync(~0u, index, 0));
    }
    const int in_round =
        round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    return static_cast<int>(gridDim.x) * round++ + in_round;
  };

  for (int index = next_index(), next;; index = next) {
    const bool is_last = index >= num_indices;
    Sequence sequence;
    int tile_index;
    if (!is_last &&
        !FindTile(arguments, num_slots - 1 - index / arguments.num_kv_heads, 1,
                  tokens_of_tile, &sequence, &tile_index)) {
      next = next_index();
      continue;
    }
    Tile tile = {};
    tile.is_last = is_last;
    if (!is_last) {
      const int token = tile_index * tokens_of_tile;
      const int num_tokens = min(sequence.q_len - token, tokens_of_tile);
      tile.q_row = sequence.begin + token;
      tile.num_rows = num_tokens * arguments.group_size;
      tile.position = sequence.first_position + token;
      tile.kv_begin =
          max(max(tile.position, 0) - arguments.sliding_window + 1, 0) /
          kTokens;
      tile.kv_end =
          max((tile.position + num_tokens + kTokens - 1) / kTokens, 0);
      if (tile.position + num_tokens <= 0) tile.kv_end = 0;
      tile.kv_begin = min(tile.kv_begin, tile.kv_end);
      tile.kv_len = sequence.kv_len;
      tile.kv_head = index % arguments.num_kv_heads;
    }
    Wait(SharedAddress(&shared.tile_empty[tile_ring.slot]),
         tile_ring.parity ^ 1);
    if (lane == 0) {
      shared.tiles[tile_ring.slot] = tile;
      Arrive(SharedAddress(&shared.tile_full[tile_ring.slot]));
    }
    __syncwarp();
    tile_ring.Advance();
    if (is_last) break;
    next = next_index();
    if (tile.kv_begin == tile.kv_end) continue;

    const int32_t* table =
        arguments.page_indices +
        static_cast<int64_t>(sequence.index) * arguments.pages_per_seq;
    // The page of box lane + 32 i of tile n, or -1.
    auto find_page = [&](int n, int i, bool* bad) {
      const int box = lane + 32 * i;
      const int token = n * kTokens + box / kHalves * box_tokens;
      *bad = false;
      if (box >= num_boxes || token >= sequence.kv_len) return -1;
      const int page = __ldg(table + token / arguments.page_size);
      *bad = page < 0 || page >= arguments.total_num_pages;
      return *bad ? -1 : page;
    };
    auto copy = [&](const int(&pages)[kBoxesOfLane], int n, int part,
                    uint8_t* to, uint64_t* full) {
      const int x = (tile.kv_head * 2 + part) * kHeadDim;
      const int y = n * kTokens % arguments.page_size;
#pragma unroll
      for (int i = 0; i < kBoxesOfLane; ++i) {
        const int box = lane + 32 * i;
        if (box >= num_boxes) continue;
        const int half = box % kHalves;
        const int row = box / kHalves * box_tokens;
        CopyBox(SharedAddress(to) + half * (kTokens * 128) + row * 128,
                &maps.kv_pages, x + half * 64,
                arguments.page_size > kTokens ? y : 0, pages[i],
                SharedAddress(full));
      }
    };
    int pages[kBoxesOfLane], v_pages[kBoxesOfLane];
    uint32_t bad_pages = 0;
    auto find_pages = [&](int n) {
      bad_pages = 0;
#pragma unroll
      for (int i = 0; i < kBoxesOfLane; ++i) {
        bool bad;
        pages[i] = find_page(n, i, &bad);
        // A bit for each page: lanes of both halves have the same.
        for (uint32_t votes = __ballot_sync(~0u, bad); votes != 0;
             votes &= votes - 1) {
          bad_pages |= 1u << ((__ffs(votes) - 1 + 32 * i) / kHalves);
        }
      }
    };
    auto load_k = [&](int n) {
      const int slot = k_ring.slot;
      uint64_t* full = &shared.k_full[slot];
      Wait(SharedAddress(&shared.k_empty[slot]), k_ring.parity ^ 1);
      if (lane == 0) {
        shared.bad_pages[slot] = bad_pages;
        ArriveExpecting(SharedAddress(full), kKvBytes);
      }
      __syncwarp();
      copy(pages, n, 0, shared.k[slot], full);
      k_ring.Advance();
    };
    auto load_v = [&](int n) {
      const int slot = v_ring.slot;
      uint64_t* full = &shared.v_full[slot];
      Wait(SharedAddress(&shared.v_empty[slot]), v_ring.parity ^ 1);
      if (lane == 0) ArriveExpecting(SharedAddress(full), kKvBytes);
      __syncwarp();
      copy(v_pages, n, 1, shared.v[slot], full);
      v_ring.Advance();
    };

    int n = tile.kv_end - 1;
    find_pages(n);
    load_k(n);
    Wait(SharedAddress(&shared.q_empty), q_ring.parity ^ 1);
    if (lane == 0) ArriveExpecting(SharedAddress(&shared.q_full), q_bytes);
    __syncwarp();
    if (lane < kHalves) {
      CopyBox(SharedAddress(shared.q) + lane * (kRows * 128), &maps.q,
              lane * 64, tile.kv_head * arguments.group_size, tile.q_row,
              SharedAddress(&shared.q_full));
    }
    q_ring.Advance();
    for (; n >= tile.kv_begin; --n) {
#pragma unroll
      for (int i = 0; i < kBoxesOfLane; ++i) v_pages[i] = pages[i];
      if (n > tile.kv_begin) {
        find_pages(n - 1);
        load_k(n - 1);
      }
      load_v(n);
    }
  }
}

// Of a warpgroup: computes its 64 rows of each tile.
template <typename T, bool kSoftCap>
__device__ void Consume(const Arguments& arguments, SharedMemory& shared,
                        int warpgroup) {
  const int thread = threadIdx.x % 128;
  const int lane = thread % 32;
  const float input_scale = arguments.logit_scale * kLog2e;
  const float cap_factor = kSoftCap ? 2 * input_scale / arguments.soft_cap : 0;
  const float cap = arguments.soft_cap * kLog2e;
  // Of the logits as they leave the soft cap, to the base 2.
  const float scale = kSoftCap ? 1.0f : input_scale;
  const unsigned window = arguments.sliding_window;
  const int box_tokens = min(arguments.page_size, kTokens);

  const uint64_t q_descriptor = MatrixDescriptor(
      SharedAddress(shared.q) + warpgroup * (64 * 128), 16, 1024);
  const uint64_t k_descriptor =
      MatrixDescriptor(SharedAddress(shared.k), 16, 1024);
  const uint64_t v_descriptor =
      MatrixDescriptor(SharedAddress(shared.v), kTokens * 128, 1024);

  Ring<kTileSlots> tile_ring;
  Ring<1> q_ring;
  Ring<kStages> k_ring, v_ring;
  auto release = [&](uint64_t* barrier) {
    if (lane == 0) Arrive(SharedAddress(barrier));
  };

#if PINGPONG
  if (warpgroup == 1) ArriveNamed(kTurnBarrier, 256);
#endif
  while (true) {
    Wait(SharedAddress(&shared.tile_full[tile_ring.slot]), tile_ring.parity);
    const Tile tile = shared.tiles[tile_ring.slot];
    __syncwarp();
    release(&shared.tile_empty[tile_ring.slot]);
    tile_ring.Advance();
    if (tile.is_last) break;

    // Thread t has rows row and row + 8 of its warpgroup's.
    const int first_row = warpgroup * 64;
    const int row = first_row + thread / 32 * 16 + lane / 4;
    const int group = arguments.group_size;
    const int min_position = tile.position + first_row / group;
    const int max_position =
        tile.position + (min(first_row + 64, tile.num_rows) - 1) / group;
    const int position[2] = {tile.position + row / group,
                             tile.position + (row + 8) / group};

    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0, 0};
    float out[kHeadDim / 2];
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out[i] = 0;

    if (tile.kv_begin < tile.kv_end && first_row >= tile.num_rows) {
      // No rows, but the other warpgroup has some: let the copies go on.
      for (int n = tile.kv_begin; n < tile.kv_end; ++n) {
        Wait(SharedAddress(&shared.k_full[k_ring.slot]), k_ring.parity);
        release(&shared.k_empty[k_ring.slot]);
        k_ring.Advance();
        Wait(SharedAddress(&shared.v_full[v_ring.slot]), v_ring.parity);
        release(&shared.v_empty[v_ring.slot]);
        v_ring.Advance();
      }
      Wait(SharedAddress(&shared.q_full), q_ring.parity);
      release(&shared.q_empty);
      q_ring.Advance();
    } else if (tile.kv_begin < tile.kv_end) {
      const bool turns = PINGPONG && tile.num_rows > 64;
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
          WgmmaRegisters<T>(out, p[4 * i], p[4 * i + 1], p[4 * i + 2],
                            p[4 * i + 3], v + (i * 2048 >> 4), true);
        }
        WgmmaCommit();
      };
      // Masks tile n of the logits, takes their new maximum and exponentials.
      auto softmax = [&](int n, uint32_t bad_pages) {
        if constexpr (kSoftCap) {
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            s[i] = SoftCap(s[i], cap_factor, cap);
          }
        }
        const int begin = n * kTokens;
        if (begin + kTokens - 1 > min_position ||
            begin + static_cast<int64_t>(window) <= max_position) {
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            const int column = i / 4 * 8 + i % 2;
            const unsigned distance =
                position[i % 4 / 2] - begin - lane % 4 * 2 - column;
            if (distance >= window) s[i] = -INFINITY;
          }
        }
        if (bad_pages != 0) {
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            if (bad_pages >> (i / 4 * 8 / box_tokens) & 1) s[i] = -INFINITY;
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float new_max = row_max[r];
#pragma unroll
          for (int i = 2 * r; i < kTokens / 2; i += 4) {
            new_max = fmaxf(new_max, fmaxf(s[i], s[i + 1]));
          }
          new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 1));
          new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 2));
          // Of a row without a visible token as yet, all terms are zero.
          const float base = new_max == -INFINITY ? 0 : new_max * scale;
          rescale[r] = Exp2(row_max[r] * scale - base);
          row_max[r] = new_max;
          float sum = 0;
#pragma unroll
          for (int i = 2 * r; i < kTokens / 2; i += 4) {
            s[i] = Exp2(s[i] * scale - base);
            s[i + 1] = Exp2(s[i + 1] * scale - base);
            sum += s[i] + s[i + 1];
          }
          row_sum[r] = row_sum[r] * rescale[r] + sum;
        }
      };
      auto pack = [&] {
#pragma unroll
        for (int i = 0; i < kTokens / 4; ++i) {
          p[i] = Pack<T>(s[2 * i], s[2 * i + 1]);
        }
      };

      Wait(SharedAddress(&shared.q_full), q_ring.parity);
      int n = tile.kv_end - 1;
      Wait(SharedAddress(&shared.k_full[k_ring.slot]), k_ring.parity);
      uint32_t bad_pages = shared.bad_pages[k_ring.slot];
      issue_qk();
      WgmmaWait<0>();
      Pin(s);
      release(&shared.k_empty[k_ring.slot]);
      k_ring.Advance();
      softmax(n, bad_pages);
      pack();
      // What lies behind the last token may be NaN, and 0 * NaN is NaN.
      const int tail = tile.kv_len - n * kTokens;
      if (tail < kTokens) {
        Wait(SharedAddress(&shared.v_full[v_ring.slot]), v_ring.parity);
        uint8_t* v = shared.v[v_ring.slot];
        for (int i = tail * 8 + thread; i < kTokens * 8; i += 128) {
#pragma unroll
          for (int half = 0; half < kHalves; ++half) {
            *reinterpret_cast<uint4*>(v + half * (kTokens * 128) + i * 16) =
                make_uint4(0, 0, 0, 0);
          }
        }
        FenceAsyncProxy();
        SyncNamed(kGroupBarrier + warpgroup, 128);
      }
      for (--n; n >= tile.kv_begin; --n) {
        Wait(SharedAddress(&shared.k_full[k_ring.slot]), k_ring.parity);
        bad_pages = shared.bad_pages[k_ring.slot];
        if (turns) SyncNamed(kTurnBarrier + warpgroup, 256);
        issue_qk();
        Wait(SharedAddress(&shared.v_full[v_ring.slot]), v_ring.parity);
        issue_pv();
        if (turns) ArriveNamed(kTurnBarrier + (warpgroup ^ 1), 256);
        WgmmaWait<1>();
        Pin(s);
        release(&shared.k_empty[k_ring.slot]);
        k_ring.Advance();
        softmax(n, bad_pages);
        WgmmaWait<0>();
        Pin(out);
        release(&shared.v_empty[v_ring.slot]);
        v_ring.Advance();
        pack();
#pragma unroll
        for (int i = 0; i < kHeadDim / 2; ++i) out[i] *= rescale[i % 4 / 2];
      }
      release(&shared.q_empty);
      q_ring.Advance();
      Wait(SharedAddress(&shared.v_full[v_ring.slot]), v_ring.parity);
      issue_pv();
      WgmmaWait<0>();
      Pin(out);
      release(&shared.v_empty[v_ring.slot]);
      v_ring.Advance();
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = row_sum[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float factor = sum == 0 ? 0 : arguments.v_scale / sum;
      const int this_row = row + r * 8;
      const bool exists = this_row < tile.num_rows;
      T* to = static_cast<T*>(arguments.out) +
              (static_cast<int64_t>(tile.q_row + this_row / group) *
                   arguments.num_q_heads +
               tile.kv_head * group + this_row % group) *
                  kHeadDim +
              lane % 4 * 8;
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

template <typename T, bool kSoftCap>
__global__ void __launch_bounds__(kThreads, 1)
    Sm90Kernel(const __grid_constant__ Arguments arguments,
               const __grid_constant__ Maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t shared_bytes[];
  // The swizzle is a function of the address: tiles begin at multiples of 1 KB.
  SharedMemory& shared = *reinterpret_cast<SharedMemory*>(
      (reinterpret_cast<uintptr_t>(shared_bytes) + 1023) & ~uintptr_t{1023});
  if (threadIdx.x == 0) {
    PrefetchMap(&maps.q);
    PrefetchMap(&maps.kv_pages);
    InitBarrier(SharedAddress(&shared.q_full), 1);
    InitBarrier(SharedAddress(&shared.q_empty), kConsumerWarps);
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(SharedAddress(&shared.k_full[i]), 1);
      InitBarrier(SharedAddress(&shared.k_empty[i]), kConsumerWarps);
      InitBarrier(SharedAddress(&shared.v_full[i]), 1);
      InitBarrier(SharedAddress(&shared.v_empty[i]), kConsumerWarps);
    }
    for (int i = 0; i < kTileSlots; ++i) {
      InitBarrier(SharedAddress(&shared.tile_full[i]), 1);
      InitBarrier(SharedAddress(&shared.tile_empty[i]), kConsumerWarps);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp == 0) {
      Produce(arguments, maps, shared);
    } else {
      ZeroOtherRows(arguments, blockIdx.x, gridDim.x, threadIdx.x - 32, 96);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Consume<T, kSoftCap>(arguments, shared, warpgroup - 1);
  }
#endif
}

// A map of `data` as [z, y, x] with the box's extents, in elements.
CUresult EncodeMap(CUtensorMap* map, const void* data, bool is_bf16,
                   const uint64_t (&sizes)[3], const uint64_t (&strides)[2],
                   const uint32_t (&box)[3]) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                     cudaEnableDefault, &result);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  if (encode == nullptr) return CUDA_ERROR_NOT_FOUND;
  const uint32_t element_strides[3] = {1, 1, 1};
  return encode(map,
                is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                3, const_cast<void*>(data), sizes, strides, box,
                element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// Of the device that the calling thread has chosen.
int DeviceAttribute(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

template <typename T, bool kSoftCap>
cudaError_t Launch(cudaStream_t stream, const Arguments& arguments,
                   const Maps& maps) {
  const int bytes = sizeof(SharedMemory) + 1024;
  const cudaError_t error =
      cudaFuncSetAttribute(Sm90Kernel<T, kSoftCap>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  if (arguments.workspace_size > 0) {
    const cudaError_t error =
        cudaMemsetAsync(arguments.workspace, 0, 4, stream);
    if (error != cudaSuccess) return error;
  }
  const int blocks = DeviceAttribute(cudaDevAttrMultiProcessorCount);
  Sm90Kernel<T, kSoftCap><<<blocks, kThreads, bytes, stream>>>(arguments, maps);
  return cudaGetLastError();
}

}  // namespace

bool Sm90KernelSupports(const Arguments& arguments, bool cache_is_fp8) {
  const int page_size = arguments.page_size;
  return !cache_is_fp8 && arguments.head_dim == kHeadDim &&
         arguments.group_size <= kRows && page_size % 8 == 0 &&
         (kTokens % page_size == 0 || page_size % kTokens == 0) &&
         arguments.total_num_pages > 0 && arguments.logit_scale > 0 &&
         DeviceAttribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         DeviceAttribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

cudaError_t LaunchSm90Kernel(cudaStream_t stream, const Arguments& arguments,
                             bool is_bf16) {
  const uint64_t head_dim = kHeadDim;
  const uint64_t num_q_heads = arguments.num_q_heads;
  const uint64_t group = arguments.group_size;
  const uint64_t kv_row = arguments.num_kv_heads * 2 * head_dim;
  const uint64_t page_size = arguments.page_size;
  Maps maps;
  CUresult result = EncodeMap(
      &maps.q, arguments.q, is_bf16,
      {head_dim, num_q_heads, static_cast<uint64_t>(arguments.num_tokens)},
      {head_dim * 2, num_q_heads * head_dim * 2},
      {64, static_cast<uint32_t>(group), static_cast<uint32_t>(kRows / group)});
  if (result == CUDA_SUCCESS) {
    result = EncodeMap(
        &maps.kv_pages, arguments.kv_pages, is_bf16,
        {kv_row, page_size, static_cast<uint64_t>(arguments.total_num_pages)},
        {kv_row * 2, page_size * kv_row * 2},
        {64, static_cast<uint32_t>(std::min<uint64_t>(page_size, kTokens)), 1});
  }
  if (result != CUDA_SUCCESS) return cudaErrorInvalidValue;
  if (arguments.soft_cap > 0) {
    return is_bf16 ? Launch<__nv_bfloat16, true>(stream, arguments, maps)
                   : Launch<__half, true>(stream, arguments, maps);
  }
  return is_bf16 ? Launch<__nv_bfloat16, false>(stream, arguments, maps)
                 : Launch<__half, false>(stream, arguments, maps);
}

}  // namespace torch_xla_ext::ragged
