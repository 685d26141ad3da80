// AttendKernel: attention of one query token to its sequence's cache. The parts
// that are templates of `Args` also serve several query tokens of a sequence,
// for which ragged_paged_attention derives a class from DecodeArgs.
//
// A block works on one part of the units (partition.cuh) for one head block.
// Its warps take turns with the units. Each has its own softmax (warp.cuh) and
// its own pending copies to shared memory (loader.cuh); the warps synchronize
// only where a sequence ends. FlashDecoding (Dao et al. 2023) splits a context
// in the same way.
#ifndef KERNELS_PAGED_ATTENTION_ATTEND_CUH_
#define KERNELS_PAGED_ATTENTION_ATTEND_CUH_

#include "kernels/paged_attention/loader.cuh"
#include "kernels/paged_attention/partition.cuh"
#include "kernels/paged_attention/variants.cuh"
#include "kernels/paged_attention/warp.cuh"

namespace torch_xla_ext::paged_attention {

// The statistics per head that the warps exchange.
struct WarpStats {
  float max[kMaxWarps][16];
  float sum[kMaxWarps][16];
};

__device__ inline void Store(const DecodeArgs& args, int64_t index,
                             float4 value) {
  const uint2 bits = args.query_is_bf16
                         ? uint2{Pack<__nv_bfloat16>(value.x, value.y),
                                 Pack<__nv_bfloat16>(value.z, value.w)}
                         : uint2{Pack<__half>(value.x, value.y),
                                 Pack<__half>(value.z, value.w)};
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(args.out) + index) = bits;
}

// Writes four elements of `out` of a row and head, starting at `dim`, and the
// row's `lse` if they are the first four.
__device__ inline void Store(const DecodeArgs& args, int64_t row, int head,
                             int dim, int head_dim, PartialSum total) {
  if (args.sinks != nullptr) total.AddSink(args.sinks[head]);
  if (args.lse != nullptr && dim == 0) {
    args.lse[row] = LogSum(total.max, total.sum);
  }
  const float factor = total.sum == 0 ? 0 : args.value_scale / total.sum;
  const float4& sum = total.values;
  Store(args, row * head_dim + dim,
        {sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor});
}

// The rows of a kv head that a thread block works on, for any sequence.
struct HeadBlock {
  int kv_head;
  int head;
  int count;
};

__device__ inline HeadBlock HeadBlockOf(const DecodeArgs& args, int index) {
  const int kv_head = index / args.head_blocks;
  const int first_row = index % args.head_blocks * args.rows;
  const int group = args.num_heads / args.num_kv_heads;
  return {kv_head, kv_head * group + first_row,
          min(args.rows, group - first_row)};
}

__device__ inline HeadRows RowsOf(const DecodeArgs& args,
                                  const HeadBlock& block, int seq) {
  return RowsOf(args, seq, block.head, block.count);
}

// The next sequence that has units. There must be one.
template <int kUnit, typename Args>
__device__ inline Place NextPlace(const Args& args, Place place) {
  do {
    place = PlaceOf<kUnit>(args, place.seq + 1, place.end);
  } while (place.begin == place.end);
  return place;
}

template <typename Traits>
__device__ inline void PrefetchQuery(const DecodeArgs& args,
                                     const HeadBlock& block, int seq) {
  const int64_t row = static_cast<int64_t>(seq) * args.num_heads + block.head;
  PrefetchBytes(
      static_cast<const char*>(args.query) + row * Traits::kHeadDim * 2,
      block.count * Traits::kHeadDim * 2);
}

// Adds up the warps' results, and writes the sum to the workspace at `slot`, or
// to `out` if `slot` is negative. Called by the whole block.
template <typename Traits, bool kExtras, typename Rows>
__device__ inline void StoreSum(const DecodeArgs& args, const Rows& rows,
                                int64_t slot, float* sums, WarpStats* stats,
                                WarpState<Traits>* state) {
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < Traits::kHeadTiles; ++h) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = state->sum[h][j];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, lanes);
      }
      if (lane < 4) {
        stats->max[warp][h * 8 + lane * 2 + j] = state->max[h][j];
        stats->sum[warp][h * 8 + lane * 2 + j] = sum;
      }
    }
  }
  constexpr int kWarpSums = Traits::kHeads * Traits::kSumRow;
#pragma unroll
  for (int begin = 0; begin < Traits::kHeadDim; begin += Traits::kSumDims) {
#pragma unroll
    for (int i = 0; i < Traits::kSumDims / 16; ++i) {
#pragma unroll
      for (int h = 0; h < Traits::kHeadTiles; ++h) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int column = h * 8 + lane % 4 * 2 + j % 2;
          sums[warp * kWarpSums + column * Traits::kSumRow + i * 16 +
               OutDim<Traits>(lane, j / 2)] = state->out[begin / 16 + i][h][j];
        }
      }
    }
    __syncthreads();
    constexpr int kVectors = Traits::kSumDims / 4;
    // Not unrolled, because this runs seldom, and more code takes longer to
    // fetch.
