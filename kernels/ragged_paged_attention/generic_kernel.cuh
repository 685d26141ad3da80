// The kernel for every GPU of compute capability 8.0 and later, every head_dim
// and page size: FlashAttention-2 (Dao, 2023) over a paged cache.
//
// A block computes a tile of query rows of one kv head, or a piece of it
// (generic_work.cuh). A row is a token and one of the group's heads, so that
// keys and values are read once for the whole group. They go through stages of
// shared memory (generic_loader.cuh). generic_shape.cuh divides the work among
// the warps, and generic_warp.cuh has a warp's work.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_KERNEL_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_KERNEL_CUH_

#include <algorithm>

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/generic_loader.cuh"
#include "kernels/ragged_paged_attention/generic_shape.cuh"
#include "kernels/ragged_paged_attention/generic_warp.cuh"
#include "kernels/ragged_paged_attention/generic_work.cuh"

namespace torch_xla_ext::ragged {

// Writes four elements of a row of `out`, starting at `dim`, and the row's
// `lse` if they are the first four.
template <int kHeadDim>
__device__ inline void Store(const Arguments& arguments, int64_t row, int dim,
                             const PartialSum& total) {
  const float f = Finish(arguments, row, dim == 0, total.max, total.sum);
  const float4& values = total.values;
  const uint2 bits =
      arguments.is_bf16
          ? make_uint2(Pack<__nv_bfloat16>(values.x * f, values.y * f),
                       Pack<__nv_bfloat16>(values.z * f, values.w * f))
          : make_uint2(Pack<__half>(values.x * f, values.y * f),
                       Pack<__half>(values.z * f, values.w * f));
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(arguments.out) +
                            row * kHeadDim + dim) = bits;
}

// A block's static shared memory.
template <typename Shape>
struct BlockState {
  union {
    TokenTables<typename Plans<Shape>::Small> small;
    TokenTables<typename Plans<Shape>::Middle> middle;
    TokenTables<typename Plans<Shape>::Large> large;
  } tables;
  static constexpr int kRows = Plans<Shape>::Large::kRows;
  float powers[Shape::kWiden ? kRows : 1];  // per row of queries
  float2 stats[kRows];                      // one per row of sums
  ShareState share;
  Piece piece;
  bool has_piece;
  bool is_last_piece;
};

