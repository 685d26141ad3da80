// The kernels that serve a batch: those of the first row that fits. If a row
// has two kernels, lengths that only the GPU knows decide which tokens the
// second one computes.
//
//   query   cache   head_dim  GPU  batch              kernels
//   F32     all     all       all  all                kFloat32
//   16-bit  all     all       all  IsDecode           kDecode, one of the last
//                                                     unless max_q_len is 1
//   16-bit  16-bit  128       9.0  IsFewQueries       kFewQueries or ...Half
//   16-bit  16-bit  128       9.0  IsFewQueriesSplit  kFewQueriesSplit, kSm90
//   16-bit  all     128       9.0  FitsSm90           kSm90
//   16-bit  all     all       all  all                kGeneric
//
// IsFewQueries and IsFewQueriesSplit assume that FitsSm90 is true.
// LaunchSm90Kernel chooses the products' types, and HasAllPlans (below) the
// generic kernel's plans.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_VARIANTS_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_VARIANTS_CUH_

#include <cuda_runtime.h>

#include <climits>
#include <cstdint>

#include "kernels/common/device.h"
#include "kernels/paged_attention/traits.cuh"
#include "kernels/paged_attention/workspace.h"
#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/workspace.h"

namespace torch_xla_ext::ragged {

// In this order on the stream: `first`, then `second`.
struct Variants {
  enum First { kNothing, kDecode, kFewQueriesSplit } first;
  enum Second {
    kNoMore,
    kFloat32,         // paged_attention/float32.cuh
    kFewQueries,      // few_queries.cu
    kFewQueriesHalf,  // the same with half the shared memory
    kSm90,            // ragged_paged_attention_sm90.cu
    kGeneric,         // generic_kernel.cuh
  } second;
};

// Whether the shapes are those of a decode step, for which the kernels of
// paged_attention are faster, unless a kv head has more heads than they process
// at a time.
inline bool IsDecode(const Arguments& arguments) {
  const int64_t max_tokens =
      int64_t{1} * arguments.pages_per_seq * arguments.page_size;
  return arguments.num_tokens <= arguments.max_num_seqs &&
         arguments.custom_mask == nullptr &&
         arguments.group_size <= paged_attention::kMaxRows &&
         int64_t{1} * arguments.total_num_pages * arguments.page_size <
             paged_attention::kNoRow &&
         arguments.num_tokens * (max_tokens + 32) <= int64_t{16} * INT_MAX;
}

// Whether the kernel for Hopper can serve the batch. Models with a soft cap
// have numbers that F16 cannot hold, so there is no such kernel for F16.
inline bool FitsSm90(const Arguments& arguments, const Device& device) {
  const int page_size = arguments.page_size;
  return device.IsSm90() && arguments.custom_mask == nullptr &&
         arguments.head_dim == kSm90HeadDim &&
         (arguments.is_bf16 || arguments.soft_cap == 0) &&
         arguments.group_size <= kSm90TileRows && page_size % 8 == 0 &&
         (kSm90TileTokens % page_size == 0 ||
          page_size % kSm90TileTokens == 0) &&
         arguments.total_num_pages > 0 && arguments.logit_scale > 0;
}

// The maximum number of FewQueriesKernel's blocks that have rows.
inline int64_t FewQueriesBlocks(const Arguments& arguments) {
  const int64_t row_blocks =
      (int64_t{1} * arguments.num_tokens * arguments.group_size +
       kFewQueriesTileRows - 1) /
      kFewQueriesTileRows;
  return (row_blocks + arguments.max_num_seqs - 1) * arguments.num_kv_heads *
         paged_attention::kClusterBlocks;
}

// Whether the batch has few query tokens of few sequences. With half the shared
// memory, two blocks fit on a multiprocessor. Some multiprocessors cannot be
// part of a cluster of eight.
inline bool IsFewQueries(const Arguments& arguments, const Device& device) {
  return arguments.sliding_window == INT_MAX &&
         int64_t{1} * arguments.pages_per_seq * arguments.page_size <= 16384 &&
         int64_t{1} * arguments.total_num_pages * arguments.page_size <
             paged_attention::kNoRow &&
         FewQueriesBlocks(arguments) <= device.multiprocessors * 7 / 4;
}

// Whether each sequence has few query tokens, according to the shapes. The
// Hopper kernel is faster with 16 rows unless it must split contexts.
inline bool IsFewQueriesSplit(const Arguments& arguments,
                              const Device& device) {
  const int rows = FewQueriesRows(arguments.num_tokens, arguments.max_num_seqs,
                                  arguments.group_size);
  const int64_t max_tokens =
      int64_t{1} * arguments.pages_per_seq * arguments.page_size;
  return arguments.sliding_window == INT_MAX &&
         (rows == 8 || (rows == 16 && int64_t{1} * arguments.max_num_seqs *
                                              arguments.num_kv_heads <=
                                          device.multiprocessors)) &&
         int64_t{1} * arguments.total_num_pages * arguments.page_size <
             paged_attention::kNoRow &&
         arguments.max_num_seqs * (max_tokens + 32) <= int64_t{16} * INT_MAX;
}

// `arguments` without the fields that earlier kernels set: decoded,
// few_queries, num_zeroed.
inline Variants ChooseVariants(const Arguments& arguments, const Device& device,
                               bool query_is_f32, bool cache_is_f8) {
  if (query_is_f32) return {Variants::kNothing, Variants::kFloat32};
  const bool fits_sm90 = FitsSm90(arguments, device);
  const auto last = fits_sm90 ? Variants::kSm90 : Variants::kGeneric;
  if (IsDecode(arguments)) {
    // With one sequence, the only row belongs to it, or to none.
    const bool is_all = arguments.max_num_seqs == 1 || arguments.max_q_len == 1;
    return {Variants::kDecode, is_all ? Variants::kNoMore : last};
  }
  if (fits_sm90 && !cache_is_f8 && IsFewQueries(arguments, device)) {
    const bool half =
        FewQueriesBlocks(arguments) > device.multiprocessors * 7 / 8;
    return {Variants::kNothing,
            half ? Variants::kFewQueriesHalf : Variants::kFewQueries};
  }
  if (fits_sm90 && !cache_is_f8 && IsFewQueriesSplit(arguments, device)) {
    // If there are few tokens in all, no sequence can have too many.
    const int rows = FewQueriesRows(
        arguments.num_tokens, arguments.max_num_seqs, arguments.group_size);
    const bool is_all = arguments.num_tokens <= rows / arguments.group_size;
    return {Variants::kFewQueriesSplit,
            is_all ? Variants::kNoMore : Variants::kSm90};
  }
  return {Variants::kNothing, last};
}

// Whether the code for an architecture has all three plans, which take a second
// each to compile: on compute capability 9.0, where they were compared, for
// common shapes that the Hopper kernel does not serve. Other code has one plan,
// Middle.
template <typename Shape>
__host__ __device__ constexpr bool HasAllPlans(int arch) {
  constexpr int kDim = Shape::kHeadDim;
  return arch == 900 && !Shape::kIsF16 &&
         (kDim == 64 || kDim == 96 || kDim == 256);
}

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_VARIANTS_CUH_
