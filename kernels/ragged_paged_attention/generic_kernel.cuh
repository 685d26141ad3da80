// The kernel for every GPU of compute capability 8.0 and later, every head_dim
// and page size: FlashAttention-2 (Dao, 2023) over a paged cache.
//
// A block computes a tile of kTileRows query rows of one kv head: a row is a
// token and one of the group's heads, so that keys and values are read once for
// the whole group. Its four warps have 16 rows each. The tiles of keys and
// values go through two stages of shared memory.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_KERNEL_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_KERNEL_CUH_

#include <algorithm>
#include <type_traits>

#include "kernels/common/ptx.cuh"
#include "kernels/ragged_paged_attention/arguments.cuh"

namespace torch_xla_ext::ragged {

inline constexpr int kTileRows = 64;
inline constexpr int kThreads = 128;
// Tables of a tile's tokens: of the one in use and the next two.
inline constexpr int kTables = 3;

template <int kHeadDim>
struct Shape {
  // Fits the 99 KB of shared memory that every GPU has.
  static constexpr int kTileTokens = kHeadDim <= 128 ? 64 : 32;
  // Rows are swizzled in groups of eight 16-byte chunks.
  static constexpr int kRowElements = (kHeadDim + 63) / 64 * 64;
  static constexpr int kSharedBytes =
      2 * kRowElements * (kTileRows + 4 * kTileTokens);
};

// As CopyAsync16, without the hint to prefetch.
__device__ inline void CopyAsync(uint32_t to, const void* from, bool zeros) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "r"(zeros ? 0 : 16)
               : "memory");
}

// Eight values of F8E4M3FN as T: exact, with NaN for NaN.
template <typename T>
__device__ inline uint4 FromF8(uint2 values) {
  uint4 result;
  uint32_t* words = reinterpret_cast<uint32_t*>(&result);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = WidenF8Pair((i < 2 ? values.x : values.y) >> (i % 2 * 16));
    if constexpr (!std::is_same_v<T, __half>) {
      const float2 wide =
          __half22float2(reinterpret_cast<const __half2&>(words[i]));
      words[i] = Pack<T>(wide.x, wide.y);
    }
  }
  return result;
}

// The place of 16-byte chunk `chunk` of row `row`: chunks are permuted so that
// the eight rows of a matrix lie in different banks.
template <int kRowElements>
__device__ inline uint32_t ChunkOffset(int row, int chunk) {
  return row * (kRowElements * 2) + ((chunk & ~7) | ((chunk ^ row) & 7)) * 16;
}

// One tile's tokens: where their keys are, and which take part.
template <int kTileTokens>
struct TokenTable {
  int64_t offset[kTileTokens];  // in elements of kv_pages
  uint32_t valid[kTileTokens / 32];
};

// Fills the table of the tile that begins with token `begin`; of the block,
// whole warps that have kTileTokens threads together.
template <int kTileTokens>
__device__ inline void FillTable(const Arguments& arguments,
                                 const Sequence& sequence, int kv_head,
                                 int begin, TokenTable<kTileTokens>* table) {
  const int thread = threadIdx.x;
  if (thread >= kTileTokens) return;
  const int token = begin + thread;
  int64_t offset = 0;
  bool valid = false;
  if (token < sequence.kv_len) {
    const int page =
        __ldg(arguments.page_indices +
              static_cast<int64_t>(sequence.index) * arguments.pages_per_seq +
              token / arguments.page_size);
    valid = page >= 0 && page < arguments.total_num_pages;
    const int64_t row = static_cast<int64_t>(page) * arguments.page_size +
                        token % arguments.page_size;
    if (valid) {
      offset =
          (row * arguments.num_kv_heads + kv_head) * 2 * arguments.head_dim;
    }
  }
  table->offset[thread] = offset;
  const uint32_t votes = __ballot_sync(~0u, valid);
  if (thread % 32 == 0) table->valid[thread / 32] = votes;
}

// Copies the keys (part 0) or values (part 1) of a tile to shared memory, and
// zeros for tokens that take no part: what their memory holds may be NaN.
template <typename T, typename C, int kHeadDim>
__device__ inline void LoadTile(
    const Arguments& arguments,
    const TokenTable<Shape<kHeadDim>::kTileTokens>& table, int part,
    uint32_t to) {
  using S = Shape<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
  constexpr int kPerThread = S::kTileTokens * kChunks / kThreads;
  const C* pages = static_cast<const C*>(arguments.kv_pages) + part * kHeadDim;
  if constexpr (std::is_same_v<T, C>) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int index = threadIdx.x + i * kThreads;
      const int row = index / kChunks, chunk = index % kChunks;
      const bool valid = table.valid[row / 32] >> (row % 32) & 1;
      CopyAsync(to + ChunkOffset<S::kRowElements>(row, chunk),
                pages + table.offset[row] + chunk * 8, !valid);
    }
  } else {
    uint2 values[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int index = threadIdx.x + i * kThreads;
      const int row = index / kChunks, chunk = index % kChunks;
      const bool valid = table.valid[row / 32] >> (row % 32) & 1;
      values[i] = make_uint2(0, 0);
      if (valid) {
        values[i] = __ldg(reinterpret_cast<const uint2*>(
            pages + table.offset[row] + chunk * 8));
      }
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int index = threadIdx.x + i * kThreads;
      const int row = index / kChunks, chunk = index % kChunks;
      const uint4 wide = FromF8<T>(values[i]);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                       to + ChunkOffset<S::kRowElements>(row, chunk)),
                   "r"(wide.x), "r"(wide.y), "r"(wide.z), "r"(wide.w)
                   : "memory");
    }
  }
}

