// Shared by both kernels of ragged_paged_attention: the arguments, the search
// for a block's query rows, and small device functions.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_ARGUMENTS_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_ARGUMENTS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/device.h"
#include "kernels/common/ptx.cuh"
#include "kernels/common/softmax.cuh"
#include "kernels/paged_attention/partition.cuh"

namespace torch_xla_ext::ragged {

// Sizes fit in 32 bits (checked by the launch function); offsets need 64.
struct Arguments {
  const void* q;
  const void* kv_pages;
  const int32_t* kv_lens;
  const int32_t* page_indices;
  const int32_t* cu_q_lens;
  const int32_t* num_seqs;
  const float* sinks;          // or null
  const int32_t* custom_mask;  // or null
  void* out;
  float* lse;  // or null
  float* workspace;
  int64_t workspace_size;

  bool is_bf16;      // dtype of q and out: BF16, else F16
  bool q_is_float8;  // all elements of q are values of F8E4M3FN
  int num_tokens;    // max_num_batched_tokens
  int num_q_heads;
  int num_kv_heads;
  int group_size;  // query heads per kv head
  int head_dim;
  int max_num_seqs;
  int pages_per_seq;
  int page_size;
  int total_num_pages;

  float logit_scale;  // sm_scale * k_scale
  float soft_cap;     // 0: none
  float v_scale;
  int sliding_window;  // INT_MAX: none
  bool causal;
  int max_q_len;   // INT_MAX: no limit on a sequence's query rows
  int mask_words;  // words per row of custom_mask

