// Slots and positions, of either integer dtype.
#ifndef KERNELS_KV_CACHE_UPDATE_SLOTS_CUH_
#define KERNELS_KV_CACHE_UPDATE_SLOTS_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "torch_xla_ext/cuda_status.h"
#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::kv_cache_update {

// S32 or S64.
class Integers {
 public:
  Integers() = default;
  explicit Integers(const AnyBuffer& buffer)
      : data_(buffer.untyped_data()), wide_(buffer.dtype() == S64) {}

  __device__ int64_t operator[](int64_t i) const {
    return wide_ ? static_cast<const int64_t*>(data_)[i]
                 : static_cast<const int32_t*>(data_)[i];
  }

 private:
  const void* data_;
  bool wide_;
};

enum class Target { kCache, kPages, kRope };

namespace {

// A slot beyond the cache is an error; a negative one means "skip this token".
__global__ void ReportOutOfRangeKernel(Target target, Integers slots,
                                       int64_t num_tokens, int64_t num_slots) {
  const char* const name = target == Target::kCache   ? "KvCacheUpdate"
                           : target == Target::kPages ? "KvPagesUpdate"
                                                      : "RopeKvPagesUpdate";
  const int64_t tile = int64_t{gridDim.x} * blockDim.x;
  for (int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       token < num_tokens; token += tile) {
    const int64_t slot = slots[token];
    if (slot >= num_slots) {
      printf("XlaGpu%s: slot_mapping[%lld] = %lld is not in [0, %lld)\n", name,
             static_cast<long long>(token), static_cast<long long>(slot),
             static_cast<long long>(num_slots));
    }
  }
}

inline Status ReportOutOfRange(cudaStream_t stream, Target target,
                               const Integers& slots, int64_t num_tokens,
                               int64_t num_slots) {
  constexpr int kThreads = 256;
  const int64_t blocks =
      std::min((num_tokens + kThreads - 1) / kThreads, int64_t{1} << 20);
  ReportOutOfRangeKernel<<<static_cast<unsigned>(blocks), kThreads, 0,
                           stream>>>(target, slots, num_tokens, num_slots);
  return CudaStatus(cudaGetLastError());
}

}  // namespace
}  // namespace torch_xla_ext::kv_cache_update

#endif  // KERNELS_KV_CACHE_UPDATE_SLOTS_CUH_
