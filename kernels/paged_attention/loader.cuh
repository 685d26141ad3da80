// Brings units of a cache to shared memory, ahead of their use.
#ifndef KERNELS_PAGED_ATTENTION_LOADER_CUH_
#define KERNELS_PAGED_ATTENTION_LOADER_CUH_

#include "kernels/paged_attention/partition.cuh"
#include "kernels/paged_attention/traits.cuh"

namespace torch_xla_ext {

// Brings a warp's units to shared memory, ahead of their use.
template <typename Traits>
class Loader {
 public:
  // The warp's units are part.begin + warp and every blockDim.x / 32 th from
  // there on. `shared` is the warp's memory, and `masks` of kMaxStages words.
  __device__ Loader(const DecodeArgs& args, const Part& part, int kv_head,
                    uint32_t shared, uint32_t* masks)
      : args_(args),
        keys_(static_cast<const char*>(args.key_cache) +
              kv_head * Traits::kRowBytes),
        values_(static_cast<const char*>(args.value_cache) +
                kv_head * Traits::kRowBytes),
        row_bytes_(args.num_kv_heads * Traits::kRowBytes),
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
      const uint32_t keys = shared_ + stage * Traits::kStageBytes;
#pragma unroll
      for (int i = 0; i < Traits::kTileBytes / 16 / 32; ++i) {
        const int index = i * 32 + lane;
        const int token = index / Traits::kChunks;
        const int chunk = index % Traits::kChunks;
        const uint32_t source_row = __shfl_sync(kAllLanes, row, token);
        const bool read = source_row != kNoRow;
        const uint64_t offset =
            static_cast<uint64_t>(read ? source_row : 0) * row_bytes_ +
            chunk * 16;
        const uint32_t to = keys + Traits::Chunk(token, chunk) * 16;
        CopyAsync16(to, keys_ + offset, read);
        CopyAsync16(to + Traits::kTileBytes, values_ + offset, read);
      }
      at_ += blockDim.x / 32;
      FindBlock();
    }
    CommitCopies();
  }

 private:
  // Reads the number of the block of this lane's token of the unit at at_, a
  // unit before it is used; kNoRow if the token takes no part.
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

  const DecodeArgs& args_;
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

// Waits for the oldest of `stages` - 1 stages.
__device__ inline void WaitForStage(int stages) {
  static_assert(kMaxStages == 4);
  if (stages == 2) {
    WaitForCopies<0>();
  } else if (stages == 3) {
    WaitForCopies<1>();
  } else {
    WaitForCopies<2>();
  }
}

// Brings memory to the L2 cache. Called by a whole block.
__device__ inline void PrefetchBytes(const char* begin, int size) {
  for (int at = threadIdx.x * 128; at < size; at += blockDim.x * 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(begin + at));
  }
}

}  // namespace torch_xla_ext

#endif  // KERNELS_PAGED_ATTENTION_LOADER_CUH_