template <typename T, typename C, int kHeadDim>
__global__ void __launch_bounds__(kThreads, /*blocks of an SM=*/2)
    GenericKernel(const Arguments arguments) {
  using S = Shape<kHeadDim>;
  constexpr int kTokens = S::kTileTokens;
  constexpr int kSteps = kHeadDim / 16;
  constexpr uint32_t kTileBytes = kTokens * S::kRowElements * 2;

  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ TokenTable<kTokens> tables[kTables];
  const uint32_t q_tile = SharedAddress(shared);
  const uint32_t kv_tiles = q_tile + kTileRows * S::kRowElements * 2;

  ZeroOtherRows(arguments, blockIdx.x * gridDim.y + blockIdx.y,
                gridDim.x * gridDim.y, threadIdx.x, kThreads);

  // The last tiles of a sequence, which are the heaviest, first.
  const int slot = gridDim.x - 1 - blockIdx.x;
  const int kv_head = blockIdx.y;
  const int group = arguments.group_size;
  Sequence sequence;
  int tile;
  if (!FindTile(arguments, slot, group, kTileRows, &sequence, &tile)) return;

  // Row r of the tile is row first_row + r of those of this sequence and group,
  // of which `group` belong to each token.
  const int first_row = tile * kTileRows;
  const int num_rows = min(sequence.q_len * group - first_row, kTileRows);
  const int min_position = sequence.first_position + first_row / group;
  const int max_position =
      sequence.first_position + (first_row + num_rows - 1) / group;
  const int window = arguments.sliding_window;
  const int kv_begin =
      max(0, max(min_position, 0) - window + 1) / kTokens * kTokens;
  const int kv_end = max_position + 1;
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 * 16;

  auto row_offset = [&](int row) {
    const int token = (first_row + row) / group;
    const int head = (first_row + row) % group;
    return (static_cast<int64_t>(sequence.begin + token) *
                arguments.num_q_heads +
            kv_head * group + head) *
           kHeadDim;
  };
  auto load_kv = [&](int table, int stage) {
    const uint32_t to = kv_tiles + stage * 2 * kTileBytes;
    LoadTile<T, C, kHeadDim>(arguments, tables[table], 0, to);
    LoadTile<T, C, kHeadDim>(arguments, tables[table], 1, to + kTileBytes);
  };

#pragma unroll
  for (int i = 0; i < kTileRows * (kHeadDim / 8) / kThreads; ++i) {
    const int index = threadIdx.x + i * kThreads;
    const int row = index / (kHeadDim / 8), chunk = index % (kHeadDim / 8);
    const T* q = static_cast<const T*>(arguments.q);
    if (row < num_rows) q += row_offset(row) + chunk * 8;
    CopyAsync(q_tile + ChunkOffset<S::kRowElements>(row, chunk), q,
              row >= num_rows);
  }
  if (kv_begin < kv_end) {
    FillTable(arguments, sequence, kv_head, kv_begin, &tables[0]);
    FillTable(arguments, sequence, kv_head, kv_begin + kTokens, &tables[1]);
    __syncthreads();
    load_kv(0, 0);
  }
  CommitCopies();

  // Lane l has rows l / 4 and l / 4 + 8 of the warp's 16.
  int position[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    position[i] = sequence.first_position +
                  (first_row + warp_row + lane / 4 + i * 8) / group;
  }
  float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0, 0};
  float out[kHeadDim / 8][4] = {};
  const bool has_soft_cap = arguments.soft_cap > 0;
  const float scale = arguments.logit_scale * kLog2e;
  const float cap_factor = has_soft_cap ? 2 * scale / arguments.soft_cap : 0.0f;
  const float cap = arguments.soft_cap * kLog2e;

  int table = 0, stage = 0;
  for (int begin = kv_begin; begin < kv_end; begin += kTokens) {
    WaitForCopies<0>();
    __syncthreads();
    const int next = table == kTables - 1 ? 0 : table + 1;
    if (begin + kTokens < kv_end) {
      load_kv(next, stage ^ 1);
      CommitCopies();
      FillTable(arguments, sequence, kv_head, begin + 2 * kTokens,
                &tables[next == kTables - 1 ? 0 : next + 1]);
    }
    // Warps beyond the rows, of which a decode step has few, only copy.
    if (warp_row < num_rows) {
      const uint32_t k_tile = kv_tiles + stage * 2 * kTileBytes;
      const uint32_t v_tile = k_tile + kTileBytes;
      float s[kTokens / 8][4] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
        LoadMatrices(
            a, q_tile + ChunkOffset<S::kRowElements>(warp_row + lane % 16,
                                                     step * 2 + lane / 16));
#pragma unroll
        for (int n = 0; n < kTokens / 16; ++n) {
          uint32_t b[4];
          LoadMatrices(b, k_tile + ChunkOffset<S::kRowElements>(
                                       n * 16 + lane / 16 * 8 + lane % 8,
                                       step * 2 + lane / 8 % 2));
          MultiplyAdd<T>(s[2 * n], a, {b[0], b[1]});
          MultiplyAdd<T>(s[2 * n + 1], a, {b[2], b[3]});
        }
      }

      // From here on, logits are to the base 2.
      bool masked =
          begin + kTokens - 1 > min_position || begin <= max_position - window;
#pragma unroll
      for (int i = 0; i < kTokens / 32; ++i) {
        masked |= tables[table].valid[i] != ~0u;
      }
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] = has_soft_cap ? SoftCap(s[n][i], cap_factor, cap)
                                 : s[n][i] * scale;
        }
      }
      if (masked) {
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
          const uint32_t valid = tables[table].valid[n / 4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = n * 8 + lane % 4 * 2 + i % 2;
            const int distance = position[i / 2] - begin - column;
            if (distance < 0 || distance >= window ||
                !(valid >> (column % 32) & 1)) {
              s[n][i] = -INFINITY;
            }
          }
        }
      }

