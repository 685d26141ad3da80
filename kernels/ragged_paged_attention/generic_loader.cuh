// Copies queries, keys and values to shared memory, ahead of their use.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_LOADER_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_LOADER_CUH_

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/generic_shape.cuh"
#include "kernels/ragged_paged_attention/generic_work.cuh"

namespace torch_xla_ext::ragged {

// The tokens of one tile: the offsets of their keys, and which of them are not
// masked.
template <int kTileTokens>
struct TokenTable {
  int64_t offset[kTileTokens];  // bytes into kv_pages; -1 for masked tokens
  uint32_t valid[(kTileTokens + 31) / 32];  // a bit for each
};

// Tables of the tiles that are being copied or used, and of the next one.
template <typename Plan>
using TokenTables = TokenTable<Plan::kTileTokens>[Plan::kStages + 1];

// The row of q and out (of a token and a head) for row `row` of a piece.
__device__ inline int64_t RowIndex(const Arguments& arguments,
                                   const Piece& piece, int kv_head, int row) {
  const int group = arguments.group_size;
  const int token = (piece.first_row + row) / group;
  const int head = (piece.first_row + row) % group;
  return static_cast<int64_t>(piece.sequence.begin + token) *
             arguments.num_q_heads +
         kv_head * group + head;
}

// Copies a piece's queries; rows that it does not have become zeros.
template <typename Plan>
__device__ inline void LoadQuery(const Arguments& arguments, const Piece& piece,
                                 int kv_head, uint32_t to) {
  using Shape = typename Plan::Shape;
  constexpr int kChunks = Shape::kQueryBytes / 16;
  for (int i = threadIdx.x; i < Plan::kRows * kChunks; i += kGenericThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const uint16_t* q = static_cast<const uint16_t*>(arguments.q);
    const bool exists = row < piece.num_rows;
    if (exists) {
      q += RowIndex(arguments, piece, kv_head, row) * Shape::kHeadDim +
           chunk * 8;
    }
    CopyAsync16(to + ChunkOffset<Shape::kQueryBytes>(row, chunk), q, exists);
  }
}

// Copies a piece's queries, converted to F16, with the dimensions in the order
// of KeyFragments. BF16 may be out of F16's range, so a power of two is
// factored out of each row.
template <typename Plan>
__device__ inline void LoadQueryF8(const Arguments& arguments,
                                   const Piece& piece, int kv_head, uint32_t to,
                                   float* powers) {
  using Shape = typename Plan::Shape;
  constexpr int kSteps = (Shape::kHeadDim + 127) / 128;
  const int lane = threadIdx.x % 32;
#pragma unroll 4
  for (int row = threadIdx.x / 32; row < Plan::kRows; row += kWarps) {
    float values[kSteps][4] = {};
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int dim = i * 128 + lane * 4;
      if (row >= piece.num_rows || dim >= Shape::kHeadDim) continue;
      const uint2 bits = __ldg(reinterpret_cast<const uint2*>(
          static_cast<const uint16_t*>(arguments.q) +
          RowIndex(arguments, piece, kv_head, row) * Shape::kHeadDim + dim));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t pair = j == 0 ? bits.x : bits.y;
        const float2 value =
            arguments.is_bf16
                ? __bfloat1622float2(
                      reinterpret_cast<const __nv_bfloat162&>(pair))
                : __half22float2(reinterpret_cast<const __half2&>(pair));
        values[i][2 * j] = value.x;
        values[i][2 * j + 1] = value.y;
        largest = fmaxf(largest, fmaxf(fabsf(value.x), fabsf(value.y)));
      }
    }
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
    }
    // 2^(exponent - 127) and its inverse, both normal numbers.
    const int exponent = Clamp(__float_as_int(largest) >> 23, 1, 253);
    const float inverse = __int_as_float((254 - exponent) << 23);
    if (lane == 0) powers[row] = __int_as_float(exponent << 23);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int dim = i * 128 + lane * 4;
      if (dim >= Shape::kHeadDim) continue;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        asm volatile(
            "st.shared.b32 [%0], %1;" ::"r"(
                to + ChunkOffset<Shape::kQueryBytes>(row, dim / 16 * 2 + j) +
                dim % 16),
            "r"(Pack<__half>(values[i][2 * j] * inverse,
                             values[i][2 * j + 1] * inverse))
            : "memory");
      }
    }
  }
}

// The range of tokens that are visible to any row of a piece.
struct VisibleTokens {
  int begin, end;
};

