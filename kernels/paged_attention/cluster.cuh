// ClusterKernel: the work of AttendKernel and CombineKernel in one kernel, for
// few sequences on GPUs with thread block clusters (compute capability 9.0).
//
// A cluster works on one head block of one sequence: the warps of all its
// blocks take turns with the units, and the blocks send each other their
// results through shared memory. A warp's units do not depend on the context's
// length, so the first block numbers and the length can be read at the same
// time.
#ifndef KERNELS_PAGED_ATTENTION_CLUSTER_CUH_
#define KERNELS_PAGED_ATTENTION_CLUSTER_CUH_

#include <algorithm>
#include <climits>

#include "kernels/paged_attention/attend.cuh"

namespace torch_xla_ext::paged_attention {

inline constexpr int kClusterWarps = 4;

// The tokens of a unit: more than in AttendKernel if registers and shared
// memory allow, because few warps must hide latency within a warp.
template <typename C, int kHeadDim, int kHeadTiles>
inline constexpr int kClusterUnit =
    kHeadDim * sizeof(C) <= 256 && kHeadDim * kHeadTiles <= 256 ? 32 : 16;
template <typename C, int kHeadDim, int kHeadTiles>
using ClusterTraits = AttendTraits<C, kHeadDim, kHeadTiles,
                                   kClusterUnit<C, kHeadDim, kHeadTiles>>;

// Constants for half the shared memory, so that twice as many clusters fit.
template <typename C, int kHeadDim, int kHeadTiles>
struct HalfClusterTraits : AttendTraits<C, kHeadDim, kHeadTiles> {
  static constexpr int kClusterBytes = 96 * 1024;
};

// The shared memory of a block.
template <typename Traits>
struct ClusterMemory {
  static constexpr int kStages =
      std::min(Traits::kClusterBytes / (kClusterWarps * Traits::kStageBytes),
               kMaxStages);
  // The number of vectors of four dimensions per head, and how many of them one
  // block of the cluster sums up.
  static constexpr int kVectors = Traits::kHeadDim / 4;
  static constexpr int kShare = kVectors / kClusterBlocks;
  static_assert(kStages >= 2 && kVectors % kClusterBlocks == 0);

  // A warp's units, and later its result. Rows of floats are padded by 4 to
  // avoid bank conflicts.
  struct alignas(128) Warp {
    union {
      unsigned char units[kStages][Traits::kStageBytes];
      float out[Traits::kHeads][Traits::kHeadDim + 4];
    };
  };
  Warp warps[kClusterWarps];
  // The results of all blocks: max and sum are those of `stats`.
  float4 values[kClusterBlocks][Traits::kHeads * kShare + 1];
  float2 stats[kClusterBlocks][Traits::kHeads];
  // For each stage, the block numbers of the tokens of the unit that is copied
  // to it next.
  uint32_t block_numbers[kClusterWarps][kStages][Traits::kUnit];
  uint32_t masks[kClusterWarps][kStages];
  float2 warp_stats[kClusterWarps][Traits::kHeads];
  uint64_t received;  // the barrier of values and stats
};

// Copies every `stride`-th unit of a sequence to a warp's shared memory.
template <typename Traits>
class ClusterLoader {
 public:
  using Memory = ClusterMemory<Traits>;
  static constexpr int kStages = Memory::kStages;

