// Copies units of a cache to shared memory, ahead of their use.
#ifndef KERNELS_PAGED_ATTENTION_LOADER_CUH_
#define KERNELS_PAGED_ATTENTION_LOADER_CUH_

#include "kernels/paged_attention/partition.cuh"
#include "kernels/paged_attention/traits.cuh"

namespace torch_xla_ext::paged_attention {

// Starts the copies of a unit's keys and values of one kv head, which begin at
// `keys` and `values`, to shared memory at `shared`. `row` is the row of this
// lane's token in the cache; for kNoRow, zeros are written.
template <typename Traits>
__device__ inline void CopyUnit(const char* keys, const char* values,
                                uint32_t row_bytes, uint32_t row,
                                uint32_t shared) {
  constexpr int kCopies = Traits::kTileBytes / 16 / 32;
  const int lane = threadIdx.x % 32;
  uint32_t rows[kCopies];  // All shuffles come first, to hide their latency.
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    rows[i] = __shfl_sync(kAllLanes, row, (i * 32 + lane) / Traits::kChunks);
  }
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int token = (i * 32 + lane) / Traits::kChunks;
    const int chunk = (i * 32 + lane) % Traits::kChunks;
    const bool read = rows[i] != kNoRow;
    const uint64_t offset =
        static_cast<uint64_t>(read ? rows[i] : 0) * row_bytes + chunk * 16;
    const uint32_t to = shared + Traits::Chunk(token, chunk) * 16;
    CopyAsync16(to, keys + offset, read);
    CopyAsync16(to + Traits::kTileBytes, values + offset, read);
  }
}

// Copies a warp's units to shared memory, ahead of their use.
template <typename Traits, typename Args>
class Loader {
 public:
  // The warp's units are part.begin + warp and every (blockDim.x / 32)-th one
  // after that. `shared` is the warp's memory; `masks` has kMaxStages words.
  __device__ Loader(const Args& args, const Part& part, int kv_head,
                    uint32_t shared, uint32_t* masks)
      : args_(args),
        keys_(static_cast<const char*>(args.key_cache) +
              kv_head * args.head_step * Traits::kRowBytes),
        values_(static_cast<const char*>(args.value_cache) +
                kv_head * args.head_step * Traits::kRowBytes),
        row_bytes_(args.num_kv_heads * args.head_step * Traits::kRowBytes),
        shared_(shared),
        masks_(masks),
        at_(part.begin + threadIdx.x / 32),
        end_(part.end) {
    if (at_ < end_) {
      place_ = PlaceOf<Traits::kUnit>(args, part.seq, part.seq_begin);
    }
    FindBlock();
  }

  // Starts the copies of the next unit to `stage`, or none if there is no more.
  __device__ void Load(int stage) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = block_ < args_.num_blocks
                             ? block_ * args_.block_size.divisor + row_in_block_
                             : kNoRow;
    const uint32_t mask = __ballot_sync(kAllLanes, row != kNoRow);
    if (lane == 0) masks_[stage] = mask;
    if (at_ < end_) {
      CopyUnit<Traits>(keys_, values_, row_bytes_, row,
                       shared_ + stage * Traits::kStageBytes);
      at_ += blockDim.x / 32;
      FindBlock();
    }
    CommitCopies();
  }

 private:
  // Reads the block number for this lane's token of the unit at at_, one unit
  // before it is used; kNoRow if the token is masked.
  __device__ void FindBlock() {
    block_ = kNoRow;
    if (at_ >= end_) return;
    while (at_ >= place_.end) {
      place_ = PlaceOf<Traits::kUnit>(args_, place_.seq + 1, place_.end);
    }
    const Units& units = place_.units;
    const int lane = threadIdx.x % 32;
    const int token = (units.first + at_ - place_.begin) * Traits::kUnit + lane;
    if (lane < Traits::kUnit && token < units.context &&
        token >= units.context - args_.sliding_window) {
      const uint32_t index = args_.block_size.Divide(token);
      row_in_block_ = token - index * args_.block_size.divisor;
      block_ = args_.block_tables[static_cast<int64_t>(place_.seq) *
                                      args_.max_blocks +
                                  index];
    }
  }

  const Args& args_;
  const char* const keys_;
  const char* const values_;
  const uint32_t row_bytes_;
  const uint32_t shared_;
  uint32_t* const masks_;
  int at_;
  const int end_;
  Place place_;
  uint32_t block_;
  uint32_t row_in_block_ = 0;
};

// Waits until at most `pending` of the thread's stages are still being copied.
__device__ inline void WaitForStages(int pending) {
  static_assert(kMaxStages == 4);
  if (pending <= 0) {
    WaitForCopies<0>();
  } else if (pending == 1) {
    WaitForCopies<1>();
  } else if (pending == 2) {
    WaitForCopies<2>();
  } else {
    WaitForCopies<3>();
  }
}

// Prefetches memory into the L2 cache. Called by a whole block.
__device__ inline void PrefetchBytes(const char* begin, int size) {
  for (int at = threadIdx.x * 128; at < size; at += blockDim.x * 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(begin + at));
  }
}

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_LOADER_CUH_