// Copies the tiles [begin, end) of a sequence's keys and values, kStages - 1
// tiles ahead of their use; called by a whole block. The constructor starts to
// load the first page numbers.
template <typename Plan>
class TileLoader {
 public:
  __device__ TileLoader(const Arguments& arguments, const Sequence& sequence,
                        VisibleTokens visible, int kv_head, int begin, int end,
                        uint32_t shared, TokenTables<Plan>& tables)
      : arguments_(arguments),
        visible_(visible),
        pages_(arguments.page_indices +
               static_cast<int64_t>(sequence.index) * arguments.pages_per_seq),
        kv_head_(kv_head),
        end_(end),
        shared_(shared),
        tables_(tables),
        next_(begin) {
#pragma unroll
    for (int i = 0; i < Plan::kStages; ++i) {
      first_pages_[i] = FetchPage(begin + i);
    }
    next_page_ = FetchPage(begin + Plan::kStages);
  }

  // Begins to copy.
  __device__ void Start() {
#pragma unroll
    for (int i = 0; i < Plan::kStages; ++i) {
      FillTable(next_ + i, first_pages_[i], &tables_[i]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Plan::kStages - 1; ++i) CopyNext();
  }

  // Waits for the next tile's copies. The previous tile must no longer be in
  // use.
  __device__ void Wait() {
    WaitForCopies<Plan::kStages - 2>();
    __syncthreads();
  }

  // Starts the next copies. Call it after Wait, and before the tile is used.
  __device__ void GoOn() {
    CopyNext();
    // next_ is the first tile without a table.
    FillTable(next_, next_page_, &tables_[next_table_]);
    next_page_ = FetchPage(next_ + 1);
  }

 private:
  using Shape = typename Plan::Shape;

  __device__ int PageOf(int token) const {
    const int size = arguments_.page_size;
    // A shift is faster than a division.
    return (size & (size - 1)) == 0 ? token >> (31 - __clz(size))
                                    : token / size;
  }

  // The page number for this thread's token of a tile, or -1 if no row sees it.
  // The load is slow, so it is issued one tile ahead.
  __device__ int FetchPage(int tile) const {
    const int token = tile * Plan::kTileTokens + threadIdx.x;
    if (threadIdx.x >= Plan::kTileTokens || tile >= end_ ||
        token < visible_.begin || token >= visible_.end) {
      return -1;
    }
    return __ldg(pages_ + PageOf(token));
  }

  __device__ void FillTable(int tile, int page,
                            TokenTable<Plan::kTileTokens>* table) const {
    const int thread = threadIdx.x;
    if (thread >= Plan::kTileTokens) return;
    const int token = tile * Plan::kTileTokens + thread;
    const bool valid = page >= 0 && page < arguments_.total_num_pages;
    const int64_t row = static_cast<int64_t>(page) * arguments_.page_size +
                        token - PageOf(token) * arguments_.page_size;
    table->offset[thread] = valid ? (row * arguments_.num_kv_heads + kv_head_) *
                                        2 * Shape::kRowBytes
                                  : -1;
    const uint32_t votes = __ballot_sync(~0u, valid);
    if (thread % 32 == 0) table->valid[thread / 32] = votes;
  }

  // Starts a group of copies: of the next tile, or an empty group after the
  // last. Masked tokens become zeros, because their memory may hold NaN.
  __device__ void CopyNext() {
    if (next_ < end_) {
      const TokenTable<Plan::kTileTokens>& table = tables_[next_table_];
      const uint32_t to = shared_ + stage_ * 2 * Plan::kTileBytes;
      const char* kv_pages = static_cast<const char*>(arguments_.kv_pages);
      constexpr int kCopies = Plan::kTileTokens * Shape::kChunks;
      static_assert(kCopies % kGenericThreads == 0);
#pragma unroll
      for (int i = 0; i < kCopies / kGenericThreads; ++i) {
        const int index = threadIdx.x + i * kGenericThreads;
        const int row = index / Shape::kChunks, chunk = index % Shape::kChunks;
        const int64_t offset = table.offset[row];
        const bool valid = offset >= 0;
        const char* from = kv_pages + (valid ? offset : 0) + chunk * 16;
        const uint32_t at = to + ChunkOffset<Shape::kRowBytes>(row, chunk);
        CopyAsync16(at, from, valid);
        CopyAsync16(at + Plan::kTileBytes, from + Shape::kRowBytes, valid);
      }
    }
    CommitCopies();
    ++next_;
    if (++next_table_ == Plan::kStages + 1) next_table_ = 0;
    if (++stage_ == Plan::kStages) stage_ = 0;
  }

  const Arguments& arguments_;
  const VisibleTokens visible_;
  const int32_t* const pages_;
  const int kv_head_;
  const int end_;
  const uint32_t shared_;
  TokenTables<Plan>& tables_;
  int next_;  // the tile to be copied next
  int next_table_ = 0, stage_ = 0;
  int first_pages_[Plan::kStages];
  int next_page_;
};

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_LOADER_CUH_