  // The kernels of paged_attention have been launched. They compute row s if it
  // is the only row of sequence s (HasOwnRow), and set all other rows to zero.
  bool decoded;
  // If positive, FewQueriesSplitKernel has been launched. It computes the whole
  // batch if no sequence has more query tokens than this, else nothing.
  int few_queries;
  // The number of words at the beginning of the workspace that those kernels
  // set to zero.
  int64_t num_zeroed;
};

// The kernels of ragged_paged_attention. variants.cuh lists which one serves
// which batch.

// The head_dim for which the kernel for Hopper is compiled, and the number of
// keys per tile.
inline constexpr int kSm90HeadDim = 128, kSm90TileTokens = 128;
cudaError_t LaunchSm90Kernel(cudaStream_t stream, const Arguments& arguments,
                             bool cache_is_fp8);

// A row is a query token and one of the heads of a kv head. With `half`, the
// kernel uses half the shared memory. `args` is the same batch for the kernels
// of paged_attention.
inline constexpr int kFewQueriesTileRows = 16;
Status LaunchFewQueries(cudaStream_t stream, const Arguments& arguments,
                        bool half, paged_attention::DecodeArgs args);

// Sets arguments->few_queries.
Status LaunchFewQueriesSplit(cudaStream_t stream,
                             const paged_attention::DecodeArgs& decode,
                             Arguments* arguments);

// For a cache of type C and a head_dim of 64, 96, 128, 192 or 256.
template <typename C>
cudaError_t LaunchGenericKernel(cudaStream_t stream,
                                const Arguments& arguments);

__device__ inline int Clamp(int value, int low, int high) {
  return min(max(value, low), high);
}

__device__ inline int CeilDivide(int a, int b) { return (a + b - 1) / b; }

__device__ inline int NumSequences(const Arguments& arguments) {
  return Clamp(__ldg(arguments.num_seqs), 0, arguments.max_num_seqs);
}

// The first query row of sequence s, or the end of the last sequence's rows.
__device__ inline int RowBegin(const Arguments& arguments, int s) {
  return Clamp(__ldg(arguments.cu_q_lens + s), 0, arguments.num_tokens);
}

struct Sequence {
  int index;
  int begin;           // its first row in q
  int q_len;           // rows in q
  int kv_len;          // tokens in the cache
  int first_position;  // of row `begin`; negative if q_len > kv_len
};

__device__ inline Sequence LoadSequence(const Arguments& arguments, int s) {
  Sequence sequence;
  sequence.index = s;
  sequence.begin = RowBegin(arguments, s);
  sequence.q_len = max(RowBegin(arguments, s + 1) - sequence.begin, 0);
  sequence.kv_len = Clamp(__ldg(arguments.kv_lens + s), 0,
                          arguments.pages_per_seq * arguments.page_size);
  sequence.first_position = sequence.kv_len - sequence.q_len;
  if (arguments.decoded && s < arguments.num_tokens &&
      paged_attention::HasOwnRow(arguments.cu_q_lens, arguments.num_tokens,
                                 arguments.num_seqs, s)) {
    sequence.q_len = 0;
  }
  return sequence;
}

// Waits for the end of kernels that were launched before, if any, and returns
// whether they have left nothing to do. Called by a whole block.
__device__ inline bool NothingIsLeft(const Arguments& arguments) {
  if (!arguments.decoded && arguments.few_queries == 0) return false;
  bool is_left = false;
  // This may run before those kernels end, because they do not write the
  // operands.
  const int num_seqs = NumSequences(arguments);
  // The loop's limit does not depend on num_seqs, so its loads need not wait
  // for that one.
  for (int s = threadIdx.x; s < arguments.max_num_seqs; s += blockDim.x) {
    const int q_len = LoadSequence(arguments, s).q_len;
    is_left |= (s < num_seqs) & (q_len > arguments.few_queries);
  }
  is_left = __syncthreads_or(is_left);
  WaitForPreviousKernel();
  return !is_left;
}

// The last token that is visible to row `row` of the sequence's rows in q.
__device__ inline int PositionOf(const Arguments& arguments,
                                 const Sequence& sequence, int row) {
  return arguments.causal ? sequence.first_position + row : sequence.kv_len - 1;
}

// The last sequence s with first_slot(s) <= slot, or -1; first_slot must not
// decrease. Called by whole warps. Each step tests 32 sequences.
template <typename FirstSlot>
__device__ inline int FindSequence(const Arguments& arguments, int slot,
                                   const FirstSlot& first_slot) {
  const int lane = threadIdx.x % 32;
  int begin = 0, end = NumSequences(arguments);
  for (int step = 0; step != 1;) {
    step = (end - begin + 31) / 32;
    const int s = begin + lane * step;
    const uint32_t votes = __ballot_sync(~0u, s < end && first_slot(s) <= slot);
    if (votes == 0) return -1;
    begin += (31 - __clz(votes)) * step;
    end = min(end, begin + step);
  }
  return begin;
}

// Launches one of the two kernels that begin with NothingIsLeft, and makes sure
// that the first `counters` words of the workspace are zero.
template <typename... Others>
cudaError_t LaunchKernel(cudaStream_t stream,
                         void (*kernel)(Arguments, Others...), int blocks,
                         int threads, int shared_bytes, int64_t counters,
                         const Arguments& arguments, const Others&... others) {
  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  if (counters > arguments.num_zeroed) {
    const cudaError_t error =
        cudaMemsetAsync(arguments.workspace, 0, 4 * counters, stream);
    if (error != cudaSuccess) return error;
  } else if (arguments.decoded || arguments.few_queries > 0) {
    Device device;
    const cudaError_t error = GetDevice(&device);
    if (error != cudaSuccess) return error;
    // The kernel may start before the previous one ends, because it waits
    // itself.
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = paged_attention::CodeArch(device) >= 900 ? 1 : 0;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments, others...);
}

// Zeroes the rows of `out` before the first sequence and after the last one.
// The work is divided among `num_workers` groups of `num_threads` threads.
__device__ inline void ZeroOtherRows(const Arguments& arguments, int worker,
                                     int num_workers, int thread,
                                     int num_threads) {
  const int num_seqs = NumSequences(arguments);
  const int begin = num_seqs == 0 ? 0 : RowBegin(arguments, 0);
  const int end = num_seqs == 0 ? 0 : max(RowBegin(arguments, num_seqs), begin);
  const int count = begin + arguments.num_tokens - end;
  const int row_packets = arguments.num_q_heads * arguments.head_dim / 8;
  for (int i = worker; i < count; i += num_workers) {
    const int row = i < begin ? i : end + i - begin;
    uint4* out = static_cast<uint4*>(arguments.out) +
                 static_cast<int64_t>(row) * row_packets;
    for (int j = thread; j < row_packets; j += num_threads) {
      out[j] = make_uint4(0, 0, 0, 0);
    }
    if (arguments.lse == nullptr) continue;
    const int num_heads = arguments.num_q_heads;
    for (int head = thread; head < num_heads; head += num_threads) {
      arguments.lse[int64_t{1} * row * num_heads + head] =
          arguments.sinks == nullptr ? -INFINITY : arguments.sinks[head];
    }
  }
}

// Finishes a row of `out`, of one token and head. `sum`, of weights relative to
// 2^max, is complete except for the sink. Returns the factor for the row's sums
// of values, and writes its element of `lse` if `writes_lse`.
__device__ inline float Finish(const Arguments& arguments, int64_t row,
                               bool writes_lse, float max, float sum) {
  PartialSum total = {max, sum, {1, 0, 0, 0}};
  if (arguments.sinks != nullptr) {
    total.AddSink(arguments.sinks[row % arguments.num_q_heads]);
  }
  if (arguments.lse != nullptr && writes_lse) {
    arguments.lse[row] = LogSum(total.max, total.sum);
  }
  return total.sum == 0 ? 0 : arguments.v_scale * total.values.x / total.sum;
}

// cap * tanh(y), given cap and x * factor = 2 log2(e) y. tanh.approx is not
// accurate enough for f16. Near 0, the first formula suffers from cancellation,
// which a large cap would amplify, so another one is used; both have relative
// errors of at most some 1e-6.
__device__ inline float SoftCap(float x, float factor, float cap) {
  const float t = x * factor;
  const float far = cap - 2 * cap * __fdividef(1.0f, Exp2(t) + 1);
  const float y = t * (0.5f / kLog2e), y2 = y * y;
  const float near =
      cap * y * (1 + y2 * (-1.0f / 3 + y2 * (2.0f / 15 - y2 * (17.0f / 315))));
  return y2 < 0.0625f ? near : far;
}

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_ARGUMENTS_CUH_