  // Starts to read the first block numbers, before the context's length is
  // known.
  __device__ ClusterLoader(const DecodeArgs& args, int seq, int kv_head,
                           int unit, int stride, Memory& memory)
      : args_(args),
        keys_(static_cast<const char*>(args.key_cache) +
              kv_head * args.head_step * Traits::kRowBytes),
        values_(static_cast<const char*>(args.value_cache) +
                kv_head * args.head_step * Traits::kRowBytes),
        table_(args.block_tables + static_cast<int64_t>(seq) * args.max_blocks),
        row_bytes_(args.num_kv_heads * args.head_step * Traits::kRowBytes),
        shared_(SharedAddress(memory.warps[threadIdx.x / 32].units)),
        block_numbers_(memory.block_numbers[threadIdx.x / 32]),
        masks_(memory.masks[threadIdx.x / 32]),
        unit_(unit),
        stride_(stride),
        end_((args.max_tokens + Traits::kUnit - 1) / Traits::kUnit) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) ReadBlockNumbers(i, unit + i * stride);
    CommitCopies();
  }

  // Starts the copies of the first units.
  __device__ void Begin(const Units& units) {
    context_ = units.context;
    end_ = units.end;
    WaitForCopies<0>();
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) Load(stage);
  }

  // Starts the copies of the next unit to `stage`, or none if there is no more.
  __device__ void Load(int stage) {
    if (unit_ < end_) {
      const int lane = threadIdx.x % 32;
      const int token = unit_ * Traits::kUnit + lane;
      uint32_t row = kNoRow;
      if (lane < Traits::kUnit && token < context_ &&
          token >= context_ - args_.sliding_window) {
        const uint32_t block = block_numbers_[stage][lane];
        const uint32_t size = args_.block_size.divisor;
        if (block < args_.num_blocks) {
          row = block * size + token - args_.block_size.Divide(token) * size;
        }
      }
      CopyUnit<Traits>(keys_, values_, row_bytes_, row,
                       shared_ + stage * Traits::kStageBytes);
      const uint32_t mask = __ballot_sync(kAllLanes, row != kNoRow);
      if (lane == 0) masks_[stage] = mask;
      ReadBlockNumbers(stage, unit_ + kStages * stride_);
      unit_ += stride_;
    }
    CommitCopies();
  }

 private:
  // Each lane reads the block number of its own token.
  __device__ void ReadBlockNumbers(int stage, int unit) {
    const int lane = threadIdx.x % 32;
    if (unit >= end_ || lane >= Traits::kUnit) return;
    const uint32_t index = args_.block_size.Divide(unit * Traits::kUnit + lane);
    const bool there = index < static_cast<uint32_t>(args_.max_blocks);
    CopyAsync4(SharedAddress(&block_numbers_[stage][lane]),
               table_ + (there ? index : 0), there);
  }

  const DecodeArgs& args_;
  const char* const keys_;
  const char* const values_;
  const int32_t* const table_;
  const uint32_t row_bytes_;
  const uint32_t shared_;
  uint32_t (*const block_numbers_)[Traits::kUnit];
  uint32_t* const masks_;
  int unit_;
  const int stride_;
  int end_;
  int context_ = 0;
};

// Adds up the warps' results and sends each block of the cluster its share of
// the dimensions.
template <typename Traits>
__device__ inline void SendResults(int heads, const WarpState<Traits>& state,
                                   ClusterMemory<Traits>& memory) {
  using Memory = ClusterMemory<Traits>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < Traits::kHeadTiles; ++h) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = state.sum[h][j];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, lanes);
      }
      if (lane < 4) {
        memory.warp_stats[warp][h * 8 + lane * 2 + j] = {state.max[h][j], sum};
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Traits::kDimTiles; ++i) {
#pragma unroll
    for (int h = 0; h < Traits::kHeadTiles; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        memory.warps[warp].out[h * 8 + lane % 4 * 2 + j % 2]
                              [i * 16 + OutDim<Traits>(lane, j / 2)] =
            state.out[i][h][j];
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const int bytes_of_head =
        Memory::kShare * sizeof(*memory.values[0]) + sizeof(*memory.stats[0]);
    ExpectBytes(SharedAddress(&memory.received),
                kClusterBlocks * heads * bytes_of_head);
  }
  WaitForCluster();  // until all blocks are ready to receive

#pragma unroll 1
  for (int i = threadIdx.x; i < heads * Memory::kVectors; i += blockDim.x) {
    const int head = i / Memory::kVectors, vector = i % Memory::kVectors;
    float max = -INFINITY;
#pragma unroll
    for (int w = 0; w < kClusterWarps; ++w) {
      max = fmaxf(max, memory.warp_stats[w][head].x);
    }
    float sum = 0;
    float4 total = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < kClusterWarps; ++w) {
      const float2 stats = memory.warp_stats[w][head];
      const float weight = RelativeWeight(stats.x, max);
      const float4 part = *reinterpret_cast<const float4*>(
          &memory.warps[w].out[head][vector * 4]);
      sum += weight * stats.y;
      total.x += weight * part.x;
      total.y += weight * part.y;
      total.z += weight * part.z;
      total.w += weight * part.w;
    }
    const int to = vector / Memory::kShare, at = vector % Memory::kShare;
    const auto in_block = [to](const void* shared) {
      return InBlock(SharedAddress(shared), to);
    };
    const uint32_t received = in_block(&memory.received);
    SendToBlock(
        in_block(&memory.values[blockIdx.x][head * Memory::kShare + at]), total,
        received);
    if (at == 0) {
      SendToBlock(in_block(&memory.stats[blockIdx.x][head]), float2{max, sum},
                  received);
    }
  }
}