// Computes state.piece, and stores the result in `out` or in the workspace.
template <typename Plan>
__device__ inline void Attend(const Arguments& arguments, int kv_head,
                              uint8_t* shared, TokenTables<Plan>& tables,
                              BlockState<typename Plan::Shape>& state) {
  using Shape = typename Plan::Shape;
  using Warp = WarpAttention<Plan>;
  constexpr int kTokens = Plan::kTileTokens;
  const Piece& piece = state.piece;
  const uint32_t query = SharedAddress(shared);
  const uint32_t stages = query + Plan::kQueryTileBytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int token_warp = warp % Plan::kTokenWarps;
  const int first_dim =
      warp / Plan::kTokenWarps % Plan::kDimWarps * Warp::kDims;
  const int warp_row =
      warp / (Plan::kTokenWarps * Plan::kDimWarps) * Plan::kWarpRows;

  const Sequence& sequence = piece.sequence;
  const int group = arguments.group_size;
  WarpRows<Plan::kFragments> rows;
  rows.min_position = PositionOf(arguments, sequence, piece.first_row / group);
  rows.max_position = PositionOf(
      arguments, sequence, (piece.first_row + piece.num_rows - 1) / group);
  rows.first_new = sequence.first_position;
  rows.first_token = sequence.begin;
  const VisibleTokens visible = {
      max(max(rows.min_position, 0) - arguments.sliding_window + 1, 0),
      max(rows.max_position + 1, 0)};
  constexpr int kUnitTiles = Plans<Shape>::kUnit / kTokens;
  const int begin = max(piece.kv_begin * kUnitTiles, visible.begin / kTokens);
  const int end =
      min(piece.kv_end * kUnitTiles, CeilDivide(visible.end, kTokens));
  TileLoader<Plan> loader(arguments, sequence, visible, kv_head, begin, end,
                          stages, tables);
  if constexpr (Shape::kWiden) {
    LoadQueryF8<Plan>(arguments, piece, kv_head, query, state.powers);
  } else {
    LoadQuery<Plan>(arguments, piece, kv_head, query);
  }
  loader.Start();
  loader.Wait();
#pragma unroll
  for (int f = 0; f < Plan::kFragments; ++f) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = warp_row + f * 16 + lane / 4 + i * 8;
      rows.position[f][i] =
          sequence.first_position + (piece.first_row + row) / group;
      rows.power[f][i] = Shape::kWiden ? state.powers[row] : 1.0f;
    }
  }
  Warp attention(arguments, rows, query + warp_row * Shape::kQueryBytes);
  attention.LoadQuery();
  int stage = 0, table = 0;
  for (int n = begin; n < end; ++n) {
    if (n != begin) loader.Wait();
    loader.GoOn();
    // Warps without rows only copy.
    if (warp_row < piece.num_rows) {
      const uint32_t keys = stages + stage * 2 * Plan::kTileBytes;
      const int first = token_warp * Warp::kTokens;
      attention.Attend(keys, keys + Plan::kTileBytes, first,
                       n * kTokens + first, first_dim,
                       reinterpret_cast<const uint16_t*>(tables[table].valid));
    }
    if (++stage == Plan::kStages) stage = 0;
    if (++table == Plan::kStages + 1) table = 0;
  }
  WaitForCopies<0>();
  __syncthreads();

  // The sums of warps with different tokens are added in a fixed order.
  float* sums = reinterpret_cast<float*>(shared);
  static_assert(Plan::kTokenWarps * Plan::kRows <= BlockState<Shape>::kRows);
  const int sum_row = token_warp * Plan::kRows + warp_row;
  attention.Store(first_dim, sums + sum_row * Shape::kSumRow,
                  state.stats + sum_row);
  __syncthreads();
  constexpr int kHeadDim = Shape::kHeadDim, kVectors = kHeadDim / 4;
  for (int i = threadIdx.x; i < piece.num_rows * kVectors;
       i += kGenericThreads) {
    const int row = i / kVectors, dim = i % kVectors * 4;
    PartialSum total;
#pragma unroll
    for (int w = 0; w < Plan::kTokenWarps; ++w) {
      const int at = w * Plan::kRows + row;
      total.Add(state.stats[at], *reinterpret_cast<const float4*>(
                                     sums + at * Shape::kSumRow + dim));
    }
    if (piece.sums == nullptr) {
      Store<kHeadDim>(arguments, RowIndex(arguments, piece, kv_head, row), dim,
                      total);
    } else {
      float* to = piece.sums + row * kHeadDim + dim;
      *reinterpret_cast<float4*>(to) = total.values;
      if (dim == 0) {
        reinterpret_cast<float2*>(piece.sums + piece.num_rows * kHeadDim)[row] =
            make_float2(total.max, total.sum);
      }
    }
  }
}

// Called by a whole block after it has stored a piece in the workspace. If that
// is the last piece of the tile to arrive, adds up all pieces.
template <typename Shape>
__device__ inline void Combine(const Arguments& arguments, const Piece& piece,
                               int kv_head, bool* is_last_piece) {
  __syncthreads();
  if (threadIdx.x == 0) {
    // On behalf of the whole block.
    __threadfence();
    *is_last_piece = atomicAdd(piece.arrivals, 1) ==
                     static_cast<unsigned>(piece.num_pieces - 1);
    __threadfence();
  }
  __syncthreads();
  if (!*is_last_piece) return;
  constexpr int kVectors = Shape::kHeadDim / 4;
  for (int i = threadIdx.x; i < piece.num_rows * kVectors;
       i += kGenericThreads) {
    const int row = i / kVectors, dim = i % kVectors * 4;
    const int values = row * Shape::kHeadDim + dim;
    const int stats = piece.num_rows * Shape::kHeadDim + row * 2;
    PartialSum total;
    const float* from = piece.first_sums;
#pragma unroll 16
    for (int p = 0; p < piece.num_pieces; ++p) {
      total.Add(__ldcg(reinterpret_cast<const float2*>(from + stats)),
                __ldcg(reinterpret_cast<const float4*>(from + values)));
      from = piece.other_sums + p * piece.piece_stride;
    }
    Store<Shape::kHeadDim>(arguments, RowIndex(arguments, piece, kv_head, row),
                           dim, total);
  }
}