#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float new_max = row_max[i];
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
          new_max = fmaxf(new_max, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        }
        new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 1));
        new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 2));
        // Of a row without a visible token as yet, all terms are zero.
        const float base = new_max == -INFINITY ? 0 : new_max;
        const float rescale = Exp2(row_max[i] - base);
        row_max[i] = new_max;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
          s[n][2 * i] = Exp2(s[n][2 * i] - base);
          s[n][2 * i + 1] = Exp2(s[n][2 * i + 1] - base);
          sum += s[n][2 * i] + s[n][2 * i + 1];
        }
        row_sum[i] = row_sum[i] * rescale + sum;
#pragma unroll
        for (int n = 0; n < kHeadDim / 8; ++n) {
          out[n][2 * i] *= rescale;
          out[n][2 * i + 1] *= rescale;
        }
      }

#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) {
        const uint32_t a[4] = {Pack<T>(s[2 * k][0], s[2 * k][1]),
                               Pack<T>(s[2 * k][2], s[2 * k][3]),
                               Pack<T>(s[2 * k + 1][0], s[2 * k + 1][1]),
                               Pack<T>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < kHeadDim / 16; ++n) {
          uint32_t b[4];
          LoadTransposed(
              b, v_tile + ChunkOffset<S::kRowElements>(k * 16 + lane % 16,
                                                       n * 2 + lane / 16));
          MultiplyAdd<T>(out[2 * n], a, {b[0], b[1]});
          MultiplyAdd<T>(out[2 * n + 1], a, {b[2], b[3]});
        }
      }
    }
    table = next;
    stage ^= 1;
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = row_sum[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float factor = sum == 0 ? 0 : arguments.v_scale / sum;
    const int row = warp_row + lane / 4 + i * 8;
    T* to = static_cast<T*>(arguments.out);
    if (row < num_rows) to += row_offset(row);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; n += 4) {
      const uint4 packet = TransposeQuad(
          Pack<T>(out[n][2 * i] * factor, out[n][2 * i + 1] * factor),
          Pack<T>(out[n + 1][2 * i] * factor, out[n + 1][2 * i + 1] * factor),
          Pack<T>(out[n + 2][2 * i] * factor, out[n + 2][2 * i + 1] * factor),
          Pack<T>(out[n + 3][2 * i] * factor, out[n + 3][2 * i + 1] * factor));
      if (row < num_rows) {
        *reinterpret_cast<uint4*>(to + n * 8 + lane % 4 * 8) = packet;
      }
    }
  }
}

template <typename T, typename C, int kHeadDim>
cudaError_t LaunchGenericKernel(cudaStream_t stream,
                                const Arguments& arguments) {
  constexpr int kBytes = Shape<kHeadDim>::kSharedBytes;
  const cudaError_t error =
      cudaFuncSetAttribute(GenericKernel<T, C, kHeadDim>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  // At least one block, which zeros the rows outside sequences.
  const int slots =
      std::max(NumSlots(arguments, arguments.group_size, kTileRows), 1);
  GenericKernel<T, C, kHeadDim>
      <<<dim3(slots, arguments.num_kv_heads), kThreads, kBytes, stream>>>(
          arguments);
  return cudaGetLastError();
}

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_KERNEL_CUH_