#pragma unroll 1
    for (int i = threadIdx.x; i < rows.count * kVectors; i += blockDim.x) {
      const int column = i / kVectors, dim = i % kVectors * 4;
      float max = -INFINITY;
#pragma unroll 1
      for (int w = 0; w < warps; ++w) max = fmaxf(max, stats->max[w][column]);
      float sum = 0;
      float4 total = {0, 0, 0, 0};
#pragma unroll 1
      for (int w = 0; w < warps; ++w) {
        const float weight = RelativeWeight(stats->max[w][column], max);
        const float4 part = *reinterpret_cast<const float4*>(
            sums + w * kWarpSums + column * Traits::kSumRow + dim);
        sum += weight * stats->sum[w][column];
        total.x += weight * part.x;
        total.y += weight * part.y;
        total.z += weight * part.z;
        total.w += weight * part.w;
      }
      if (slot < 0) {
        if constexpr (kExtras) {
          Store(args, rows.IndexOf(column), rows.HeadOf(column), begin + dim,
                Traits::kHeadDim, {max, sum, total});
        } else {
          const float factor = sum == 0 ? 0 : args.value_scale / sum;
          const int64_t row = rows.IndexOf(column);
          Store(args, row * Traits::kHeadDim + begin + dim,
                {total.x * factor, total.y * factor, total.z * factor,
                 total.w * factor});
        }
      } else {
        const int64_t row = slot * args.rows + column;
        *reinterpret_cast<float4*>(args.partial_out + row * Traits::kHeadDim +
                                   begin + dim) = total;
        if (begin + dim == 0) args.partial_stats[row] = {max, sum};
      }
    }
    __syncthreads();
  }
}

// kExtras: there may be sinks, or lse may be requested.
template <typename Traits, bool kExtras, typename Args>
__device__ inline void AttendParts(const Args& args) {
  // Rows are written as whole lines of 128 bytes; copies to unaligned memory
  // are split.
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ WarpStats stats;
  __shared__ uint32_t masks[kMaxWarps][kMaxStages];
  if (args.split) AllowNextKernelToStart();  // CombineKernel
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const HeadBlock block = HeadBlockOf(args, blockIdx.x);
  const int64_t slot =
      static_cast<int64_t>(blockIdx.x) * args.parts + blockIdx.y;

  const Part part = FindPart<Traits::kUnit>(args, blockIdx.y);
  if (part.begin >= part.end) return;

  float* const sums = reinterpret_cast<float*>(memory);
  const uint32_t shared = static_cast<uint32_t>(
      __cvta_generic_to_shared(memory + warps * Traits::kSumBytes +
                               warp * args.stages * Traits::kStageBytes));
  Loader<Traits, Args> loader(args, part, block.kv_head, shared, masks[warp]);
#pragma unroll 1
  for (int stage = 0; stage < args.stages - 1; ++stage) loader.Load(stage);
  int stage = 0, free_stage = args.stages - 1;

  WarpState<Traits> state;
  int at = part.begin + warp;
  Place place = PlaceOf<Traits::kUnit>(args, part.seq, part.seq_begin);
  while (true) {
    const auto rows = RowsOf(args, block, place.seq);
    LoadQuery<Traits>(args, rows, &state);
    if (place.end < part.end) PrefetchQuery<Traits>(args, block, place.seq + 1);
    const int piece_end = min(place.end, part.end);
    for (; at < piece_end; at += warps) {
      WaitForStages(args.stages - 2);
      __syncwarp();  // copies have arrived, free_stage has been read
      loader.Load(free_stage);
      const int unit = place.units.first + at - place.begin;
      AttendUnit<Traits>(
          args, rows, shared + stage * Traits::kStageBytes, masks[warp][stage],
          unit * Traits::kUnit - rows.PositionIn(place.units.context), &state);
      free_stage = stage;
      stage = stage + 1 == args.stages ? 0 : stage + 1;
    }
    const bool begins = place.begin >= part.begin;
    const bool ends = place.end <= part.end;
    StoreSum<Traits, kExtras>(args, rows,
                              begins && ends ? -1 : 2 * slot + (begins ? 1 : 0),
                              sums, &stats, &state);
    if (place.end >= part.end) break;
    place = NextPlace<Traits::kUnit>(args, place);
  }
  WaitForCopies<0>();
}

// Writes the rows of a ragged batch that no sequence has. All parts share them:
// as units of the last parts, they would be written one after the other.
__device__ inline void StoreOtherRows(const DecodeArgs& args, int head_dim) {
  if (__builtin_expect(args.cu_q_lens == nullptr, true)) return;
  const HeadBlock block = HeadBlockOf(args, blockIdx.x);
  const int vectors = head_dim / 4;
#pragma unroll 1
  for (int seq = blockIdx.y; seq < args.num_seqs; seq += gridDim.y) {
    if (HasOwnRow(args.cu_q_lens, args.num_seqs, args.num_live_seqs, seq)) {
      continue;
    }
    const HeadRows rows = RowsOf(args, block, seq);
#pragma unroll 1
    for (int i = threadIdx.x; i < rows.count * vectors; i += blockDim.x) {
      Store(args, rows.IndexOf(i / vectors), rows.HeadOf(i / vectors),
            i % vectors * 4, head_dim, PartialSum());
    }
  }
}

// Grid: [head blocks of all kv heads, parts]. Adjacent thread blocks read
// adjacent heads of the same tokens.
template <typename Traits, bool kExtras>
__global__ void __launch_bounds__(32 * kMaxWarps)
    AttendKernel(const __grid_constant__ DecodeArgs args) {
#ifdef __CUDA_ARCH__
  constexpr Kernel kKernel = kExtras ? Kernel::kAttend : Kernel::kAttendPlain;
  if constexpr (IsCompiled<Traits>(kKernel, __CUDA_ARCH__)) {
    StoreOtherRows(args, Traits::kHeadDim);
    AttendParts<Traits, kExtras>(args);
    SetZeros(args);
  }
#endif
}

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_ATTEND_CUH_