template <typename C, int kHeadDim>
__global__ void __launch_bounds__(kGenericThreads, /*blocks of an SM=*/2)
    GenericKernel(const __grid_constant__ Arguments arguments,
                  const __grid_constant__ Shares shares) {
  using S = Shape<C, kHeadDim>;
  using P = Plans<S>;
  constexpr int kUnit = P::kUnit;
  // Rows are written as whole lines; copies to unaligned memory are split.
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ BlockState<S> state;
  if (NothingIsLeft(arguments)) return;

  // Adjacent heads, whose keys are adjacent in memory, run at the same time.
  const int block = blockIdx.x / arguments.num_kv_heads;
  const int kv_head = blockIdx.x % arguments.num_kv_heads;
  const bool is_long = block < shares.long_slots;
  if (!is_long) {
    StartShare<kUnit>(arguments, shares, block - shares.long_slots, kv_head,
                      &state.share);
  }
  if (threadIdx.x >= 64) {  // the other warps find work meanwhile
    ZeroOtherRows(arguments, blockIdx.x, gridDim.x, threadIdx.x - 64,
                  kGenericThreads - 64);
  }
  do {
    if (threadIdx.x < 32 && is_long) {
      // The last tiles of a sequence, which have the most work, come first.
      const int slot = shares.long_slots - 1 - block;
      const bool found = FindLongTile<kUnit>(
          arguments, slot, shares.long_tile_rows, &state.piece);
      if (threadIdx.x == 0) state.has_piece = found;
    } else if (threadIdx.x == 0) {
      state.has_piece =
          NextPiece<kUnit>(arguments, shares, &state.share, &state.piece);
    }
    __syncthreads();
    if (!state.has_piece) break;
    const int num_rows = state.piece.num_rows;
    if constexpr (!HasAllPlans<S>(kArch)) {
      Attend<typename P::Middle>(arguments, kv_head, shared,
                                 state.tables.middle, state);
    } else if (num_rows <= P::Small::kRows) {
      Attend<typename P::Small>(arguments, kv_head, shared, state.tables.small,
                                state);
    } else if (num_rows <= P::Middle::kRows) {
      Attend<typename P::Middle>(arguments, kv_head, shared,
                                 state.tables.middle, state);
    } else if constexpr (P::Large::kRows > P::Middle::kRows) {
      Attend<typename P::Large>(arguments, kv_head, shared, state.tables.large,
                                state);
    }
    if (state.piece.sums != nullptr) {
      Combine<S>(arguments, state.piece, kv_head, &state.is_last_piece);
    }
    __syncthreads();
  } while (!is_long);
}

template <typename C, int kHeadDim>
cudaError_t LaunchGenericKernel(cudaStream_t stream,
                                const Arguments& arguments) {
  using P = Plans<Shape<C, kHeadDim>>;
  const auto kernel = GenericKernel<C, kHeadDim>;
  static_assert(P::Middle::kRows == kTileRows);
  static_assert(P::Large::kRows <= kMaxTileRows);
  int blocks = 0, large_blocks = 0;
  Device device;
  cudaError_t error = GetDevice(&device);
  if (error != cudaSuccess) return error;
  const bool has_all_plans =
      HasAllPlans<Shape<C, kHeadDim>>(paged_attention::CodeArch(device));
  int bytes = std::max(P::Small::kSharedBytes, P::Middle::kSharedBytes);
  const int large_bytes = std::max(bytes, P::Large::kSharedBytes);
  error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, large_bytes);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel,
                                                        kGenericThreads, bytes);
  if (error != cudaSuccess) return error;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &large_blocks, kernel, kGenericThreads, large_bytes);
  if (error != cudaSuccess) return error;
  Shares shares = MakeShares(arguments, blocks * device.multiprocessors);
  shares.long_tile_rows = P::Middle::kRows;
  // Large tiles are worth it if just as many blocks fit on a multiprocessor.
  if (has_all_plans && large_blocks == blocks) {
    shares.long_tile_rows = P::Large::kRows;
    bytes = large_bytes;
  }
  shares.long_slots = NumLongSlots(arguments, shares.long_tile_rows);
  const int blocks_per_head = shares.long_slots + shares.count;
  const int64_t counters =
      shares.arrivals == nullptr
          ? 0
          : int64_t{1} * shares.count * arguments.num_kv_heads;
  return LaunchKernel(stream, kernel, blocks_per_head * arguments.num_kv_heads,
                      kGenericThreads, bytes, counters, arguments, shares);
}

// Each source file instantiates one type C of the cache, so that they compile
// in parallel.
template <typename C>
cudaError_t LaunchGenericKernel(cudaStream_t stream,
                                const Arguments& arguments) {
  switch (arguments.head_dim) {
    case 64:
      return LaunchGenericKernel<C, 64>(stream, arguments);
    case 96:
      return LaunchGenericKernel<C, 96>(stream, arguments);
    case 128:
      return LaunchGenericKernel<C, 128>(stream, arguments);
    case 192:
      return LaunchGenericKernel<C, 192>(stream, arguments);
    case 256:
      return LaunchGenericKernel<C, 256>(stream, arguments);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_KERNEL_CUH_