// Sums the partial results that the cluster's blocks have sent, and stores the
// sums.
template <typename Traits, typename Rows>
__device__ inline void StoreReceived(const DecodeArgs& args, const Rows& rows,
                                     ClusterMemory<Traits>& memory) {
  using Memory = ClusterMemory<Traits>;
  const int heads = rows.count;
  // Each group of kClusterBlocks adjacent lanes sums the blocks' partial
  // results for one vector.
  const int source = threadIdx.x % kClusterBlocks;
#pragma unroll 1
  for (int i = threadIdx.x; i / 32 * 32 < heads * Memory::kVectors;
       i += blockDim.x) {
    const bool there = i < heads * Memory::kVectors;
    const int slot = there ? i / kClusterBlocks : 0;
    const int row = slot / Memory::kShare;
    const float2 stats = memory.stats[source][row];
    const float4 part = memory.values[source][slot];
    float max = stats.x;
#pragma unroll
    for (int lanes = 1; lanes < kClusterBlocks; lanes *= 2) {
      max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, lanes));
    }
    const float weight = RelativeWeight(stats.x, max);
    float sum = weight * stats.y;
    float total[4] = {weight * part.x, weight * part.y, weight * part.z,
                      weight * part.w};
#pragma unroll
    for (int lanes = 1; lanes < kClusterBlocks; lanes *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, lanes);
#pragma unroll
      for (float& x : total) x += __shfl_xor_sync(kAllLanes, x, lanes);
    }
    if (there && source == 0) {
      const int vector =
          static_cast<int>(blockIdx.x) * Memory::kShare + slot % Memory::kShare;
      Store(args, rows.IndexOf(row), rows.HeadOf(row), vector * 4,
            Traits::kHeadDim,
            {max, sum, {total[0], total[1], total[2], total[3]}});
    }
  }
}

// Attends with `rows` to the units of a sequence.
template <typename Traits, typename Rows>
__device__ inline void AttendInCluster(const DecodeArgs& args, const Rows& rows,
                                       const Units& units,
                                       ClusterLoader<Traits>& loader, int unit,
                                       ClusterMemory<Traits>& memory) {
  using Memory = ClusterMemory<Traits>;
  constexpr int kStride = kClusterBlocks * kClusterWarps;
  const int warp = threadIdx.x / 32;
  WarpState<Traits> state;
  LoadQuery<Traits>(args, rows, &state);
  loader.Begin(units);
  int stage = 0;
#pragma unroll 1
  for (; unit < units.end; unit += kStride) {
    WaitForCopies<Memory::kStages - 1>();
    __syncwarp();  // all lanes' copies have arrived
    AttendUnit<Traits>(
        args, rows, SharedAddress(memory.warps[warp].units[stage]),
        memory.masks[warp][stage],
        unit * Traits::kUnit - rows.PositionIn(units.context), &state);
    __syncwarp();  // all lanes have read the stage
    loader.Load(stage);
    stage = stage + 1 == Memory::kStages ? 0 : stage + 1;
  }
  WaitForCopies<0>();
  __syncwarp();
  SendResults<Traits>(rows.count, state, memory);
  Receive(SharedAddress(&memory.received));
  StoreReceived<Traits>(args, rows, memory);
}

template <typename Traits>
__device__ inline void AttendHeadBlock(const DecodeArgs& args) {
  extern __shared__ __align__(128) unsigned char bytes[];
  ClusterMemory<Traits>& memory =
      *reinterpret_cast<ClusterMemory<Traits>*>(bytes);
  const int seq = blockIdx.z;
  const int kv_head = blockIdx.y / args.head_blocks;
  const int first_row = blockIdx.y % args.head_blocks * args.rows;
  const int group = args.num_heads / args.num_kv_heads;
  const HeadRows rows = RowsOf(args, seq, kv_head * group + first_row,
                               min(args.rows, group - first_row));
  if (threadIdx.x == 0) InitReceiver(SharedAddress(&memory.received));
  ArriveAtCluster();
  WaitForPreviousKernel();
  if (__builtin_expect(args.lets_next_start, false)) AllowNextKernelToStart();

  int unit = blockIdx.x * kClusterWarps + threadIdx.x / 32;
  const Units units = UnitsOf<Traits::kUnit>(args, seq);
  if (args.sliding_window != INT_MAX) unit += units.first;
  ClusterLoader<Traits> loader(args, seq, kv_head, unit,
                               kClusterBlocks * kClusterWarps, memory);
  AttendInCluster<Traits>(args, rows, units, loader, unit, memory);
  SetZeros(args);
}

// Grid: [kClusterBlocks, head blocks of all kv heads, sequences]; each cluster
// is one row of it.
//
// It may start before the previous kernel on the stream ends. It does not let
// the next kernel start early if that may have clusters, too: clusters that
// start while others run are placed close to each other, on multiprocessors
// that share a path to memory.
template <typename Traits>
__global__ void __launch_bounds__(32 * kClusterWarps, 1)
    ClusterKernel(const __grid_constant__ DecodeArgs args) {
#ifdef __CUDA_ARCH__
  if constexpr (IsCompiled<Traits>(Kernel::kCluster, __CUDA_ARCH__)) {
    AttendHeadBlock<Traits>(args);
  }
#endif
}

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_CLUSTER_CUH_
