// The order in which the blocks of the Hopper kernel take the tiles.
//
// Tiles have indices: first by descending slot (sm90_producer.cuh), and by kv
// head within a slot; then the additional parts of split contexts. Each block
// takes the next index when it is ready for it, so that the last tiles of a
// sequence, which have the most work, come first.
//
// If a batch has prefill at one end and decode at the other, half of the blocks
// begin at each end: one is limited by the products and the other by memory,
// and together they take less time than one after the other.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_SM90_QUEUE_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_SM90_QUEUE_CUH_

#include <cstdint>

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/sm90_split.cuh"

namespace torch_xla_ext::ragged::sm90 {

// Called by a warp.
class TileQueue {
 public:
  // `num_indices` counts the indices of slots, without additional parts.
  __device__ TileQueue(const Arguments& arguments, const Split& split,
                       int num_indices)
      : counter_(split.counter), num_indices_(num_indices) {
    const int blocks = gridDim.x, block = blockIdx.x;
    const int num_seqs = NumSequences(arguments);
    bool has_two_ends = false;
    if (counter_ != nullptr && num_seqs > 1 && num_indices >= 2 * blocks) {
      const bool first = IsLong(arguments, 0);
      has_two_ends = first != IsLong(arguments, num_seqs - 1);
      is_mirrored_ = has_two_ends && first;
    }
    at_back_ = has_two_ends && block % 2 == 1;
    back_blocks_ = has_two_ends ? blocks / 2 : 0;
    index_ = !has_two_ends ? block
             : at_back_    ? num_indices - 1 - block / 2
                           : block / 2;
  }

  __device__ int index() const { return index_; }
  // Whether this block takes a sequence's tiles from first to last. A block
  // that begins at the other end does so, to take tiles with much work first,
  // too.
  __device__ bool is_mirrored() const { return is_mirrored_; }

  // Starts to take another index. Advance completes this, because it is slow.
  __device__ void Take() {
    ++round_;
    if (counter_ != nullptr && threadIdx.x % 32 == 0) {
      taken_ = atomicAdd(counter_, at_back_ ? 1ull << 32 : 1ull);
    }
  }
  // Sets the index to the one that Take has requested.
  __device__ void Advance() {
    const int blocks = gridDim.x, block = blockIdx.x;
    if (counter_ == nullptr) {
      // Round-robin, reversed in every other round.
      index_ = blocks * round_ + (round_ % 2 == 0 ? block : blocks - 1 - block);
      return;
    }
    const unsigned long long taken = __shfl_sync(~0u, taken_, 0);
    const int front = static_cast<int>(taken) + blocks - back_blocks_;
    const int back = static_cast<int>(taken >> 32) + back_blocks_;
    index_ = front + back >= num_indices_ ? front + back
             : at_back_                   ? num_indices_ - 1 - back
                                          : front;
  }

 private:
  __device__ static bool IsLong(const Arguments& arguments, int s) {
    constexpr int kFewTokens = 16;
    return LoadSequence(arguments, s).q_len > kFewTokens;
  }

  unsigned long long* const counter_;
  const int num_indices_;
  bool at_back_;
  bool is_mirrored_ = false;
  int back_blocks_;
  int index_;
  int round_ = 0;
  unsigned long long taken_ = 0;
};

}  // namespace torch_xla_ext::ragged::sm90

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_SM90_QUEUE_CUH_
